//! Tests of the handover to the next leader. They test which candidates wake up when a leader resigns (criterion A5),
//! and how soon the next candidate then leads (criterion A6).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use reveille_coordination::recipes::Trust;
use reveille_coordination::tree::Counted;

use crate::LONG;
use crate::engine::{Engine, Peer, with_real_runtime};

on_both! {
    a5_each_release_wakes_one_of_thirty_candidates
    a6_resigning_leader_is_followed_at_once
}

/// Number of candidates. Each candidate has a separate session, and the candidates share the connections of several
/// processes.
const CANDIDATES: usize = 30;
const PROCESSES: usize = 5;
/// Largest number of requests that one candidate sends from its wake-up until it has left the queue. The candidate
/// lists the queue, watches its own node, deletes this node, and reads this node again after the deletion.
const REQUESTS: u64 = 4;
/// Limit for the median duration of a handover. In a handover, the leader deletes its node, a watch wakes the next
/// candidate, and this candidate lists the queue. Most handovers take a few milliseconds, even on a busy machine.
const HANDOVER_MAX: Duration = Duration::from_millis(500);

fn a5_each_release_wakes_one_of_thirty_candidates(engine: &Engine) {
    with_real_runtime(async |runtime| {
        let mut peers = Vec::new();
        for _ in 0..PROCESSES {
            let trees = coordination_connect::trees(&runtime, &engine.url(), None).await.unwrap();
            for _ in 0..CANDIDATES / PROCESSES {
                let counted = Arc::new(Counted::new(trees.clone()));
                peers.push((Peer::on(&runtime, counted.clone(), LONG), counted));
            }
        }
        let watcher = engine.peer(&runtime, LONG).await;
        let mut waiting = FuturesUnordered::new();
        for (at, (peer, _)) in peers.iter().enumerate() {
            waiting.push(async move { (at, peer.selector(&at.to_string(), Trust::UntilLost).lead().await.unwrap()) });
        }
        let (mut leader, mut held) = watcher.within("a candidate leads", waiting.next()).await.unwrap();
        let requests = || peers.iter().map(|(_, counted)| counted.requests()).collect::<Vec<u64>>();
        let mut quiet = (requests(), 0);
        let all = async {
            // The test waits until all candidates are in the queue and no request is in progress.
            while quiet.1 < 20 || watcher.nodes().await.len() < CANDIDATES {
                assert!(waiting.next().now_or_never().is_none(), "two candidates lead");
                runtime.sleep(Duration::from_millis(25)).await;
                let now = requests();
                quiet = if now == quiet.0 { (now, quiet.1 + 1) } else { (now, 0) };
            }
        };
        watcher.within("all candidates wait", all).await;
        let before = quiet.0;
        let mut done = vec![leader];
        while done.len() < CANDIDATES {
            held.release().await;
            (leader, held) = watcher.within("the next candidate leads", waiting.next()).await.unwrap();
            done.push(leader);
            // The handovers so far have woken none of the candidates that still wait in the queue.
            let now = requests();
            for at in (0..CANDIDATES).filter(|at| !done.contains(at)) {
                assert_eq!(now[at], before[at], "candidate {at} was woken before its turn: {done:?}");
            }
        }
        held.release().await;
        let sent: Vec<u64> = requests().iter().zip(&before).map(|(now, before)| now - before).collect();
        assert!(sent.iter().all(|sent| *sent <= REQUESTS), "too many requests: {sent:?}");
    });
}

fn a6_resigning_leader_is_followed_at_once(engine: &Engine) {
    with_real_runtime(async |runtime| {
        let (one, two) = (engine.peer(&runtime, LONG).await, engine.peer(&runtime, LONG).await);
        let (first, second) = (one.selector("one", Trust::default()), two.selector("two", Trust::default()));
        let mut held = one.within("the candidate leads", first.lead()).await.unwrap();
        let mut took = Vec::new();
        for round in 0..10 {
            let (to, selector) = if round % 2 == 0 { (&two, &second) } else { (&one, &first) };
            let mut waiting = selector.lead().boxed();
            to.until("the candidate waits", async || {
                assert!((&mut waiting).now_or_never().is_none(), "the other candidate still leads");
                to.candidate_ids().await.len() == 2
            })
            .await;
            // The waiting candidate may already have set a watch on the leader's node. Otherwise it finds after the
            // release of the guard that this node no longer exists.
            let (term, released) = (held.term(), runtime.monotonic());
            let (next, ()) =
                to.within("the candidate leads", futures_util::future::join(waiting, held.release())).await;
            took.push(runtime.monotonic().since(released));
            held = next.unwrap();
            assert!(held.term() > term);
        }
        took.sort_unstable();
        assert!(took[took.len() / 2] < HANDOVER_MAX && took[took.len() - 1] < LONG / 2, "{took:?}");
        held.release().await;
    });
}

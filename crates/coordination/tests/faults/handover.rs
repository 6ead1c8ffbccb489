//! Who is woken when a leader goes, and how soon it leads: A5, and A6 of leaders that go by themselves.

use std::sync::Arc;
use std::time::Duration;

use coordination::recipes::Trust;
use coordination::tree::Counted;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::LONG;
use crate::engine::{Engine, Peer, on_real};

on_both! {
    a5_each_release_wakes_one_of_thirty_and_asks_no_more_than_of_two
    a6_a_leader_that_goes_by_itself_is_followed_at_once
}

/// Each in a session of its own, of so many processes' worth of connections.
const CANDIDATES: usize = 30;
const PROCESSES: usize = 5;
/// What one asks from when it is woken to when its place is gone: a listing, to know that it is the first; a watch of its own node, which it
/// looks at once more when that goes; and the removal.
const REQUESTS: u64 = 4;
/// A removal, a watch and a listing take some milliseconds; as often as not, on a machine that does much else, too.
const AT_ONCE: Duration = Duration::from_millis(500);

fn a5_each_release_wakes_one_of_thirty_and_asks_no_more_than_of_two(engine: &Engine) {
    on_real(async |runtime| {
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
        let (mut leader, mut held) = watcher.within("somebody leads", waiting.next()).await.unwrap();
        let requests = || peers.iter().map(|(_, counted)| counted.requests()).collect::<Vec<u64>>();
        let mut quiet = (requests(), 0);
        let all = async {
            // Until all wait, and nothing of that is under way.
            while quiet.1 < 20 || watcher.nodes().await.len() < CANDIDATES {
                assert!(waiting.next().now_or_never().is_none(), "two lead");
                runtime.sleep(Duration::from_millis(25)).await;
                let now = requests();
                quiet = if now == quiet.0 { (now, quiet.1 + 1) } else { (now, 0) };
            }
        };
        watcher.within("all wait", all).await;
        let before = quiet.0;
        let mut done = vec![leader];
        while done.len() < CANDIDATES {
            held.release().await;
            (leader, held) = watcher.within("the next leads", waiting.next()).await.unwrap();
            done.push(leader);
            // Of all hand-overs until now nobody heard who is still to come.
            let now = requests();
            for at in (0..CANDIDATES).filter(|at| !done.contains(at)) {
                assert_eq!(now[at], before[at], "{at} was woken by another's turn: {done:?}");
            }
        }
        held.release().await;
        let asked: Vec<u64> = requests().iter().zip(&before).map(|(now, before)| now - before).collect();
        assert!(asked.iter().all(|asked| *asked <= REQUESTS), "{asked:?} requests");
    });
}

fn a6_a_leader_that_goes_by_itself_is_followed_at_once(engine: &Engine) {
    on_real(async |runtime| {
        let (one, two) = (engine.peer(&runtime, LONG).await, engine.peer(&runtime, LONG).await);
        let (first, second) = (one.selector("one", Trust::default()), two.selector("two", Trust::default()));
        let mut held = one.within("it leads", first.lead()).await.unwrap();
        let mut took = Vec::new();
        for round in 0..10 {
            let (to, selector) = if round % 2 == 0 { (&two, &second) } else { (&one, &first) };
            let mut waiting = selector.lead().boxed();
            to.until("it waits", async || {
                assert!((&mut waiting).now_or_never().is_none(), "the other leads");
                to.standing().await.len() == 2
            })
            .await;
            // It has its watch by then, or looks after the release.
            let (term, released) = (held.term(), runtime.monotonic());
            let (next, ()) = to.within("it leads", futures_util::future::join(waiting, held.release())).await;
            took.push(runtime.monotonic().since(released));
            held = next.unwrap();
            assert!(held.term() > term);
        }
        took.sort_unstable();
        assert!(took[took.len() / 2] < AT_ONCE && took[took.len() - 1] < LONG / 2, "{took:?}");
        held.release().await;
    });
}

//! What a user's code may do while it leads: A8. And what becomes of candidates whose session is lost: A7.

use std::time::Duration;

use coordination::recipes::{Candidate, LeaderSelector, Leading, Lock, Trust};
use coordination::tree::Acl;
use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Peer, on_real, path};
use crate::{LONG, SESSION};

on_both! {
    a7_a_candidate_that_lost_its_session_stands_again_behind_the_others
    a8_a_leader_whose_code_blocks_its_thread_keeps_its_session
    a8_a_leaders_code_calls_back_into_its_client
}

fn a7_a_candidate_that_lost_its_session_stands_again_behind_the_others(engine: &Engine) {
    on_real(async |runtime| {
        let way = engine.way();
        let (leader, losing, third) =
            (engine.peer(&runtime, LONG).await, way.peer(&runtime, SESSION).await, engine.peer(&runtime, LONG).await);
        let held = leader.within("it leads", leader.selector("leader", Trust::UntilLost).lead()).await.unwrap();
        let (second, last) = (losing.selector("losing", Trust::UntilLost), third.selector("third", Trust::UntilLost));
        let (mut losing_waits, mut third_waits) = (second.lead().boxed(), last.lead().boxed());
        let is_in_line = async |line: &[&str], waiting: &mut [&mut (dyn Future<Output = _> + Send + Unpin)]| {
            leader
                .until("they stand in line", async || {
                    let woken = waiting.iter_mut().any(|waits| waits.now_or_never().is_some());
                    assert!(!woken, "another leads");
                    leader.standing().await == line
                })
                .await;
        };
        is_in_line(&["leader", "losing"], &mut [&mut losing_waits]).await;
        is_in_line(&["leader", "losing", "third"], &mut [&mut losing_waits, &mut third_waits]).await;
        way.cut(true);
        is_in_line(&["leader", "third"], &mut [&mut losing_waits, &mut third_waits]).await;
        way.cut(false);
        is_in_line(&["leader", "third", "losing"], &mut [&mut losing_waits, &mut third_waits]).await;
        held.release().await;
        let next = leader.within("it leads", third_waits).await.unwrap();
        assert!((&mut losing_waits).now_or_never().is_none(), "the other leads");
        next.release().await;
        leader.within("it leads", losing_waits).await.unwrap().release().await;
    });
}

fn selector(peer: &Peer) -> LeaderSelector {
    let candidate = Candidate { acl: Acl::Open, trust: Trust::UntilLost, ..Candidate::new("blocking") };
    LeaderSelector::new(&peer.client, path("/group"), candidate)
}

/// On a runtime with another thread: the session's own tasks are on it.
fn a8_a_leader_whose_code_blocks_its_thread_keeps_its_session(engine: &Engine) {
    on_real(async |runtime| {
        let (peer, stop) = (engine.peer(&runtime, SESSION).await, CancellationToken::new());
        let (world, stopping, selector) = (runtime.clone(), stop.clone(), selector(&peer));
        let session = peer.tree().await;
        let kept = peer.client.clone();
        // In a task of the runtime, as a service has it.
        let leading = runtime.detached("leadership", async move {
            let task = async |leading: Leading| {
                // What it woke last would be the next on its thread.
                kept.session().await.unwrap().sync().await.unwrap();
                std::thread::sleep(SESSION * 2);
                let (was_told, session) = (leading.over.is_cancelled(), kept.session().await.unwrap());
                session.sync().await.unwrap();
                let begun = world.monotonic();
                // Nor does it have to sleep for that.
                while world.monotonic().since(begun) < SESSION {
                    std::hint::spin_loop();
                }
                assert!(!was_told && !leading.over.is_cancelled(), "it lost its leadership");
                stopping.cancel();
            };
            selector.run(&stop, task).await
        });
        peer.within("it has led", leading).await.unwrap().unwrap();
        assert!(session.session().is_valid(runtime.monotonic()), "its session went on");
        assert_eq!(peer.tree().await.session().id(), session.session().id());
    });
}

/// Whatever that is: nothing waits for the user's code while it waits for the client.
fn a8_a_leaders_code_calls_back_into_its_client(engine: &Engine) {
    on_real(async |runtime| {
        let (peer, stop) = (engine.peer(&runtime, LONG).await, CancellationToken::new());
        let selector = selector(&peer);
        let lock = Lock::new(&peer.client, path("/lock"), Acl::Open);
        let task = async |leading: Leading| {
            let first = lock.acquire().await.unwrap();
            // Its own group, too, in which it stands behind itself.
            assert_eq!(selector.participants().await.unwrap().len(), 1);
            let mut behind = selector.lead().boxed();
            peer.until("it stands behind itself", async || {
                assert!((&mut behind).now_or_never().is_none(), "it leads already");
                peer.nodes().await.len() == 2
            })
            .await;
            drop(behind);
            peer.until("it has left", async || peer.nodes().await.len() == 1).await;
            first.release().await;
            let tree = peer.client.session().await.unwrap();
            tree.sync().await.unwrap();
            assert!(!leading.over.is_cancelled());
            stop.cancel();
            // Even the session's end, under its own feet.
            peer.client.close().await.unwrap();
            leading.over.cancelled().await;
        };
        let run = runtime.timeout(Duration::from_secs(30), selector.run(&stop, task)).await;
        run.expect("nothing waits for itself").unwrap();
    });
}

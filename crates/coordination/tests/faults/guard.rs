//! Tests criterion A3: if the engine stops responding, the leader's guard ends before another candidate may lead.

use reveille_coordination::recipes::{Held, Trust};
use runtime::Runtime;

use crate::SESSION;
use crate::engine::{Engine, Peer, with_real_runtime};

on_both! {
    a3_guard_ends_before_takeover_when_connection_is_cut
    a3_guard_ends_before_takeover_when_engine_is_paused
}

/// Asserts that the guard ends at the latest at its deadline and does not become valid again. `silent` is the time
/// after which the engine sends no response.
async fn assert_ends_in_time(peer: &Peer, held: &Held, silent: runtime::Monotonic) {
    let runtime: &Runtime = &peer.runtime;
    let cancelled = async {
        held.cancelled().await;
        runtime.monotonic()
    };
    // A caller of `is_valid` notices the end of the guard without any notification.
    let polling = async {
        loop {
            let (before, is_valid) = (runtime.monotonic(), held.is_valid());
            if !is_valid {
                return;
            }
            assert!(before < silent + SESSION * 4 / 5, "the guard is valid beyond its deadline");
            runtime.sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let (notified, ()) = peer.within("the guard ends", futures_util::future::join(cancelled, polling)).await;
    // The guard's deadline is four fifths of the session's timeout after the last request that got a response. The
    // session sent this request before the time `silent`.
    assert!(held.deadline() <= silent + SESSION * 4 / 5);
    // The engine does not let another candidate lead before one session timeout has passed since the leader's last
    // request.
    let took = notified.since(silent);
    assert!(took < SESSION, "the holder was notified after {took:?}");
    assert!(!held.is_valid());
}

fn a3_guard_ends_before_takeover_when_connection_is_cut(engine: &Engine) {
    with_real_runtime(async |runtime| {
        for trust in [Trust::UntilLost, Trust::UntilSuspended] {
            let route = engine.route();
            let peer = route.peer(&runtime, SESSION).await;
            let held = peer.within("the candidate leads", peer.selector("one", trust).lead()).await.unwrap();
            // The test waits until pings have renewed the session.
            runtime.sleep(SESSION / 2).await;
            assert!(held.is_valid());
            route.cut(true);
            assert_ends_in_time(&peer, &held, runtime.monotonic()).await;
            route.cut(false);
            assert!(!held.is_valid(), "an ended guard must stay invalid");
        }
    });
}

fn a3_guard_ends_before_takeover_when_engine_is_paused(engine: &Engine) {
    let engine = engine.exclusive();
    with_real_runtime(async |runtime| {
        let peer = engine.peer(&runtime, SESSION).await;
        let held = peer.within("the candidate leads", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
        engine.pause(true);
        assert_ends_in_time(&peer, &held, runtime.monotonic()).await;
        engine.pause(false);
        assert!(!held.is_valid(), "an ended guard must stay invalid");
        let term = held.term();
        held.release().await;
        let again =
            peer.within("the candidate leads again", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
        assert!(again.term() > term);
        again.release().await;
    });
}

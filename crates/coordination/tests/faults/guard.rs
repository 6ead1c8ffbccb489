//! A hold whose engine is not heard of any more: A3.

use coordination::recipes::{Held, Trust};
use runtime::Runtime;

use crate::SESSION;
use crate::engine::{Engine, Peer, on_real};

on_both! {
    a3_a_hold_whose_way_is_cut_is_over_before_the_engine_may_give_it_to_another
    a3_a_hold_whose_engine_stands_still_is_over_before_the_engine_may_give_it_to_another
}

/// From when the engine was silent for good: by the deadline it was told, in time, and for good.
async fn dies_in_time(peer: &Peer, held: &Held, silent: runtime::Monotonic) {
    let runtime: &Runtime = &peer.runtime;
    let cancelled = async {
        held.cancelled().await;
        runtime.monotonic()
    };
    // Whoever looks needs nobody to tell it.
    let looking = async {
        loop {
            let (before, is_valid) = (runtime.monotonic(), held.is_valid());
            if !is_valid {
                return;
            }
            assert!(before < silent + SESSION * 3 / 4, "it is good for longer than its deadline");
            runtime.sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let (told, ()) = peer.within("it is over", futures_util::future::join(cancelled, looking)).await;
    // The last request that was answered was sent before.
    assert!(held.deadline() <= silent + SESSION * 3 / 4);
    // Another may lead a whole timeout after the engine has heard of it, which was later than it was sent.
    let took = told.since(silent);
    assert!(took < SESSION, "it was told after {took:?}");
    assert!(!held.is_valid());
}

fn a3_a_hold_whose_way_is_cut_is_over_before_the_engine_may_give_it_to_another(engine: &Engine) {
    on_real(async |runtime| {
        for trust in [Trust::UntilLost, Trust::UntilSuspended] {
            let way = engine.way();
            let peer = way.peer(&runtime, SESSION).await;
            let held = peer.within("it leads", peer.selector("one", trust).lead()).await.unwrap();
            // It has been kept for a while.
            runtime.sleep(SESSION / 2).await;
            assert!(held.is_valid());
            way.cut(true);
            dies_in_time(&peer, &held, runtime.monotonic()).await;
            way.cut(false);
            assert!(!held.is_valid(), "it does not come back");
        }
    });
}

fn a3_a_hold_whose_engine_stands_still_is_over_before_the_engine_may_give_it_to_another(engine: &Engine) {
    let engine = engine.alone();
    on_real(async |runtime| {
        let peer = engine.peer(&runtime, SESSION).await;
        let held = peer.within("it leads", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
        engine.pause(true);
        dies_in_time(&peer, &held, runtime.monotonic()).await;
        engine.pause(false);
        assert!(!held.is_valid(), "it does not come back");
        let term = held.term();
        held.release().await;
        let again = peer.within("it leads again", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
        assert!(again.term() > term);
        again.release().await;
    });
}

//! Tests criterion A8: user code that runs during a leadership blocks neither the session nor the client.

use reveille_coordination::recipes::{Leading, Trust};
use tokio_util::sync::CancellationToken;

use crate::SESSION;
use crate::engine::{Engine, with_real_runtime};

on_both! {
    a8_leader_that_blocks_its_thread_keeps_its_session
}

/// The runtime of this test has a second thread, which runs the tasks of the session.
fn a8_leader_that_blocks_its_thread_keeps_its_session(engine: &Engine) {
    with_real_runtime(async |runtime| {
        let (peer, stop) = (engine.peer(&runtime, SESSION).await, CancellationToken::new());
        let (clock, stopping, selector) = (runtime.clone(), stop.clone(), peer.selector("blocking", Trust::UntilLost));
        let session = peer.tree().await;
        let kept = peer.client.clone();
        // The test runs the leadership in a task of the runtime, as a service does.
        let leading = runtime.detached("leadership", async move {
            let task = async |leading: Leading| {
                // This request wakes another task just before this thread blocks. If the thread did not block, it would
                // run that task next.
                kept.session().await.unwrap().sync().await.unwrap();
                std::thread::sleep(SESSION * 2);
                let (was_cancelled, session) = (leading.over.is_cancelled(), kept.session().await.unwrap());
                session.sync().await.unwrap();
                let begun = clock.monotonic();
                // This busy loop stands for a long computation, which blocks the thread just like a sleep.
                while clock.monotonic().since(begun) < SESSION {
                    std::hint::spin_loop();
                }
                assert!(!was_cancelled && !leading.over.is_cancelled(), "the leadership must last");
                stopping.cancel();
            };
            selector.run(&stop, task).await
        });
        peer.within("the leadership has ended", leading).await.unwrap().unwrap();
        assert!(session.session().is_valid(runtime.monotonic()), "the session must last");
        assert_eq!(peer.tree().await.session().id(), session.session().id());
    });
}

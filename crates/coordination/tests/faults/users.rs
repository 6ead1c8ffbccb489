//! What a user's code may do while it leads: A8.

use coordination::recipes::{Leading, Trust};
use tokio_util::sync::CancellationToken;

use crate::SESSION;
use crate::engine::{Engine, on_real};

on_both! {
    a8_a_leader_whose_code_blocks_its_thread_keeps_its_session
}

/// On a runtime with another thread: the session's own tasks are on it.
fn a8_a_leader_whose_code_blocks_its_thread_keeps_its_session(engine: &Engine) {
    on_real(async |runtime| {
        let (peer, stop) = (engine.peer(&runtime, SESSION).await, CancellationToken::new());
        let (world, stopping, selector) = (runtime.clone(), stop.clone(), peer.selector("blocking", Trust::UntilLost));
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

//! Thread for disk calls, which may block. The server starts the thread at its first use, and all requests share it.

use std::sync::OnceLock;

use futures_util::future::{BoxFuture, FutureExt};
use runtime::{Runtime, TaskSet};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of disk calls in the queue. Callers wait while the queue is full.
const QUEUE: usize = 64;

pub(crate) struct DiskThread {
    /// Sender of calls to the thread. The thread ends when the sender is dropped.
    calls: OnceLock<mpsc::Sender<BoxFuture<'static, ()>>>,
    tasks: TaskSet,
}

impl DiskThread {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        DiskThread { calls: OnceLock::new(), tasks: TaskSet::new(runtime) }
    }

    /// Runs `call` on the thread. Returns `None` if the thread panicked. If the caller drops the returned future before
    /// the first poll, the call does not run.
    pub(crate) async fn run<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let call = call.map(|output| drop(sender.send(output))).boxed();
        self.calls().send(call).await.ok()?;
        receiver.await.ok()
    }

    fn calls(&self) -> &mpsc::Sender<BoxFuture<'static, ()>> {
        self.calls.get_or_init(|| {
            let (sender, mut calls) = mpsc::channel::<BoxFuture<'static, ()>>(QUEUE);
            self.tasks.spawn_thread("disk", async move {
                while let Some(call) = calls.recv().await {
                    call.await;
                }
            });
            sender
        })
    }
}

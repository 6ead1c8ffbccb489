//! Requests on slow threads while callbacks wait for the processors.
//!
//! The threads that run requests have a low priority, but Linux still gives them a part of saturated processors. While
//! callbacks of several tenants wait for the processors, the handlers of requests therefore run on threads with an even lower
//! priority. The connections stay on their threads.
//!
//! docs/decisions/0246-queue-starts-before-the-processors.md gives the reasons for the design.

use runtime::{Runtime, TaskSet};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::rejection::{Code, Rejected, reject};
use crate::state::AppState;

impl AppState {
    /// Returns the threads for work that begins now: the slow threads, or `None` for the threads of the connection.
    pub(crate) fn slow_threads(&self) -> Option<&Runtime> {
        self.slow.get().filter(|_| self.scheduler.is_saturated())
    }
}

/// Runs the handler of a request on `threads`, or in the caller's task. If the caller drops the returned future, the handler
/// ends at its next wait.
///
/// # Errors
/// Returns an error if the handler panics on `threads`.
pub(crate) async fn run<T: Send + 'static>(
    threads: Option<&Runtime>,
    handler: impl Future<Output = T> + Send + 'static,
) -> Result<T, Rejected> {
    let Some(threads) = threads else { return Ok(handler.await) };
    let (sender, output) = oneshot::channel();
    let tasks = TaskSet::new(threads);
    tasks.spawn("slow request", async move { drop(sender.send(handler.await)) }.in_current_span());
    output.await.map_err(|_| reject(Code::Internal, "internal error; see the server's log"))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use futures_util::FutureExt;
    use runtime::LowPriorityThreads;

    use super::*;

    async fn thread() -> Option<String> {
        std::thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn handler_runs_on_the_slow_threads_only_if_there_are_any() {
        let slow = LowPriorityThreads::start_slow("slow", Some(1)).unwrap();
        let on_slow_threads = run(Some(&slow.runtime), thread()).await.map_err(drop);
        assert_eq!(on_slow_threads, Ok(Some("slow".to_owned())));
        assert_ne!(run(None, thread()).await.map_err(drop), on_slow_threads);
    }

    #[tokio::test]
    async fn handler_ends_if_the_caller_drops_the_request() {
        let slow = LowPriorityThreads::start_slow("slow", Some(1)).unwrap();
        let (held, ended) = oneshot::channel::<()>();
        let handler = async move {
            let _held = held;
            pending::<()>().await;
        };
        let mut request = Box::pin(run(Some(&slow.runtime), handler));
        assert!((&mut request).now_or_never().is_none());
        drop(request);
        assert!(ended.await.is_err());
    }

    #[tokio::test]
    async fn panic_of_a_handler_on_slow_threads_rejects_the_request() {
        let slow = LowPriorityThreads::start_slow("slow", Some(1)).unwrap();
        let number: Arc<Vec<u8>> = Arc::default();
        assert!(run(Some(&slow.runtime), async move { number[0] }).await.is_err());
    }
}

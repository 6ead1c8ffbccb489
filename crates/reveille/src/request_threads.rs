//! Threads that run the HTTP server. Their priority is lower than the priority of the threads that send callbacks, so
//! that many requests delay callbacks only little.
//!
//! docs/decisions/0202-run-requests-on-threads-of-their-own.md gives the reasons for the design.

use anyhow::Context;
use runtime::Runtime;

/// Tokio runtime for requests. Its drop ends the threads when their current tasks wait or end.
pub(crate) struct RequestThreads {
    /// Handle that spawns tasks on these threads.
    pub(crate) runtime: Runtime,
    tokio: Option<tokio::runtime::Runtime>,
}

impl RequestThreads {
    /// Starts `threads` threads, or one thread for each core.
    pub(crate) fn start(threads: Option<usize>) -> anyhow::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().thread_name("requests").on_thread_start(runtime::lower_priority);
        if let Some(threads) = threads {
            builder.worker_threads(threads);
        }
        let tokio = builder.build().context("cannot start the threads that run requests")?;
        let entered = tokio.enter();
        let runtime = Runtime::real();
        drop(entered);
        Ok(RequestThreads { runtime, tokio: Some(tokio) })
    }
}

impl Drop for RequestThreads {
    fn drop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown_background();
        }
    }
}

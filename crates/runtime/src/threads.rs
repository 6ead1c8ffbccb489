//! Threads with a low priority for shared tasks.

use std::fmt;
use std::io;

use crate::{Runtime, lower_priority};

/// Tokio runtime whose threads have a low priority ([`lower_priority`]). A drop of this value ends the threads when
/// their current tasks wait or end.
pub struct LowPriorityThreads {
    /// Runtime that spawns shared tasks on these threads.
    pub runtime: Runtime,
    tokio: Option<tokio::runtime::Runtime>,
}

impl LowPriorityThreads {
    /// Starts `threads` threads with this name, or one thread for each core.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start the threads.
    pub fn start(name: &'static str, threads: Option<usize>) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().thread_name(name).on_thread_start(lower_priority);
        if let Some(threads) = threads {
            builder.worker_threads(threads);
        }
        let tokio = builder.build()?;
        let entered = tokio.enter();
        let runtime = Runtime::real();
        drop(entered);
        Ok(LowPriorityThreads { runtime, tokio: Some(tokio) })
    }
}

impl Drop for LowPriorityThreads {
    fn drop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown_background();
        }
    }
}

impl fmt::Debug for LowPriorityThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowPriorityThreads").finish_non_exhaustive()
    }
}

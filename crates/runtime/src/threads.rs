//! Threads with a low priority for shared tasks.

use std::fmt;
use std::io;

use crate::Runtime;
use crate::real::{NICENESS, lower_priority_by};

/// Niceness of threads whose work can wait while other threads with a low priority need the processor. Linux gives such
/// a thread a third of the processor time of a thread with a low priority, and 4 % of that of a thread without a low
/// priority.
const NICENESS_SLOW: i32 = 15;

/// Tokio runtime whose threads have a low priority ([`lower_priority`](crate::lower_priority)). A drop of this value
/// ends the threads when their current tasks wait or end.
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
        LowPriorityThreads::start_by(name, threads, NICENESS)
    }

    /// Starts threads with a lower priority than the threads of [`LowPriorityThreads::start`].
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start the threads.
    pub fn start_slow(name: &'static str, threads: Option<usize>) -> io::Result<Self> {
        LowPriorityThreads::start_by(name, threads, NICENESS_SLOW)
    }

    fn start_by(name: &'static str, threads: Option<usize>, niceness: i32) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().thread_name(name).on_thread_start(move || lower_priority_by(niceness));
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

//! Access to the outside world: clocks, randomness, owned tasks and the disk.
//!
//! All code that is not pure takes a [`Runtime`]. [`Runtime::real`] uses the machine. The crate `simulator` creates a
//! runtime from a seed, and a simulated run must depend only on this seed. Therefore no other crate may read a clock,
//! spawn a task or open a file directly. The exceptions are code that the simulator does not run: HTTP servers and
//! clients, and the index library.
//!
//! Invariants: each task belongs to a [`TaskSet`] or has its own [`TaskHandle`]. The runtime catches and logs a panic
//! in a task, and reports the panic as the task's [`TaskEnd`]. [`Disk`] calls may block their thread, so only
//! [`TaskSet::spawn_thread`] and [`TaskSet::spawn_background`] tasks and startup code make such calls.

#![warn(missing_docs)]

mod disk;
mod link;
mod permissions;
mod real;
mod task;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::Timestamp;

pub use disk::{Disk, DiskFile, DiskLock, OpenMode};
pub use instants::Monotonic;
pub use link::MemoryLink;
pub use real::lower_priority;
pub use task::{TaskEnd, TaskHandle, TaskSet};
pub use threads::LowPriorityThreads;

/// Kind of thread on which a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A worker thread that also runs other tasks. The task must not block.
    Shared,
    /// A dedicated thread. The task may block, for example in disk calls.
    Thread,
    /// A dedicated thread with a low priority ([`lower_priority`]). The task may block.
    Background,
}

/// Environment behind a [`Runtime`]: the real machine, a simulation or a test double.
pub trait World: Send + Sync + 'static {
    /// Returns the time of the wall clock, which may jump in both directions.
    fn now(&self) -> Timestamp;
    /// Returns the time of the monotonic clock, which measures timeouts and leases.
    fn monotonic(&self) -> Monotonic;
    /// Waits until `at`. The future completes at `at` or a little later, never earlier.
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()>;
    /// Returns 64 unpredictable bits. In a simulation, returns bits that the seed determines.
    fn random(&self) -> u64;
    /// Spawns a task on a thread of the kind `place`. `name` identifies the task in the log.
    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle;
    /// Returns the disk of this world.
    fn disk(&self) -> Arc<dyn Disk>;
    /// Ends this process (in a simulation: this member) at once, because continuing could break a guarantee. In a
    /// simulation the call may return. The caller must then wait forever.
    fn halt(&self, reason: &str);
}

/// Wait of [`Runtime::open_when_reachable`] between two calls. The wait starts at the minimum and doubles up to the
/// maximum.
const REOPEN_WAIT_MIN: Duration = Duration::from_millis(50);
const REOPEN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Handle to a [`World`]. A clone of the handle is cheap.
#[derive(Clone)]
pub struct Runtime(Arc<dyn World>);

impl Runtime {
    /// Creates a runtime of `world`, for simulations and test doubles.
    pub fn new(world: Arc<dyn World>) -> Self {
        Runtime(world)
    }

    /// Creates a runtime of the real machine, with tasks on the caller's tokio runtime.
    ///
    /// # Panics
    /// Panics if the caller is outside a tokio runtime.
    #[must_use]
    pub fn real() -> Self {
        Runtime(Arc::new(real::RealWorld::new()))
    }

    /// Returns the world of this runtime, for a caller that wraps this world in another world.
    #[must_use]
    pub fn world(&self) -> &Arc<dyn World> {
        &self.0
    }

    /// Returns the time of the wall clock, which may jump in both directions.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Returns the time of the monotonic clock, which measures timeouts and leases.
    #[must_use]
    pub fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }

    /// Waits for `duration` or a little longer.
    pub async fn sleep(&self, duration: Duration) {
        self.0.sleep_until(self.0.monotonic() + duration).await;
    }

    /// Waits until `at`. The future completes at `at` or a little later, never earlier.
    pub async fn sleep_until(&self, at: Monotonic) {
        self.0.sleep_until(at).await;
    }

    /// Returns the output of `future`. If `limit` passes first, drops `future` and returns `None`.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.0.sleep_until(self.0.monotonic() + limit);
        match futures_util::future::select(std::pin::pin!(future), sleep).await {
            futures_util::future::Either::Left((output, _)) => Some(output),
            futures_util::future::Either::Right(((), _)) => None,
        }
    }

    /// Calls `open` until it succeeds or returns an error that is not retryable, because a program may start before the
    /// server that it needs. Logs only the first retryable error, and the success after it.
    ///
    /// # Errors
    /// Returns the first error that is not retryable.
    pub async fn open_when_reachable<T, E: fmt::Display>(
        &self,
        mut open: impl AsyncFnMut() -> Result<T, E>,
        is_retryable: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut wait = REOPEN_WAIT_MIN;
        loop {
            match open().await {
                Err(error) if is_retryable(&error) => {
                    if wait == REOPEN_WAIT_MIN {
                        tracing::warn!(%error, "waiting for a server that is not reachable yet");
                    }
                    self.sleep(wait).await;
                    wait = (wait * 2).min(REOPEN_WAIT_MAX);
                }
                Ok(opened) => {
                    if wait > REOPEN_WAIT_MIN {
                        tracing::info!("the server is reachable");
                    }
                    return Ok(opened);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns 64 unpredictable bits. In a simulation, returns bits that the seed determines.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.random()
    }

    /// Returns 128 random bits.
    #[must_use]
    pub fn random_u128(&self) -> u128 {
        u128::from(self.0.random()) << 64 | u128::from(self.0.random())
    }

    /// Returns the disk of this runtime's world.
    #[must_use]
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.0.disk()
    }

    /// Ends this process, because further work could break a guarantee. This function never returns.
    pub async fn halt(&self, reason: &str) -> ! {
        self.0.halt(reason);
        std::future::pending().await
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runtime")
    }
}

//! The only door outside: clock, randomness, owned tasks and disk.
//!
//! Everything that is not pure takes a [`Runtime`] and asks it. [`Runtime::real`] answers from the machine; the
//! `simulator` crate answers from a seed, which is why nothing else in the workspace may read a clock, spawn a task or
//! open a file (HTTP servers and clients, and the index library, are edges that the simulator does without).
//!
//! Always true here: a task has a [`TaskSet`] that owns it; a panic in a task is caught, logged and told to its owner;
//! [`Disk`] calls may block their thread, so they are made from [`TaskSet::spawn_thread`] tasks or before serving.

mod disk;
mod link;
mod real;
mod task;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::Timestamp;

pub use disk::{Disk, DiskFile, OpenMode};
pub use instants::Monotonic;
pub use link::MemoryLink;
pub use task::{TaskEnd, TaskHandle, TaskSet};

/// Where a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Among all others; it must not block.
    Shared,
    /// On a thread of its own; it may block, in disk calls above all.
    Thread,
}

/// What a world must offer. Use it through [`Runtime`]; implement it to make another world.
pub trait World: Send + Sync + 'static {
    /// The wall clock. It may jump, either way.
    fn now(&self) -> Timestamp;
    fn monotonic(&self) -> Monotonic;
    /// Resolves at `at` or a little later, never before.
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()>;
    /// 64 unpredictable bits (from the seed, in a simulation).
    fn random(&self) -> u64;
    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle;
    fn disk(&self) -> Arc<dyn Disk>;
    /// Ends this process (this member, in a simulation) at once, because going on could break a promise. It may
    /// return, in a simulation: the caller then waits for ever.
    fn halt(&self, reason: &str);
}

/// A cheap handle to the world.
#[derive(Clone)]
pub struct Runtime(Arc<dyn World>);

impl Runtime {
    pub fn new(world: Arc<dyn World>) -> Self {
        Runtime(world)
    }

    /// This machine, with tasks on the tokio runtime that the caller is in.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn real() -> Self {
        Runtime(Arc::new(real::RealWorld::new()))
    }

    /// The world behind it, for one that is put in front of it.
    #[must_use]
    pub fn world(&self) -> &Arc<dyn World> {
        &self.0
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    #[must_use]
    pub fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }

    pub async fn sleep(&self, duration: Duration) {
        self.0.sleep_until(self.0.monotonic() + duration).await;
    }

    pub async fn sleep_until(&self, at: Monotonic) {
        self.0.sleep_until(at).await;
    }

    /// `future`'s output, or `None` if `limit` passed first; `future` is then dropped.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.0.sleep_until(self.0.monotonic() + limit);
        match futures_util::future::select(std::pin::pin!(future), sleep).await {
            futures_util::future::Either::Left((output, _)) => Some(output),
            futures_util::future::Either::Right(((), _)) => None,
        }
    }

    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.random()
    }

    /// 128 random bits.
    #[must_use]
    pub fn random_u128(&self) -> u128 {
        u128::from(self.0.random()) << 64 | u128::from(self.0.random())
    }

    #[must_use]
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.0.disk()
    }

    /// Ends this process because going on could break a promise. Never returns.
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

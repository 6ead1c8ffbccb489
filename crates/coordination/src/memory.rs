//! The tree and the elector within one process. They are the reference models of their ports, and tests use them in
//! place of real engines. With sessions that never expire, they also serve programs that run as a single process.
//!
//! `reopen` returns a handle of the same data for another process. An engine reads the clocks of its first handle's
//! `Runtime`. The calls of a handle wait by the timers of its own `Runtime`.
//!
//! Invariants: a call takes effect once and in one step, or not at all. The same `Runtime`s and the same calls give the
//! same results.

mod elector;
mod tree;

use std::ops::RangeInclusive;
use std::time::Duration;

use runtime::{MemoryLink, Runtime};

pub use elector::MemoryElector;
pub use tree::MemoryTrees;

/// Options for the behaviour of an engine in memory. With any options, the engine conforms to its port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// If false, a session ends only when its process closes it, and its timeout has no effect. Use false for a single
    /// process, because the engine ends with the process. The default is true.
    pub sessions_end: bool,
    /// Delay of a call before its effect, and again after its effect. By default calls have no delay.
    pub latency: Option<RangeInclusive<Duration>>,
    /// Number N that sets the rate of failing calls. On average, one of N calls fails, before or after its effect. By
    /// default no call fails.
    pub fail_one_in: Option<u32>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { sessions_end: true, latency: None, fail_one_in: None }
    }
}

fn link(runtime: Runtime, options: &MemoryOptions) -> MemoryLink {
    MemoryLink::new(runtime, options.latency.clone(), options.fail_one_in)
}

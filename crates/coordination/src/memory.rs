//! Engines that keep a tree or a replica group in memory. They are the reference models of their ports, and tests use
//! them in place of real engines. With sessions that never expire, they also serve programs that run as a single
//! process.
//!
//! `reopen` returns another handle of the same data. Each handle models one process with its own connection. An engine
//! reads only the clocks of its first handle's `Runtime`. The delays of a handle's calls use the timers of this
//! handle's `Runtime`.
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
    /// If false, the timeout of a session has no effect, and the session ends only when its process closes it. Use
    /// false if a single process uses the engine, because the engine ends with this process. The default is true.
    pub sessions_end: bool,
    /// Range of the random delay of a call before its effect, and of a second delay after its effect. By default calls
    /// have no delay.
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

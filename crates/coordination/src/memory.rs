//! The tree and the elector within one process. They are the reference models of their ports and the test doubles. With
//! sessions that never expire, they also serve programs that run as a single process.
//!
//! Processes share the data through `reopen`. An engine uses the clocks of the `Runtime` that it was created with. Each
//! handle waits on its own `Runtime`.
//!
//! Invariants: a call takes effect in one step, once, or not at all. The same `Runtime`s and the same calls give the
//! same results.

mod elector;
mod tree;

use std::ops::RangeInclusive;
use std::time::Duration;

use runtime::{MemoryLink, Runtime};

pub use elector::MemoryElector;
pub use tree::MemoryTrees;

/// Behaviour of an engine in memory, within the limits of its port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// If false, a session ends only when it is closed, whatever its timeout. This suits a single process, because the
    /// engine ends with the process. Default true.
    pub sessions_end: bool,
    /// Delay of a call before its effect, and again after it. Default none.
    pub latency: Option<RangeInclusive<Duration>>,
    /// Rate of failing calls: one call in this number fails, before or after its effect. Default never.
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

//! The tree and the electors within one process: the reference models of their ports, the doubles that tests use, and, with
//! sessions that never end, what a single process runs on.
//!
//! Processes share the data through `reopen`. The engine has clocks of its own, those of the `Runtime` that it was made
//! with; each handle waits on its own `Runtime`.
//!
//! Always true here: a call takes effect in one step, once, or not at all; with the same `Runtime`s and the same calls,
//! the same happens.

mod elector;
mod tree;

use std::ops::RangeInclusive;
use std::time::Duration;

use runtime::{MemoryLink, Runtime};

pub use elector::MemoryElector;
pub use tree::MemoryTrees;

/// How an engine in memory behaves within what its port allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// False: a session ends only when it is closed, whatever its timeout. For one process alone, whose end is the end of
    /// this engine, too. Default true.
    pub sessions_end: bool,
    /// How long a call takes before its effect, and again after it. Default none.
    pub latency: Option<RangeInclusive<Duration>>,
    /// One call in so many fails, before its effect or after it. Default never.
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

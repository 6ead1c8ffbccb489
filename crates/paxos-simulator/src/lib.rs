//! Simulation of paxos groups. A seed determines the whole run. The network loses, duplicates, delays and reorders
//! messages, and partitions separate nodes. Disks lose unsynced bytes and flip bits, clocks drift, nodes pause and
//! crash, and operators replace members.
//!
//! The simulated program is a pure state machine ([`Program`]). The simulation therefore needs only one queue of
//! events, and never waits in real time. It draws the configuration of the run ([`RunConfig`]) from the seed. After
//! every step, the simulation checks its rules ([`Rule`]).

use std::ops::Range;

mod checks;
mod clock;
mod config;
mod core_program;
mod disk;
mod faults;
mod moves;
mod program;
mod runner;
#[cfg(test)]
mod tests;
mod world;

pub use checks::{Rule, Violation};
pub use config::{Fault, Mutation, RunConfig};
pub use core_program::Core;
pub use moves::{MeasuredMove, MoveKind, measure, moves_table};
pub use program::{Incident, Input, NodeConfig, Observation, OnDisk, Out, Program, Request, View};
pub use runner::{Coverage, Failure, RunReport, run, run_pieces, shrink};

/// Runs the simulation once with [`Core`] as the program. If `is_read` is true, the report contains a line for every
/// event.
#[must_use]
pub fn run_core(config: &RunConfig, is_read: bool) -> RunReport {
    run::<Core>(config, is_read)
}

/// Returns the first seed whose run with the deliberate bug breaks a rule, and the violation of this rule; `None` if no
/// run breaks a rule.
#[must_use]
pub fn catch(mutation: Mutation, seeds: Range<u64>) -> Option<(u64, Violation)> {
    let mut seeds = seeds;
    seeds.find_map(|seed| run_core(&RunConfig::draw(seed, mutation), false).result.err().map(|found| (seed, found)))
}

//! Simulation of paxos groups, which is determined by a seed. The network loses, duplicates, delays, reorders and
//! partitions messages. Disks lose unsynced bytes and flip bits, clocks drift, and nodes pause, crash and are replaced.
//!
//! The simulated program is a pure state machine ([`Program`]), so the simulation is one queue of events, and a run is
//! as fast as the program. The seed determines the whole run ([`RunConfig`]). After every step, the simulation checks
//! its rules ([`Rule`]).

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

/// Runs the core once.
#[must_use]
pub fn run_core(config: &RunConfig, is_read: bool) -> RunReport {
    run::<Core>(config, is_read)
}

/// Returns the first seed that catches the bug, and the violation.
#[must_use]
pub fn catch(mutation: Mutation, seeds: Range<u64>) -> Option<(u64, Violation)> {
    let mut seeds = seeds;
    seeds.find_map(|seed| run_core(&RunConfig::draw(seed, mutation), false).result.err().map(|found| (seed, found)))
}

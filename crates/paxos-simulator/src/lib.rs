//! Paxos groups in a world that follows from a seed: a network that loses, doubles, delays, reorders and parts, disks that lose
//! what is not synced and flip bits, clocks that drift, nodes that stand still, crash and are replaced.
//!
//! What runs in it is a pure state machine ([`Program`]), so the world is one queue of events, and a run is as fast as the
//! program. All that a run does is drawn from its seed ([`Knobs`]). After every step is checked what must be so ([`Rule`]).

use std::ops::Range;

mod checks;
mod clock;
mod disk;
mod knobs;
mod moves;
mod program;
mod runner;
mod seat;
#[cfg(test)]
mod tests;
mod trouble;
mod world;

pub use checks::{Rule, Violation};
pub use knobs::{Fault, Knobs, Mutation};
pub use moves::{MeasuredMove, MoveKind, measure, moves_table};
pub use program::{Incident, Input, OnDisk, Out, Program, Request, Seat, Told, View};
pub use runner::{Coverage, Failure, RunReport, run, run_pieces, shrink};
pub use seat::Core;

/// One run of the core.
#[must_use]
pub fn run_core(knobs: &Knobs, is_read: bool) -> RunReport {
    run::<Core>(knobs, is_read)
}

/// How the bug was caught: by which seed, and by what.
#[must_use]
pub fn catch(mutation: Mutation, seeds: Range<u64>) -> Option<(u64, Violation)> {
    let mut seeds = seeds;
    seeds.find_map(|seed| run_core(&Knobs::draw(seed, mutation), false).result.err().map(|found| (seed, found)))
}

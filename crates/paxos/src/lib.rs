//! Replicated logs by Multi-Paxos, with masters that hold leases, as pure state machines: `step(now, input) -> effects`.
//!
//! What it does not do: read a clock, draw a random number, write a file or send a message. Whoever drives it does, and
//! tells it what became of that.
//!
//! Where it comes from: ballots and phases are Lamport's (*The Part-Time Parliament*); a log that agrees on one position agrees on
//! all before it, asking on trial, and members that come and go one by one are Raft's (Ongaro's dissertation, 3.5, 9.6 and 4.1);
//! a master that is a value in the log, with a lease that its proposals renew, is phxpaxos'; one liveness per node is
//! CockroachDB's; that masters are moved one at a time, by three schemes, is WMB's (58.com). What is done otherwise, and why, is in
//! `docs/decisions/0151` to `0155`.
//!
//! Always true here, whatever is lost, late, doubled or reordered, and whoever crashes: two nodes never decide different
//! entries for a slot. As long as clocks differ in rate by no more than [`Options::drift_ppm`]: no two nodes serve at once.

mod agreed;
pub mod balancer;
mod codec;
mod effects;
mod entry;
mod group;
mod ids;
mod liveness;
mod log;
mod message;
pub mod mover;
mod node;
mod options;
mod simulation;
pub mod system;

pub use agreed::{Agreed, Mastership, Shortened};
pub use codec::DecodeError;
pub use effects::{Effects, Event, Input, ProposalId, Record, Refusal, Token};
pub use entry::{BeMaster, Claim, Entry, Position, Shorten, Value};
pub use group::Group;
pub use ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Tenure};
pub use message::{Message, Orders, Over, Report, Serving, Snapshot, SnapshotHead};
pub use node::{Node, NodeInput, Obeyed, Process};
pub use options::Options;
pub use simulation::Deviation;
#[cfg(feature = "mutants")]
pub use simulation::{Defence, Mutant};

//! Replicated logs by Multi-Paxos, with masters that hold leases, as pure state machines: `step(now, input) -> effects`.
//!
//! What it does not do: read a clock, draw a random number, write a file or send a message. Whoever drives it does, and
//! tells it what became of that.
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

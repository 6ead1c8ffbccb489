//! Replicated logs by Multi-Paxos, with masters that hold leases, as pure state machines: `step(now, input) -> effects`.
//!
//! What it does not do: read a clock, draw a random number, write a file or send a message. Whoever drives it does, and
//! tells it what became of that.

pub mod ids;

pub use ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot};

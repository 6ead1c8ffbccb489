//! Replicated logs by Multi-Paxos, with masters that have leases. The code consists of pure state machines: `step(now,
//! input) -> effects`.
//!
//! Non-goals: this crate reads no clock, draws no random number, writes no file and sends no message. The driver does
//! these things, and reports the results as inputs.
//!
//! Sources: ballots and phases are from Lamport (*The Part-Time Parliament*). Three ideas are from Raft (sections 3.5,
//! 9.6 and 4.1 of Ongaro's dissertation): the log matching property, the pre-vote, and changes of one member at a time.
//! Further ideas are from three systems. In phxpaxos, the master is a value in the log, and the master's proposals
//! renew its lease. CockroachDB has one liveness record per node. WMB (58.com) moves masters one at a time, by three
//! schemes. `docs/decisions/0151` to `0155` describe how this crate differs from its sources, and give the reasons.
//!
//! Invariants: two nodes never decide different entries for a slot, even if nodes crash, or the network loses, delays,
//! duplicates or reorders messages. At most one node serves at a time, on the condition that the rates of clocks differ
//! by at most [`Options::drift_ppm`].

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
mod state;
pub mod system;

pub use codec::DecodeError;
pub use effects::{Effects, Event, Input, ProposalId, Record, Rejection, Token};
pub use entry::{BeMaster, Claim, Entry, Position, Shorten, Value};
pub use group::Group;
pub use ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Term};
pub use message::{MastershipEnd, Message, Orders, Report, Serving, Snapshot, SnapshotHead};
pub use node::{ActiveOrders, Node, NodeInput, Process};
pub use options::Options;
pub use simulation::Deviation;
#[cfg(feature = "mutants")]
pub use simulation::{Defence, Mutant};
pub use state::{GroupState, Mastership, Shortened};

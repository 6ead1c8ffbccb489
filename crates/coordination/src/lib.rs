//! Coordination for any program. The crate defines two ports, a tree of nodes and an elector. Each port has several
//! engines. The crate also contains recipes that use a tree.
//!
//! - [`tree`] is the port with ZooKeeper's data model: nodes, sessions and watches.
//! - [`recipes`] contains the recipes that processes run together over a tree: locks, leader election, queues, bags,
//!   discovery and configuration.
//! - [`Elector`] is the port for leader election by lease. One replica of a replica group holds the lease.
//! - [`memory`] contains the engines in memory, and [`ring`] contains a hash ring.
//!
//! This crate knows nothing about schedules, shards or cluster members. The crate `membership` handles them.

#![warn(missing_docs)]

mod elector;
mod followed;
/// The crate `reveille-runtime`, whose types the recipes use.
pub use runtime;

pub mod memory;
pub mod recipes;
pub mod ring;
pub mod tree;

pub use elector::{
    Answer, Elector, ElectorError, Follower, KnownLeader, LEASE_MAX, Leader, Leadership, REPLICA_LEN_MAX, Term,
    check_replica, departed, poll_departures, poll_leader,
};
pub use followed::Followed;

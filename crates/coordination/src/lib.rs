//! Coordination for any program: a tree of nodes and an elector, each a port with several engines, and recipes on top
//! of them.
//!
//! - [`tree`] is the port with ZooKeeper's data model: nodes, sessions and watches.
//! - [`recipes`] has the recipes that processes run together over a tree: locks, leader election, queues, bags,
//!   discovery and configuration.
//! - [`Elector`] is the port for leader election by lease: one replica of a replica group holds the lease.
//! - [`memory`] has the engines in memory, and [`ring`] has a hash ring.
//!
//! This crate knows nothing about schedules, shards or cluster members. The crate `membership` handles them.

mod elector;
pub mod memory;
pub mod recipes;
pub mod ring;
pub mod tree;

pub use elector::{
    Answer, Elector, ElectorError, Follower, LEASE_MAX, Leadership, REPLICA_LEN_MAX, Term, check_replica, departed,
    poll_departures,
};

//! Coordination for any program: a tree of nodes and an elector, as ports that several engines implement, and recipes on
//! them.
//!
//! - [`tree`] is the port with ZooKeeper's data model: nodes, sessions, watches.
//! - [`recipes`] are what processes do together over a tree: locks, leaders, queues, bags, discovery, configuration.
//! - [`Elector`] is the port with one call: a lease that one replica of a group holds.
//! - [`memory`] has the engines in memory, and [`ring`] a hash ring.
//!
//! This crate does not know schedules, shards or members of a cluster: the crate `membership` does.

mod elector;
pub mod memory;
pub mod recipes;
pub mod ring;
pub mod tree;

pub use elector::{
    Answer, Elector, ElectorError, Follower, LEASE_MAX, Leadership, REPLICA_LEN_MAX, Term, check_replica, departed,
    poll_departures,
};

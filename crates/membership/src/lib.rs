//! The port [`Ownership`], which reports the live members of a cluster and grants them claims. This crate states
//! the promises that every engine of the port keeps.
//!
//! A claim gives a member the right to take a shard. The term that `store::Store::take` creates decides which member
//! owns the shard. Terms therefore fence writes, and claims do not: if a member still writes after another member has
//! taken the shard, the store rejects these writes, because their term is older.
//!
//! A member's process opens a *session* ([`Ownership::join`]), renews it, and claims names under it. The session ends
//! when the member leaves, or, by the engine's clock, one lease after the last renewal. All claims of the session end
//! at the same time. One renewal therefore extends any number of claims, as with ZooKeeper's ephemeral nodes.
//!
//! Two parts of this crate use the port. [`Membership`] runs in every process: it renews the session, computes the
//! lease's deadline by the local clock, and reads the view. [`assign`] computes the planned owner of each shard.
//!
//! Invariants: A claim has one holder. The engine grants the claim to another member only after the holder released the
//! claim or left, or after the holder's lease ended by the engine's clock. An ended session never becomes active again.

pub mod assign;
mod error;
mod membership;
pub mod memory;
mod name;
mod ownership;

pub use error::OwnershipError;
pub use membership::{BeforeRenewal, Claimed, ClockOffset, Lease, Membership, Options, Outage, Profile, Status};
pub use name::{ClaimName, ClaimNameError, MemberId};
pub use ownership::{Answer, LEASE_MAX, Member, NAMES_MAX, Ownership, Renewed, View, check_names};

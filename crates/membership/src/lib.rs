//! The port [`Ownership`], which reports the live members of a cluster and grants them claims. This crate states
//! the promises that every engine of the port keeps.
//!
//! A claim gives a member the right to request a shard. The term that `store::Store::take` creates decides which
//! member owns the shard, so claims do not fence writes: a member that continues after its session ended is
//! rejected by the store because of its older term.
//!
//! A member's process opens a *session* ([`Ownership::join`]), renews it, and claims names under it. The session
//! ends when the member leaves, or one lease after the last renewal by the engine's clock. All its claims end with
//! it. One renewal therefore keeps any number of claims, as with ZooKeeper's ephemeral nodes.
//!
//! Two modules use the port: [`Membership`], which runs in every process (renewal, local deadline, view), and
//! [`assign`], which computes the planned owner of each shard.
//!
//! Invariants: A claim has one holder. The engine grants it to another member only after the holder released it,
//! left, or reached the end of its lease by the engine's clock. An ended session never becomes active again.

pub mod assign;
mod error;
mod membership;
pub mod memory;
mod name;
mod ownership;

pub use error::OwnershipError;
pub use membership::{BeforeRenewal, Claimed, ClockOffset, Lease, Membership, Options, Profile, Status};
pub use name::{ClaimName, ClaimNameError, MemberId};
pub use ownership::{Answer, LEASE_MAX, Member, NAMES_MAX, Ownership, Renewed, View, check_names};

//! The port [`Ownership`]: which members are alive, and which of them has claimed what. What every engine promises.
//!
//! A claim decides who may *ask* for a shard. Who *owns* it is decided by the term that `store::Store::take` mints, so
//! nothing here fences a write: a member that goes on after its session has ended meets a later term in the store.
//!
//! A member's process opens a *session* ([`Ownership::join`]), keeps it by renewing it, and claims names under it. The
//! session ends when it leaves, or a lease after its last renewal by the engine's clock; all its claims go with it. So
//! one renewal keeps any number of claims, as with ZooKeeper's ephemeral nodes.
//!
//! What stands on it: [`Membership`], which every process runs (renewal, the local deadline, the view), and [`assign`],
//! which says who should claim which shard.
//!
//! Always true here: a claim has one holder, and is given to another only after its holder released it, left, or came
//! to the end of its lease by the engine's clock; an ended session never comes back.

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

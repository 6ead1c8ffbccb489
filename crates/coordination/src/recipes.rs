//! What several processes do together over a tree, whatever its engine: locks and leaders.
//!
//! A process opens a [`Client`], and recipes on it. A client has one session at a time, and opens another when that is lost; what was held
//! under the lost one is over.
//!
//! What is held is a [`Held`]: it cannot be copied, says with [`Held::cancelled`] that it ends, and carries a [`Term`](crate::Term) by
//! which whatever is written under it can be told from what an earlier or later holder writes. A holder that is not heard of any more
//! stops trusting its hold before the engine gives it to another, by its own clock ([`crate::tree::session`]); that is worth as much as that
//! clock's rate, and nothing while the process stands still between a look at it and a write. So where two writers must not be, the sink
//! compares terms, or the write goes with [`Held::fence`] into one change of the tree.
//!
//! Nodes are laid out as Curator lays them out, so that processes with Curator share the groups.
//!
//! Always true here: nothing of a user's runs while a lock is held, or in a task of the client's; a future that is dropped leaves no node
//! behind for longer than it takes to remove it.

mod bag;
mod barrier;
mod client;
mod config;
mod counter;
mod discovery;
mod elector;
mod follow;
mod group;
mod held;
mod line;
mod lock;
mod node;
mod presence;
mod queue;
mod rolematch;
mod rwlock;
mod selector;
mod semaphore;
mod yaml;

pub use bag::{Bag, BagChange, BagListener, OwnItem};
pub use barrier::{Barrier, DoubleBarrier, Entered};
pub use client::Client;
pub use config::{Config, Effective, Overrides, Values};
pub use counter::Counter;
pub use discovery::{Discovery, Instance, Instances, Registration, Service, Source};
pub use elector::{Form, TreeElector};
pub use follow::Followed;
pub use group::{Group, Members};
pub use held::{Ended, Held, Leading, Trust};
pub use lock::Lock;
pub use presence::{Presence, PresenceState};
pub use queue::{Candidacy, LeaderQueue, Position};
pub use rolematch::{Assignment, Job, Role, RoleMatch};
pub use rwlock::RwLock;
pub use selector::{Candidate, Layout, LeaderSelector, Participant};
pub use semaphore::Semaphore;

/// The guide's code is run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recipes.md")]
struct Guide;

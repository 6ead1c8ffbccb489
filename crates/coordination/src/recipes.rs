//! Recipes that several processes run together over a tree, on any engine: locks, leader election and others.
//!
//! A process opens a [`Client`] and creates recipes with it. A client has one session at a time. When that session is
//! lost, the client opens another one, and everything held under the lost session is over.
//!
//! A lock or leadership is a guard of type [`Held`]. A guard cannot be copied, reports its end through
//! [`Held::cancelled`], and carries a [`Term`](crate::Term) that distinguishes its writes from those of earlier and
//! later holders. A holder that is cut off from the engine stops trusting its guard, by its own clock, before the
//! engine gives the lock to another process ([`crate::tree::session`]). That protection is as good as the rate of that
//! clock, and it does not help a process that is paused between a check of the guard and a write. Where two writers
//! must be excluded, the target of the writes therefore compares terms, or the write goes into one change of the tree
//! together with [`Held::fence`].
//!
//! Nodes have the same layout as Curator's, so that processes with Curator can share the same paths.
//!
//! Invariants: no user code runs while a mutex is held or in a task of the client. A dropped future leaves no node
//! behind for longer than the removal of that node takes.

mod bag;
mod barrier;
mod client;
mod config;
mod counter;
mod discovery;
mod elector;
mod follow;
mod group;
mod guard;
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
pub use guard::{Ended, Held, Leading, Trust};
pub use lock::Lock;
pub use presence::{Presence, PresenceState};
pub use queue::{Candidacy, LeaderQueue, Position};
pub use rolematch::{Assignment, Job, Role, RoleMatch};
pub use rwlock::RwLock;
pub use selector::{Candidate, Layout, LeaderSelector, Participant};
pub use semaphore::Semaphore;

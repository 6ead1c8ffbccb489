//! Recipes that several processes run together over a tree, on any engine: locks, leader election and others.
//!
//! A process opens a [`Client`] and creates recipes with it. A client has one session at a time. When that session is
//! lost, the client opens another session. All locks and ephemeral nodes of the lost session have then ended.
//!
//! The holder of a lock or leadership has a guard of type [`Held`]. A guard cannot be copied, and it reports its end
//! through [`Held::cancelled`]. It contains a [`Term`] that distinguishes the holder's writes from the
//! writes of earlier and later holders. If the holder loses the connection to the engine, the guard ends before the
//! engine gives the lock to another process ([`crate::tree::session`]). The holder's own clock determines when the
//! guard ends, so this protection works only if the clock runs at the right rate. The protection does not help a
//! process that is paused between a check of the guard and a write. If two holders must never write at the same time,
//! the target of the writes must reject writes with an earlier term. Alternatively, the holder writes to the tree with
//! a multi that contains the steps of [`Held::fence`].
//!
//! Nodes have the same layout as the nodes of Curator, so processes that use Curator can use the same paths.
//!
//! Invariants: no user code runs in a task of the client. No user code runs while the code of a recipe holds a mutex.
//! When a caller drops a future, the client removes the node of that future.

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
mod leader;
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
pub use group::{Group, Members};
pub use guard::{Ended, Held, Leading, Trust};
pub use lock::Lock;
pub use presence::{Presence, PresenceState};
pub use queue::{Candidacy, LeaderQueue, Position};
pub use rolematch::{Assignment, Job, Role, RoleMatch};
pub use rwlock::RwLock;
pub use selector::{Candidate, Layout, LeaderSelector, Participant};
pub use semaphore::Semaphore;

/// Types that the recipes share with other parts of this project.
pub use crate::{Followed, KnownLeader, Leader, Term};
/// Type of [`Assignment::since`].
pub use instants::Timestamp;

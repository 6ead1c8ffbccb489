//! Shards that this member owns, their terms, and guards for owner-only operations.

use std::collections::BTreeSet;
use std::sync::RwLock;

use domain::id::SHARDS;
use domain::{ShardId, Term, Timestamp};
use store::StoreError;
use tokio::sync::{RwLock as Gate, RwLockReadGuard};

use crate::requests::OwnerError;

/// Term of an owned shard, and the instant at which the term began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardTerm {
    pub(crate) term: Term,
    /// Start of the term. An earlier owner may have fired a row that was due before this instant.
    pub(crate) since: Timestamp,
    /// Latest `closed` of the shard that an owner has set back, or [`Timestamp::MIN`]. An earlier owner may have started
    /// the runs up to this instant, because its clock was ahead of this member's clock.
    pub(crate) reopened_from: Timestamp,
}

pub(crate) struct Shards {
    /// Terms of the owned shards, indexed by shard.
    shard_terms: RwLock<Vec<Option<ShardTerm>>>,
    /// Read-write locks, indexed by shard. An owner-only operation holds a read guard of the shard's lock, so that this
    /// member does not hand over the shard before the operation ends.
    gates: Vec<Gate<()>>,
}

/// Error: this member does not own the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotOwned(pub(crate) ShardId);

impl From<NotOwned> for OwnerError {
    fn from(_: NotOwned) -> Self {
        OwnerError::NotOwned
    }
}

impl From<NotOwned> for StoreError {
    fn from(NotOwned(shard): NotOwned) -> Self {
        // Another member owns the shard or will own it soon. A retry of the request can then succeed.
        StoreError::Unavailable(format!("this member does not own shard {} now; retry the request", shard.0))
    }
}

impl Shards {
    pub(crate) fn none() -> Self {
        Shards {
            shard_terms: RwLock::new(vec![None; usize::from(SHARDS)]),
            gates: (0..SHARDS).map(|_| Gate::new(())).collect(),
        }
    }

    pub(crate) fn shard_term(&self, shard: ShardId) -> Option<ShardTerm> {
        self.shard_terms.read().expect("no holder of this lock panics")[usize::from(shard.0)]
    }

    pub(crate) fn term(&self, shard: ShardId) -> Result<Term, NotOwned> {
        self.shard_term(shard).map(|shard_term| shard_term.term).ok_or(NotOwned(shard))
    }

    pub(crate) fn owned(&self) -> Vec<ShardId> {
        let shard_terms = self.shard_terms.read().expect("no holder of this lock panics");
        (0..SHARDS).map(ShardId).filter(|shard| shard_terms[usize::from(shard.0)].is_some()).collect()
    }

    pub(crate) fn gain(&self, gained: impl IntoIterator<Item = (ShardId, ShardTerm)>) {
        let mut shard_terms = self.shard_terms.write().expect("no holder of this lock panics");
        for (shard, shard_term) in gained {
            shard_terms[usize::from(shard.0)] = Some(shard_term);
        }
    }

    /// Releases these shards, and returns the terms under which this member owned them.
    pub(crate) fn release(&self, shards: &BTreeSet<ShardId>) -> Vec<(ShardId, Term)> {
        let mut shard_terms = self.shard_terms.write().expect("no holder of this lock panics");
        let mut take = |shard: &ShardId| Some((*shard, shard_terms[usize::from(shard.0)].take()?.term));
        shards.iter().filter_map(&mut take).collect()
    }

    /// Returns a guard for an owner-only operation. This member does not hand over the shard until the caller drops the
    /// guard.
    pub(crate) async fn enter(&self, shard: ShardId) -> Result<RwLockReadGuard<'_, ()>, NotOwned> {
        let guard = self.gates[usize::from(shard.0)].read().await;
        self.term(shard).map(|_| guard)
    }

    /// Waits until all guards of these shards are dropped. The caller must already have released the shards.
    pub(crate) async fn wait_until_left(&self, shards: &BTreeSet<ShardId>) {
        for shard in shards {
            drop(self.gates[usize::from(shard.0)].write().await);
        }
    }
}

//! Which shards this member owns, under which terms, and who is in the middle of what only an owner may do.

use std::collections::BTreeSet;
use std::sync::RwLock;

use domain::id::SHARDS;
use domain::{ShardId, Term, Timestamp};
use store::StoreError;
use tokio::sync::{RwLock as Gate, RwLockReadGuard};

use crate::requests::Undone;

/// Under what a shard is owned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardTerm {
    pub(crate) term: Term,
    /// When it began: a row due before may have been fired by an earlier owner.
    pub(crate) since: Timestamp,
}

pub(crate) struct Shards {
    /// By shard.
    shard_terms: RwLock<Vec<Option<ShardTerm>>>,
    /// By shard: held for reading by what must end before the shard is let go of.
    gates: Vec<Gate<()>>,
}

/// A shard is not owned here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotOwned(pub(crate) ShardId);

impl From<NotOwned> for Undone {
    fn from(_: NotOwned) -> Self {
        Undone::NotOwned
    }
}

impl From<NotOwned> for StoreError {
    fn from(NotOwned(shard): NotOwned) -> Self {
        // Another owner has it, or is about to: the same request goes through once that is settled.
        StoreError::Unavailable(format!("shard {} is not owned here", shard.0))
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

    /// From here on none of these is owned; their terms until now.
    pub(crate) fn release(&self, shards: &BTreeSet<ShardId>) -> Vec<(ShardId, Term)> {
        let mut shard_terms = self.shard_terms.write().expect("no holder of this lock panics");
        let mut take = |shard: &ShardId| Some((*shard, shard_terms[usize::from(shard.0)].take()?.term));
        shards.iter().filter_map(&mut take).collect()
    }

    /// For what only the owner may do: the shard is not handed over before the guard is gone.
    pub(crate) async fn enter(&self, shard: ShardId) -> Result<RwLockReadGuard<'_, ()>, NotOwned> {
        let guard = self.gates[usize::from(shard.0)].read().await;
        self.term(shard).map(|_| guard)
    }

    /// Returns once nothing is under way that entered these shards, which are let go of, before.
    pub(crate) async fn left(&self, shards: &BTreeSet<ShardId>) {
        for shard in shards {
            drop(self.gates[usize::from(shard.0)].write().await);
        }
    }
}

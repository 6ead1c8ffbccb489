//! Cache of the states of recently loaded schedules. An owner loads a schedule, fires it and soon writes the outcome.
//! With the cache, the state machine need not look up the schedule's state in the index again.
//!
//! docs/decisions/0044-cache-states-of-loaded-schedules.md gives the reasons for the design.

use std::sync::{Mutex, MutexGuard};

use domain::Incarnation;

use crate::codec::changed::Changed;

const SHARDS: usize = 64;
/// Number of states in each shard of the cache. The whole cache has about twice as many slots as the maximum number of
/// callbacks in flight, and uses 700 KB.
const SLOTS: usize = 128;

/// Cache of the current states of some schedules. The cache returns the same states as the index.
///
/// Readers store the states that they have read. The task that applies journal entries stores each changed state. A
/// state may change after a reader has read it. The cache therefore rejects a reader's state if the shard of the cache
/// has changed since the reader [began](States::begin).
pub(crate) struct States([Mutex<Shard>; SHARDS]);

struct Shard {
    changes: u64,
    slots: Box<[Option<(Incarnation, Changed)>]>,
}

/// Number of changes that a shard of the cache had received when a read of the index began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun(u64);

impl Default for States {
    fn default() -> Self {
        States(std::array::from_fn(|_| Mutex::new(Shard { changes: 0, slots: vec![None; SLOTS].into() })))
    }
}

impl States {
    pub(crate) fn get(&self, incarnation: Incarnation) -> Option<Changed> {
        let known = self.shard(incarnation).slots[slot(incarnation)];
        known.filter(|(known, _)| *known == incarnation).map(|(_, changed)| changed)
    }

    /// Begins a read of a schedule's state. The caller calls this method before it reads the index.
    pub(crate) fn begin(&self, incarnation: Incarnation) -> Begun {
        Begun(self.shard(incarnation).changes)
    }

    pub(crate) fn remember(&self, begun: Begun, incarnation: Incarnation, changed: Changed) {
        let mut shard = self.shard(incarnation);
        if shard.changes == begun.0 {
            shard.slots[slot(incarnation)] = Some((incarnation, changed));
        }
    }

    /// Stores a changed state. The caller calls this method after it has changed the index.
    pub(crate) fn change(&self, incarnation: Incarnation, changed: Changed) {
        let mut shard = self.shard(incarnation);
        shard.changes += 1;
        shard.slots[slot(incarnation)] = Some((incarnation, changed));
    }

    /// Removes the state of a deleted schedule from the cache. The caller calls this method after it has changed the
    /// index.
    pub(crate) fn forget(&self, incarnation: Incarnation) {
        let mut shard = self.shard(incarnation);
        shard.changes += 1;
        let slot = &mut shard.slots[slot(incarnation)];
        if slot.is_some_and(|(known, _)| known == incarnation) {
            *slot = None;
        }
    }

    fn shard(&self, incarnation: Incarnation) -> MutexGuard<'_, Shard> {
        let shard = incarnation.0 % SHARDS as u128;
        self.0[usize::try_from(shard).unwrap_or(0)].lock().expect("no holder of this lock panics")
    }
}

/// Returns the slot of an incarnation. The low bits of an incarnation are random, so the incarnations spread over all
/// slots.
fn slot(incarnation: Incarnation) -> usize {
    usize::try_from(incarnation.0 / SHARDS as u128 % SLOTS as u128).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use domain::{Revision, Status, Timestamp};

    use super::*;
    use stored::schedule::State;

    fn changed(revision: u32) -> Changed {
        let revision = Revision(revision);
        let state = State { revision, status: Status::Active, updated_at: Timestamp::from_millis(1), next: None };
        Changed { state, row: Incarnation(1) }
    }

    #[test]
    fn schedule_cache_rejects_state_that_was_read_before_a_change() {
        let states = States::default();
        let begun = states.begin(Incarnation(1));
        states.change(Incarnation(1), changed(2));
        states.remember(begun, Incarnation(1), changed(1));
        assert_eq!(states.get(Incarnation(1)), Some(changed(2)));
    }

    #[test]
    fn change_of_a_schedule_updates_its_cached_state() {
        let states = States::default();
        states.remember(states.begin(Incarnation(1)), Incarnation(1), changed(1));
        assert_eq!(states.get(Incarnation(1)), Some(changed(1)));
        states.change(Incarnation(1), changed(2));
        assert_eq!(states.get(Incarnation(1)), Some(changed(2)));
    }

    #[test]
    fn cache_slot_contains_the_state_of_only_one_schedule() {
        let states = States::default();
        let other = Incarnation(1 + (SHARDS * SLOTS) as u128);
        states.remember(states.begin(Incarnation(1)), Incarnation(1), changed(1));
        states.remember(states.begin(other), other, changed(3));
        assert_eq!((states.get(Incarnation(1)), states.get(other)), (None, Some(changed(3))));
    }
}

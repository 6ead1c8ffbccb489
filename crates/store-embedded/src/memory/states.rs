//! The states of schedules that were loaded a moment ago: whoever loads one to fire it will book its outcome next, and
//! applying that should not look for its row again.

use std::sync::{Mutex, MutexGuard};

use domain::Incarnation;

use crate::codec::changed::Changed;

const SHARDS: usize = 64;
/// States kept in each shard; in all about twice as many as callbacks are in flight at most, in 700 KB.
const SLOTS: usize = 128;

/// What a schedule is now, for some schedules. What it answers is what the index would.
///
/// Readers remember what they have read, the thread that applies tells what it changes. A reader may have read what is
/// about to change: it remembers nothing if anything in the shard was changed since it [began](States::begin).
pub(crate) struct States([Mutex<Shard>; SHARDS]);

struct Shard {
    changes: u64,
    slots: Box<[Option<(Incarnation, Changed)>]>,
}

/// How often a shard had been changed when a read of the index began.
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

    /// To be called before the index is read.
    pub(crate) fn begin(&self, incarnation: Incarnation) -> Begun {
        Begun(self.shard(incarnation).changes)
    }

    pub(crate) fn remember(&self, begun: Begun, incarnation: Incarnation, changed: Changed) {
        let mut shard = self.shard(incarnation);
        if shard.changes == begun.0 {
            shard.slots[slot(incarnation)] = Some((incarnation, changed));
        }
    }

    /// To be called after the index was changed.
    pub(crate) fn change(&self, incarnation: Incarnation, changed: Changed) {
        let mut shard = self.shard(incarnation);
        shard.changes += 1;
        shard.slots[slot(incarnation)] = Some((incarnation, changed));
    }

    /// It is no more. To be called after the index was changed.
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

/// The low bits of an incarnation are random.
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
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
        let states = States::default();
        let begun = states.begin(Incarnation(1));
        states.change(Incarnation(1), changed(2));
        states.remember(begun, Incarnation(1), changed(1));
        assert_eq!(states.get(Incarnation(1)), Some(changed(2)));
    }

    #[test]
    fn what_is_changed_after_it_was_remembered_is_remembered_as_it_is_now() {
        let states = States::default();
        states.remember(states.begin(Incarnation(1)), Incarnation(1), changed(1));
        assert_eq!(states.get(Incarnation(1)), Some(changed(1)));
        states.change(Incarnation(1), changed(2));
        assert_eq!(states.get(Incarnation(1)), Some(changed(2)));
    }

    #[test]
    fn a_slot_is_of_one_schedule_at_a_time() {
        let states = States::default();
        let other = Incarnation(1 + (SHARDS * SLOTS) as u128);
        states.remember(states.begin(Incarnation(1)), Incarnation(1), changed(1));
        states.remember(states.begin(other), other, changed(3));
        assert_eq!((states.get(Incarnation(1)), states.get(other)), (None, Some(changed(3))));
    }
}

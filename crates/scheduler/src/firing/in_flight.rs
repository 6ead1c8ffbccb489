//! Set of keys in flight. A cancellation checks this set, and a hand-over lists the started attempts in this set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, ShardId, Term, Timestamp};
use store::HandedOver;

const STRIPES: usize = 16;

/// Set of keys in flight. The owner adds a key before the run executor reads the key's schedule, and removes the key
/// after the key's outcome is durable. The set also contains the attempts that an earlier owner has in flight.
///
/// A cancellation must be durable *before* it checks the set. It then misses no attempt: if the owner adds a key after
/// the check, the run executor reads the cancelled schedule and starts no attempt. An attempt starts only if its key is
/// still in the set. [`InFlight::release`] therefore returns every key whose attempt has started. The attempts of the
/// other removed keys never start.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    stripes: [Mutex<BTreeMap<Occurrence, Attempt>>; STRIPES],
}

#[derive(Debug)]
struct Attempt {
    poller: PollerId,
    key: DueKey,
    /// Term of the owner that starts the attempt. `None` if an earlier owner has started the attempt.
    term: Option<Term>,
    /// Latest possible end of the attempt. `None` until the attempt starts.
    until: Option<Timestamp>,
}

impl InFlight {
    /// Adds a key that the dispatch queue has selected.
    ///
    /// # Panics
    /// Panics if the occurrence is in flight already.
    pub(crate) fn add(&self, poller: PollerId, key: DueKey, term: Term) {
        self.insert(Attempt { poller, key, term: Some(term), until: None });
    }

    /// Adds an attempt that an earlier owner has in flight.
    ///
    /// # Panics
    /// Panics if the occurrence is in flight already.
    pub(crate) fn add_handed_over(&self, attempt: HandedOver) {
        let HandedOver { poller, key, until } = attempt;
        self.insert(Attempt { poller, key, term: None, until: Some(until) });
    }

    fn insert(&self, attempt: Attempt) {
        let occurrence = attempt.key.occurrence;
        let known = self.stripe(occurrence.incarnation).insert(occurrence, attempt);
        assert!(known.is_none(), "an occurrence is in flight at most once: {occurrence:?}");
    }

    /// Records that an attempt starts and will end by `until`. Returns `false` if the owner has released the attempt's
    /// shard, even if this member has taken the shard again under a later term. In this case, the attempt must not
    /// start.
    #[must_use]
    pub(crate) fn begin(&self, occurrence: &Occurrence, term: Term, until: Timestamp) -> bool {
        match self.stripe(occurrence.incarnation).get_mut(occurrence) {
            Some(attempt) if attempt.term == Some(term) => {
                attempt.until = Some(until);
                true
            }
            Some(_) | None => false,
        }
    }

    /// # Panics
    /// Panics if the occurrence is not in flight.
    pub(crate) fn remove(&self, occurrence: &Occurrence) {
        let known = self.stripe(occurrence.incarnation).remove(occurrence);
        assert!(known.is_some(), "a removed occurrence was in flight: {occurrence:?}");
    }

    pub(crate) fn contains(&self, incarnation: Incarnation) -> bool {
        let first = Occurrence {
            incarnation,
            nominal: Timestamp::from_millis(i64::MIN),
            revision: Revision::default(),
            replay: 0,
        };
        let stripe = self.stripe(incarnation);
        stripe.range(first..).next().is_some_and(|(occurrence, _)| occurrence.incarnation == incarnation)
    }

    /// Returns true if an occurrence of the schedule at the instant `nominal` is in flight.
    pub(crate) fn contains_at(&self, incarnation: Incarnation, nominal: Timestamp) -> bool {
        let first = Occurrence { incarnation, nominal, revision: Revision::default(), replay: 0 };
        let next = |stripe: &BTreeMap<Occurrence, Attempt>| stripe.range(first..).next().map(|(of, _)| *of);
        next(&self.stripe(incarnation)).is_some_and(|of| (of.incarnation, of.nominal) == (incarnation, nominal))
    }

    /// Removes the keys of these shards, and returns the attempts that have started. The attempts of the other removed
    /// keys never start.
    pub(crate) fn release(&self, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
        let mut started = Vec::new();
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().expect("no holder of this lock panics");
            stripe.retain(|_, Attempt { poller, key, until, term: _ }| {
                let is_released = shards.contains(&poller.shard());
                if let Some(until) = until.filter(|_| is_released) {
                    started.push(HandedOver { poller: *poller, key: *key, until });
                }
                !is_released
            });
        }
        started
    }

    pub(crate) fn clear(&self) {
        for stripe in &self.stripes {
            stripe.lock().expect("no holder of this lock panics").clear();
        }
    }

    fn stripe(&self, incarnation: Incarnation) -> MutexGuard<'_, BTreeMap<Occurrence, Attempt>> {
        let stripe = &self.stripes[usize::try_from(incarnation.0 % STRIPES as u128).unwrap_or(0)];
        stripe.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use domain::{TargetKey, TenantId};

    use super::*;

    fn poller(number: u16) -> PollerId {
        PollerId { tenant: TenantId(1), generation: 0, number }
    }

    fn key(incarnation: u128, nominal: i64) -> DueKey {
        let nominal = Timestamp::from_millis(nominal);
        let occurrence =
            Occurrence { incarnation: Incarnation(incarnation), nominal, revision: Revision(0), replay: 0 };
        DueKey { position: nominal, occurrence, attempt: 1, target: TargetKey(1) }
    }

    #[test]
    fn schedule_is_in_flight_while_any_of_its_occurrences_is_in_flight() {
        let in_flight = InFlight::default();
        // The incarnations 16, 32 and 48 share one of the maps in `stripes`.
        for incarnation in [16, 32, 48] {
            in_flight.add(poller(0), key(incarnation, 5), Term(1));
        }
        in_flight.add(poller(0), key(32, 6), Term(1));
        in_flight.remove(&key(32, 5).occurrence);
        assert!(in_flight.contains(Incarnation(32)));
        in_flight.remove(&key(32, 6).occurrence);
        assert!(!in_flight.contains(Incarnation(32)));
        assert!(in_flight.contains(Incarnation(16)) && in_flight.contains(Incarnation(48)));
    }

    #[test]
    fn release_of_a_shard_returns_its_started_attempts() {
        let in_flight = InFlight::default();
        let until = Timestamp::from_millis(100);
        let (leaving, staying) = (poller(0), poller(1));
        assert_ne!(leaving.shard(), staying.shard());
        for number in 0..40 {
            in_flight.add(if number % 2 == 0 { leaving } else { staying }, key(number, 5), Term(1));
        }
        for number in 0..20 {
            assert!(in_flight.begin(&key(number, 5).occurrence, Term(1), until));
        }
        let mut released = in_flight.release(&BTreeSet::from([leaving.shard()]));
        released.sort_by_key(|attempt| attempt.key);
        let expected = (0..20).step_by(2).map(|number| HandedOver { poller: leaving, key: key(number, 5), until });
        assert_eq!(released, expected.collect::<Vec<_>>());
        for number in 20..40 {
            assert_eq!(in_flight.begin(&key(number, 5).occurrence, Term(1), until), number % 2 == 1);
        }
    }

    #[test]
    fn attempt_does_not_start_under_an_old_term() {
        let in_flight = InFlight::default();
        let (until, occurrence) = (Timestamp::from_millis(100), key(1, 5).occurrence);
        in_flight.add(poller(0), key(1, 5), Term(1));
        in_flight.release(&BTreeSet::from([poller(0).shard()]));
        in_flight.add(poller(0), key(1, 5), Term(3));
        assert!(!in_flight.begin(&occurrence, Term(1), until), "the key belongs to the later owner");
        assert!(in_flight.begin(&occurrence, Term(3), until));
        in_flight.release(&BTreeSet::from([poller(0).shard()]));
        in_flight.add_handed_over(HandedOver { poller: poller(0), key: key(1, 5), until });
        assert!(!in_flight.begin(&occurrence, Term(3), until), "an earlier owner has the attempt in flight");
    }
}

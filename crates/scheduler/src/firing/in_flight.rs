//! What is in flight: asked by whoever answers a cancellation, and handed over with a shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, ShardId, Term, Timestamp};
use store::HandedOver;

const STRIPES: usize = 16;

/// The keys from before their schedule is read until their outcome is durable, those that an earlier owner has in flight
/// among them.
///
/// A cancellation that is durable *before* it looks here misses no attempt: one that is not here yet reads the
/// schedule after the cancellation, and does not start. And an attempt begins only if it is still here, so that what was
/// taken out for another owner ([`InFlight::release`]) either has begun, and is told, or never begins.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    stripes: [Mutex<BTreeMap<Occurrence, Attempt>>; STRIPES],
}

#[derive(Debug)]
struct Attempt {
    poller: PollerId,
    key: DueKey,
    /// Of the owner that is to begin it; `None` if an earlier one has.
    term: Option<Term>,
    /// When it will have ended, once it has begun.
    until: Option<Timestamp>,
}

impl InFlight {
    /// A key has its turn.
    ///
    /// # Panics
    /// If one of the same occurrence is here.
    pub(crate) fn add(&self, poller: PollerId, key: DueKey, term: Term) {
        self.insert(Attempt { poller, key, term: Some(term), until: None });
    }

    /// An attempt that an earlier owner has in flight.
    ///
    /// # Panics
    /// As [`InFlight::add`].
    pub(crate) fn hold(&self, held: HandedOver) {
        let HandedOver { poller, key, until } = held;
        self.insert(Attempt { poller, key, term: None, until: Some(until) });
    }

    fn insert(&self, attempt: Attempt) {
        let occurrence = attempt.key.occurrence;
        let known = self.stripe(occurrence.incarnation).insert(occurrence, attempt);
        assert!(known.is_none(), "an occurrence is in flight once: {occurrence:?}");
    }

    /// An attempt is about to begin, and will have ended at `until`. `false` if its shard was let go of: then it must not,
    /// even if the shard has come back under a later term, as what is here then is another attempt.
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
    /// If it is not here.
    pub(crate) fn remove(&self, occurrence: &Occurrence) {
        let known = self.stripe(occurrence.incarnation).remove(occurrence);
        assert!(known.is_some(), "what leaves was in flight: {occurrence:?}");
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

    /// Takes out what is of these shards: what has begun is told, and the rest will not begin.
    pub(crate) fn release(&self, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
        let mut begun = Vec::new();
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().expect("no holder of this lock panics");
            stripe.retain(|_, Attempt { poller, key, until, term: _ }| {
                let leaves = shards.contains(&poller.shard());
                if let Some(until) = until.filter(|_| leaves) {
                    begun.push(HandedOver { poller: *poller, key: *key, until });
                }
                !leaves
            });
        }
        begun
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
    fn a_schedule_is_in_flight_as_long_as_one_of_its_occurrences_is() {
        let in_flight = InFlight::default();
        // The neighbours lie in the same stripe.
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
    fn what_has_begun_is_told_when_its_shard_goes_and_what_has_not_never_begins() {
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
        let mut told = in_flight.release(&BTreeSet::from([leaving.shard()]));
        told.sort_by_key(|attempt| attempt.key);
        let begun = (0..20).step_by(2).map(|number| HandedOver { poller: leaving, key: key(number, 5), until });
        assert_eq!(told, begun.collect::<Vec<_>>());
        for number in 20..40 {
            assert_eq!(in_flight.begin(&key(number, 5).occurrence, Term(1), until), number % 2 == 1);
        }
    }

    #[test]
    fn what_was_let_go_of_does_not_begin_when_its_shard_comes_back() {
        let in_flight = InFlight::default();
        let (until, occurrence) = (Timestamp::from_millis(100), key(1, 5).occurrence);
        in_flight.add(poller(0), key(1, 5), Term(1));
        in_flight.release(&BTreeSet::from([poller(0).shard()]));
        in_flight.add(poller(0), key(1, 5), Term(3));
        assert!(!in_flight.begin(&occurrence, Term(1), until), "it is the later owner's");
        assert!(in_flight.begin(&occurrence, Term(3), until));
        in_flight.release(&BTreeSet::from([poller(0).shard()]));
        in_flight.hold(HandedOver { poller: poller(0), key: key(1, 5), until });
        assert!(!in_flight.begin(&occurrence, Term(3), until), "it is held");
    }
}

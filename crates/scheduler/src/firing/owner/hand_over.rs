//! Gain and release of shards by the owner.
//!
//! A gained shard may have attempts in flight at the previous owner. The owner registers these *handed-over* attempts
//! as in flight, and repeats such an attempt only after the instant by which the attempt must have ended. If the
//! previous owner sends the outcome earlier, this outcome resolves the attempt. The owner forgets a released shard at
//! once: it starts no further attempt of the shard, and returns the list of attempts that have started.
//!
//! docs/decisions/0007-hand-over-attempts-in-flight.md gives the reasons for the design.

use std::collections::BTreeSet;

use domain::{PollerId, RunOrigin, ShardId, Term, Timestamp};
use store::{Change, HandedOver, OwnerWrite};

use crate::cluster::shards::ShardTerm;
use crate::firing::messages::{Gained, PendingWrite, Then};
use crate::firing::owner::Owner;
use crate::requests::AttemptOutcome;

impl Owner {
    pub(super) fn gain(&mut self, gained: Gained) {
        let Gained { shards, pollers, handed_over, taken_at } = gained;
        self.latest = self.latest.max(taken_at);
        self.pollers_changed = true;
        self.shards = self.shards.iter().copied().chain(shards).collect::<BTreeSet<_>>().into_iter().collect();
        self.insert_log_read_incomplete = self.insert_log_read_pending;
        for (id, shard_term, positions) in pollers {
            // Two messages may contain the same new poller of a tenant. The owner adds such a poller only once.
            if !self.window.has_poller(id) {
                self.window.add_poller(id, shard_term, positions);
            }
        }
        for attempt in handed_over {
            self.add_handed_over(attempt);
        }
        self.reads_wanted = true;
    }

    fn add_handed_over(&mut self, attempt: HandedOver) {
        if let Some(entry) = self.window.add_handed_over(attempt.poller, attempt.key) {
            self.context.in_flight.add_handed_over(attempt);
            self.handed_over.insert(attempt.key.occurrence, (entry, attempt.until));
        }
    }

    /// Repeats the handed-over attempts whose outcomes did not arrive in time.
    pub(super) fn expire_handed_over(&mut self, now: Timestamp) {
        if self.handed_over.is_empty() {
            return;
        }
        let over = self.handed_over.extract_if(.., |_, (_, until)| *until <= now);
        for (occurrence, (entry, _)) in over {
            self.context.in_flight.remove(&occurrence);
            self.window.wait_again(entry, now);
        }
    }

    /// Accepts the outcome of a handed-over attempt. `origin` is the origin of the run, if it is known. Returns
    /// `false` if the owner expects no outcome of this attempt.
    pub(super) fn accept_outcome(&mut self, outcome: AttemptOutcome, origin: Option<RunOrigin>) -> bool {
        let AttemptOutcome { poller: _, run, mut then, ends } = outcome;
        let occurrence = run.occurrence;
        let Some((entry, _)) = self.handed_over.get(&occurrence).copied() else { return false };
        let known = self.window.entry(entry);
        if run.attempts.last().is_none_or(|attempt| attempt.number != known.key.attempt) {
            return false;
        }
        let (poller, ShardTerm { term, .. }) = self.window.poller(known.poller);
        // The clock may have been ahead during the attempt. The retry then moves back with the clock.
        let ahead = run.attempts.last().map(|attempt| attempt.started_at.since(self.context.clock.now()));
        if let (Some(retry), Some(ahead)) = (&mut then, ahead) {
            retry.position = (retry.position - ahead).max(occurrence.nominal);
        }
        self.handed_over.remove(&occurrence);
        self.dispatch.add_unresolved(poller.tenant);
        let origin = origin.filter(|_| run.state.is_final());
        let change = Change::Run { run, then, ends, origin };
        self.unsent.push_back(PendingWrite { write: OwnerWrite { term, poller, change }, then: Then::Resolve(entry) });
        true
    }

    /// Forgets these shards. Returns the started attempts of these shards.
    pub(super) fn release(&mut self, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
        self.pollers_changed = true;
        let in_flight = self.context.in_flight.release(shards);
        self.shards = self.shards.iter().copied().filter(|shard| !shards.contains(shard)).collect();
        self.window.release(shards);
        let window = &mut self.window;
        for entry in self.dispatch.remove_released(|entry| window.is_released(entry)) {
            window.free(entry);
        }
        self.to_defer.retain(|(entry, _)| {
            let is_released = window.is_released(*entry);
            if is_released {
                window.free(*entry);
            }
            !is_released
        });
        self.handed_over.retain(|_, (entry, _)| {
            let is_released = window.is_released(*entry);
            if is_released {
                window.free(*entry);
            }
            !is_released
        });
        in_flight
    }

    /// Handles a write that the store rejected because the shard has a later owner. The later owner may be this member
    /// under a later term.
    pub(super) fn superseded(&mut self, poller: PollerId, term: Term, outcome: Option<AttemptOutcome>) {
        if self.window.shard_term(poller).is_some_and(|shard_term| shard_term.term == term) {
            let shard = poller.shard().0;
            if term.epoch() < self.context.store.epoch() {
                tracing::debug!(shard, "a new epoch of the store has begun; this owner releases the shard");
            } else {
                tracing::warn!(shard, "shard has an owner under a later term; this owner releases the shard");
            }
            self.release(&BTreeSet::from([poller.shard()]));
            self.context.events.report_superseded(poller.shard(), term);
        }
        if let Some(outcome) = outcome {
            self.context.events.report_outcome(outcome);
        }
    }
}

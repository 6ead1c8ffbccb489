//! How shards come to an owner, and how they go.
//!
//! What comes may have attempts in flight at the owner before. They are *held*: known, counted as in flight, and made
//! again only when they have ended in any case; their outcome, told by that owner, settles them sooner. What goes is
//! forgotten at once: nothing of it starts any more, and what had begun goes along as a list.

use std::collections::BTreeSet;

use domain::{PollerId, ShardId, Term, Timestamp};
use store::{Change, HandedOver, OwnerWrite};

use crate::cluster::shards::ShardTerm;
use crate::firing::messages::{Gained, PendingWrite, Then};
use crate::firing::owner::Owner;
use crate::requests::AttemptOutcome;

impl Owner {
    pub(super) fn gain(&mut self, gained: Gained) {
        let Gained { shards, pollers, held } = gained;
        self.shares_moved = true;
        self.shards = self.shards.iter().copied().chain(shards).collect::<BTreeSet<_>>().into_iter().collect();
        self.arrivals_incomplete = self.arrivals_under_way;
        for (id, shard_term, positions) in pollers {
            // A tenant's new poller may be told of twice.
            if !self.window.has_poller(id) {
                self.window.add_poller(id, shard_term, positions);
            }
        }
        for attempt in held {
            self.hold(attempt);
        }
        self.reads_wanted = true;
    }

    fn hold(&mut self, attempt: HandedOver) {
        if let Some(entry) = self.window.hold(attempt.poller, attempt.key) {
            self.context.in_flight.hold(attempt);
            self.held.insert(attempt.key.occurrence, (entry, attempt.until));
        }
    }

    /// Those whose outcome has not come in time are made again.
    pub(super) fn end_holds(&mut self, now: Timestamp) {
        if self.held.is_empty() {
            return;
        }
        let over = self.held.extract_if(.., |_, (_, until)| *until <= now);
        for (occurrence, (entry, _)) in over {
            self.context.in_flight.remove(&occurrence);
            self.window.wait_again(entry, now);
        }
    }

    /// Whether somebody waited for it.
    pub(super) fn take_outcome(&mut self, outcome: AttemptOutcome) -> bool {
        let AttemptOutcome { poller: _, run, then, ends } = outcome;
        let occurrence = run.occurrence;
        let Some((entry, _)) = self.held.get(&occurrence).copied() else { return false };
        let held = self.window.entry(entry);
        if run.attempts.last().is_none_or(|attempt| attempt.number != held.key.attempt) {
            return false;
        }
        let (poller, ShardTerm { term, .. }) = self.window.poller(held.poller);
        self.held.remove(&occurrence);
        self.unsettled += 1;
        let change = Change::Run { run, then, ends };
        self.outcomes.push(PendingWrite { write: OwnerWrite { term, poller, change }, then: Then::Resolve(entry) });
        true
    }

    /// Forgets these shards; the attempts of theirs that have begun.
    pub(super) fn release(&mut self, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
        self.shares_moved = true;
        let begun = self.context.in_flight.release(shards);
        self.shards = self.shards.iter().copied().filter(|shard| !shards.contains(shard)).collect();
        self.window.release(shards);
        let window = &mut self.window;
        for entry in self.dispatch.take_gone(|entry| window.is_gone(entry)) {
            window.free(entry);
        }
        self.to_defer.retain(|entry| {
            let is_gone = window.is_gone(*entry);
            if is_gone {
                window.free(*entry);
            }
            !is_gone
        });
        self.held.retain(|_, (entry, _)| {
            let is_gone = window.is_gone(*entry);
            if is_gone {
                window.free(*entry);
            }
            !is_gone
        });
        begun
    }

    /// A write was refused: the shard has a later owner, whether or not that is known here. That may be this one again,
    /// under a later term.
    pub(super) fn superseded(&mut self, poller: PollerId, term: Term, outcome: Option<AttemptOutcome>) {
        if self.window.shard_term(poller).is_some_and(|shard_term| shard_term.term == term) {
            tracing::warn!(shard = poller.shard().0, "another owner has taken a shard");
            self.release(&BTreeSet::from([poller.shard()]));
            self.context.events.report_superseded(poller.shard(), term);
        }
        if let Some(outcome) = outcome {
            self.context.events.report_outcome(outcome);
        }
    }
}

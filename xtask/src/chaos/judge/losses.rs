//! Effects of a fail-over to a standby that lacks the last commits. A database loses requests, outcomes of attempts and
//! runs in such a fail-over. Every effect has limits:
//!
//! - Only a request that the service may have handled in the interval of the lost commits can be undone.
//! - Only an attempt whose outcome may have been recorded in this interval, or that an earlier owner started, can be
//!   repeated.
//! - The loss has no effect before the last process of the primary has ended.
//!
//! docs/decisions/0219-judge-lossy-fail-overs-by-the-interval-of-lost-commits.md gives the reasons for the design.

use super::super::log::{Callback, Fault, Loss, Request};
use super::super::member::LEASE_SECONDS;
use super::{History, Records};

/// Maximum time in milliseconds from the end of the primary until an earlier owner notices that it has lost its shards.
/// The owner acts until its lease ends, or, if it reaches the new primary before, until it compares its terms with the
/// epoch, once per second.
const EARLIER_OWNERS_MS: u64 = 1_000 * LEASE_SECONDS + 1_000;
/// Number of low bits of a term that count the owners of a shard. The high bits are the epoch.
const COUNT_BITS: u32 = 20;

/// Returns the last instant at which an owner from before the fail-over may start an attempt.
pub(in super::super) fn earlier_owners_until(lost: Loss) -> u64 {
    lost.until_ms + EARLIER_OWNERS_MS
}

/// Loss, with the highest epoch of the callbacks that started before the end of the primary.
pub(super) struct Failover {
    pub(super) lost: Loss,
    epoch: u64,
}

impl Failover {
    pub(super) fn of<'a>(faults: &[Fault], callbacks: impl Iterator<Item = &'a Callback> + Clone) -> Vec<Failover> {
        let with_epoch = |lost: Loss| {
            let before = callbacks.clone().filter(|callback| callback.started_ms < lost.until_ms);
            Failover { lost, epoch: before.map(epoch).max().unwrap_or(0) }
        };
        faults.iter().filter_map(|fault| fault.lost).map(with_epoch).collect()
    }

    /// Returns true if an owner that had not yet noticed the fail-over may have sent the callback.
    pub(super) fn is_by_earlier_owner(&self, callback: &Callback) -> bool {
        let between = self.lost.until_ms..=earlier_owners_until(self.lost);
        between.contains(&callback.started_ms) && epoch(callback) <= self.epoch
    }
}

fn epoch(callback: &Callback) -> u64 {
    callback.term >> COUNT_BITS
}

impl Records {
    /// Returns the first loss that may have undone the request. Returns `None` if the database has certainly kept its
    /// effect.
    pub(in super::super) fn loss_of(&self, request: &Request) -> Option<Loss> {
        let mut losses = self.failovers.iter().map(|failover| failover.lost);
        let overlaps = |lost: &Loss| request.asked_ms <= lost.until_ms && lost.from_ms <= request.answered_ms;
        losses.find(|lost| !request.is_kept && overlaps(lost))
    }

    /// Returns true if the database may lack the effect of the request at this instant.
    pub(super) fn is_undone_at(&self, request: &Request, at_ms: u64) -> bool {
        self.loss_of(request).is_some_and(|lost| lost.until_ms <= at_ms)
    }

    /// Returns true if the database may have lost a request that created or replaced the schedule. A later callback of
    /// the request's version shows that the database has kept the request.
    pub(super) fn may_lack(&self, history: &History, request: &Request) -> bool {
        let is_later = |callback: &&Callback, lost: Loss| {
            callback.version == request.version && callback.started_ms > earlier_owners_until(lost)
        };
        self.loss_of(request).is_some_and(|lost| !history.callbacks.iter().any(|callback| is_later(&callback, lost)))
    }

    /// Returns true if a fail-over permits the callback although the response to the request forbids it.
    pub(super) fn loss_permits(&self, request: &Request, callback: &Callback) -> bool {
        let is_of_earlier_owner = |failover: &Failover| {
            request.answered_ms >= failover.lost.until_ms && failover.is_by_earlier_owner(callback)
        };
        self.is_undone_at(request, callback.started_ms) || self.failovers.iter().any(is_of_earlier_owner)
    }

    /// Returns true if the database may lack the record that the attempt started. Another fault may have delayed this
    /// record until after the beginning of the loss.
    pub(super) fn may_lack_attempt(&self, callback: &Callback) -> bool {
        let interrupting = || self.faults.iter().filter(|fault| fault.interrupted(callback));
        let delayed_ms = interrupting().filter_map(|fault| Some(fault.interrupts()?.1)).max().unwrap_or(0);
        let reaches = |lost: Loss| callback.started_ms <= earlier_owners_until(lost) && lost.from_ms <= delayed_ms;
        self.faults.iter().filter_map(|fault| fault.lost).any(reaches)
    }
}

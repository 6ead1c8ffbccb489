//! Lane: the keys of one tenant for one target, with the state of their limits.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::Timestamp;
use domain::quota::TokenBucket;
use runtime::Monotonic;

use super::Now;
use super::blocked::Blocked;
use super::circuit::Circuit;
use super::limits::{self, Limits};

#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// Keys in the order in which they start. The owner may push an older key after a later key, because it reads the
    /// rows of each poller separately.
    pub(super) queue: BTreeMap<Place, Parked>,
    pub(super) in_flight: usize,
    pub(super) bucket: TokenBucket,
    pub(super) circuit: Circuit,
    /// Latest period in which a limit of the lane or its circuit blocked its keys.
    pub(super) blocked: Blocked,
    /// True if the lane is in its tenant's `turns`.
    pub(super) has_turn: bool,
    pub(super) waits_until: Option<Monotonic>,
    /// Number of attempts of the lane that have ended since `counted_from`.
    pub(super) ended: u32,
    pub(super) counted_from: Timestamp,
    /// Number of attempts that ended per second, in the interval before `counted_from`.
    pub(super) per_second: u32,
    /// Position of the first key in the current series of deferred keys. The distance between the positions of two
    /// successive keys corresponds to the rate at which the lane ends attempts.
    pub(super) deferred_from: Timestamp,
    /// Number of the lane's keys that the dispatch queue has deferred since it set `deferred_from`.
    pub(super) deferred: u64,
    /// Position of the last deferred key.
    pub(super) deferred_to: Timestamp,
}

/// Place of a key in the queue of its lane. Older keys come first. Keys with equal positions come in the order in which
/// the owner pushed them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) position: Timestamp,
    /// Number of keys that the owner pushed before this key.
    pub(super) pushed: u64,
}

/// Key that waits in the queue of its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    /// Number of the key in the window.
    pub(super) entry: u32,
    /// Value of `Dispatch::checks` when the owner pushed the key. If a later key of the lane was waiting then, this is
    /// the value of that key. The first key of a lane therefore shows the longest wait of all the lane's keys.
    pub(super) since: u32,
}

impl LaneState {
    pub(super) fn in_flight_max(&self, limits: &Limits) -> usize {
        if self.circuit.is_probing() { 1 } else { limits.in_flight_per_target }
    }

    /// Returns `Ok` if the lane may start a key now. Otherwise returns the instant from which the lane may start a key.
    pub(super) fn may_start(&self, limits: &Limits, now: Monotonic) -> Result<(), Monotonic> {
        match self.circuit.open_until(now) {
            Some(until) => Err(until),
            None => limits::has_token(limits.rate_per_target, &self.bucket, now),
        }
    }

    /// Returns true if the lane's state equals that of a new lane.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        self.in_flight == 0
            && self.queue.is_empty()
            && self.waits_until.is_none()
            && self.deferred_to <= now.wall
            && self.bucket.is_full(now.monotonic.since_start())
            && self.circuit.is_forgotten(now.monotonic)
    }

    pub(super) fn count_end(&mut self, now: Timestamp) {
        self.ended = self.ended.saturating_add(1);
        let counted_for = now.since(self.counted_from);
        if counted_for >= Duration::from_secs(1) {
            let seconds = u32::try_from(counted_for.as_secs()).unwrap_or(u32::MAX).max(1);
            self.per_second = self.ended / seconds;
            self.ended = 0;
            self.counted_from = now;
        }
    }
}

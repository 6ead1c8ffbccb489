//! Deferral of keys that wait too long for their target, and the early start of these keys when the target recovers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use domain::{DueKey, Timestamp};

use super::{Dispatch, Lane, LaneState, Now};
use crate::firing::window::PollerIndex;

/// Largest number of deferred keys of a lane that start early in one period. A lane with at least as many keys in its
/// queue starts no deferred key early.
pub(super) const EARLY_KEYS: usize = 2_048;

/// Largest number of remembered keys. A key needs about 70 bytes.
const REMEMBERED_MAX: usize = 262_144;

/// Key whose row is durable at a later position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeferredKey {
    pub(crate) poller: PollerIndex,
    pub(crate) key: DueKey,
}

/// Remembered keys by lane, in the order in which the owner deferred them.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    lanes: BTreeMap<Lane, VecDeque<DeferredKey>>,
    len: usize,
}

impl Deferred {
    /// Remembers a key, unless there are too many remembered keys. Such a key starts at its position.
    pub(super) fn remember(&mut self, lane: Lane, key: DeferredKey) {
        if self.len < REMEMBERED_MAX {
            self.lanes.entry(lane).or_default().push_back(key);
            self.len += 1;
        }
    }

    /// Forgets the keys whose positions are at or before `now`. Then removes at most `limit` keys of each lane for which
    /// `is_free` returns true, and returns these keys.
    pub(super) fn take(&mut self, now: Timestamp, limit: usize, is_free: impl Fn(Lane) -> bool) -> Vec<DeferredKey> {
        let mut taken = Vec::new();
        self.lanes.retain(|lane, keys| {
            let before = keys.len();
            while keys.front().is_some_and(|first| first.key.position <= now) {
                keys.pop_front();
            }
            if !keys.is_empty() && is_free(*lane) {
                taken.extend(keys.drain(..limit.min(keys.len())));
            }
            self.len -= before - keys.len();
            !keys.is_empty()
        });
        taken
    }
}

impl Dispatch {
    /// Removes at most `limit` keys that wait too long, and returns them. The caller calls this function once per
    /// `period`.
    ///
    /// If a key of a lane has waited for more than `periods` calls, the lane keeps the oldest keys that it can start in as
    /// many periods. The caller defers the others.
    pub(crate) fn take_overdue(&mut self, periods: u32, period: Duration, limit: usize, now: Now) -> Vec<u32> {
        self.checks += 1;
        let kept_seconds = period.saturating_mul(periods).as_secs();
        let mut taken = Vec::new();
        for ((tenant, target), state) in &mut self.lanes {
            let tenant = self.tenants.get_mut(tenant).expect("the tenant of a lane exists");
            let kind = target.kind();
            // Keys wait long only in a lane without a turn, for example if the lane has reached its limit or its target
            // fails, or in a lane of a kind that has reached its limit. The dispatch queue starts the keys of any other lane
            // as fast as this member and the tenant's limits permit.
            let may_start = state.has_turn && !tenant.kinds.is_blocked(kind, &tenant.limits);
            let waits_long =
                state.queue.first_key_value().is_some_and(|(_, first)| self.checks - first.since > periods);
            if may_start || !waits_long {
                continue;
            }
            let kept = usize::try_from(u64::from(state.per_second).saturating_mul(kept_seconds)).unwrap_or(usize::MAX);
            let removed = state.queue.len().saturating_sub(kept).min(limit - taken.len());
            let before = taken.len();
            let latest = std::iter::from_fn(|| state.queue.pop_last()).take(removed);
            taken.extend(latest.map(|(_, key)| key.entry));
            taken[before..].reverse();
            self.parked -= removed;
            tenant.parked -= removed;
            if state.has_turn && state.queue.is_empty() {
                state.has_turn = false;
                tenant.kinds.of(kind).turns.retain(|turn| turn != target);
            }
        }
        self.lanes.retain(|_, state| !state.is_idle(now));
        taken
    }

    /// Returns the position for a deferred key of this lane. The first deferred key is due after the time that the lane
    /// needs for its keys in memory. The next deferred keys follow at the rate at which the lane ends attempts. The
    /// lane therefore probably has a free slot when a deferred key is due.
    pub(crate) fn defer_to(&mut self, lane: Lane, now: Timestamp) -> Timestamp {
        const SOONEST: Duration = Duration::from_secs(1);
        let latest = now + self.defer_max.max(SOONEST);
        let state = self.lanes.entry(lane).or_default();
        let at_rate =
            |keys: u64| Duration::from_millis(keys.saturating_mul(1_000) / u64::from(state.per_second.max(1)));
        let waiting = u64::try_from(state.queue.len()).unwrap_or(u64::MAX);
        let next = state.deferred_from + at_rate(state.deferred);
        // If the next position would be later than `latest`, the positions start again at the earliest position. The
        // deferred keys therefore spread evenly over the permitted time.
        if next > latest || next < now + SOONEST {
            state.deferred_from = (now + at_rate(waiting)).clamp(now + SOONEST, latest);
            state.deferred = 0;
        }
        state.deferred_to = state.deferred_from + at_rate(state.deferred);
        state.deferred += 1;
        state.deferred_to
    }

    /// Remembers a key that the owner has deferred because the key waited for its target.
    pub(crate) fn remember(&mut self, lane: Lane, key: DeferredKey) {
        self.deferred.remember(lane, key);
    }

    /// Returns deferred keys that can start before their positions, because their lanes have free slots and only few keys
    /// in their queues. The caller calls this function once per period, and then adds the keys to the window.
    ///
    /// The positions of deferred keys follow from the rate of a slow or failing target. If the target recovers, its keys
    /// do not wait for these positions.
    pub(crate) fn take_early(&mut self, now: Now) -> Vec<DeferredKey> {
        let (lanes, tenants) = (&self.lanes, &self.tenants);
        self.deferred.take(now.wall, EARLY_KEYS, |lane| {
            let Some(tenant) = tenants.get(&lane.0) else { return true };
            let is_free = |state: &LaneState| {
                state.waits_until.is_none()
                    && !state.circuit.is_probing()
                    && state.in_flight < state.in_flight_max(&tenant.limits)
                    && state.queue.len() < EARLY_KEYS
            };
            let is_blocked = tenant.waits_until.is_some() || tenant.kinds.is_blocked(lane.1.kind(), &tenant.limits);
            !is_blocked && lanes.get(&lane).is_none_or(is_free)
        })
    }
}

//! Who goes next: fair between tenants, fair between a tenant's targets, limited per target.
//!
//! A pure queue. Keys wait in a queue per (tenant, target); a target with a free slot takes its turn among its tenant's
//! targets, the tenant takes its turn among tenants, one key a turn. A full target parks only its own keys.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use domain::{TargetKey, TenantId, Timestamp};

/// Where a limit is counted.
pub(crate) type Lane = (TenantId, TargetKey);

#[derive(Debug)]
pub(crate) struct Dispatch {
    in_flight_per_target: usize,
    in_flight_max: usize,
    parked_per_target: usize,
    window_keys_max: usize,
    defer_max: Duration,
    in_flight: usize,
    parked: usize,
    lanes: BTreeMap<Lane, LaneState>,
    /// Tenants with a lane that may start something, each once.
    tenants: VecDeque<TenantId>,
    /// Of each such tenant, those lanes, each once.
    turns: BTreeMap<TenantId, VecDeque<TargetKey>>,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Window entries and their positions, in the order in which they became ready.
    queue: VecDeque<(u32, Timestamp)>,
    in_flight: usize,
    /// It stands in `turns`.
    has_turn: bool,
    /// How many ended in the second that began at `counted_from`, and the rate seen in the seconds before.
    ended: u32,
    counted_from: Timestamp,
    per_second: u32,
    /// Deferred keys are put behind this instant, at the lane's rate.
    deferred_from: Timestamp,
    /// How many were put there.
    deferred: u64,
    /// Where the last one is.
    deferred_to: Timestamp,
}

impl Dispatch {
    pub(crate) fn new(options: &crate::Options) -> Self {
        Dispatch {
            in_flight_per_target: options.in_flight_per_target.max(1),
            in_flight_max: options.in_flight_max.max(1),
            parked_per_target: options.parked_per_target.max(1),
            window_keys_max: options.window_keys_max,
            defer_max: options.defer_max,
            in_flight: 0,
            parked: 0,
            lanes: BTreeMap::new(),
            tenants: VecDeque::new(),
            turns: BTreeMap::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// Queues a key; `false` if its target's queue is full: the key is to be deferred.
    pub(crate) fn push(&mut self, lane: Lane, entry: u32, position: Timestamp) -> bool {
        // A lane may have as much as is left over, so that n slow ones leave one part in n + 1 of the window to the rest
        // (dynamic thresholds; Choudhury and Hahne 1998).
        let left_over = self.window_keys_max.saturating_sub(self.parked).max(1);
        let state = self.lanes.entry(lane).or_default();
        if state.queue.len() >= self.parked_per_target.min(left_over) {
            return false;
        }
        state.queue.push_back((entry, position));
        self.parked += 1;
        self.offer_turn(lane);
        true
    }

    /// The next key that may start; it counts as in flight until [`Dispatch::ended`].
    pub(crate) fn pop(&mut self) -> Option<u32> {
        if self.in_flight >= self.in_flight_max {
            return None;
        }
        let tenant = self.tenants.pop_front()?;
        let turns = self.turns.get_mut(&tenant).expect("a tenant in turn has lanes in turn");
        let target = turns.pop_front().expect("a tenant in turn has a lane in turn");
        let more = !turns.is_empty();
        if more {
            self.tenants.push_back(tenant);
        } else {
            self.turns.remove(&tenant);
        }
        let state = self.lanes.get_mut(&(tenant, target)).expect("a lane in turn exists");
        state.has_turn = false;
        let (entry, _) = state.queue.pop_front().expect("a lane in turn has a key");
        state.in_flight += 1;
        self.in_flight += 1;
        self.parked -= 1;
        self.offer_turn((tenant, target));
        Some(entry)
    }

    /// An attempt, or a key that came to nothing, has left the lane.
    pub(crate) fn ended(&mut self, lane: Lane, now: Timestamp) {
        let state = self.lanes.get_mut(&lane).expect("what ended was started");
        assert!(state.in_flight > 0 && self.in_flight > 0, "what ended was in flight");
        state.in_flight -= 1;
        self.in_flight -= 1;
        state.count_end(now);
        if state.in_flight == 0 && state.queue.is_empty() && state.deferred_to <= now {
            self.lanes.remove(&lane);
        } else {
            self.offer_turn(lane);
        }
    }

    /// Takes out the keys with a position before `before`, lane by lane, at most `limit`.
    pub(crate) fn take_overdue(&mut self, before: Timestamp, limit: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        for state in self.lanes.values_mut() {
            // Only lanes that are full have keys that wait long; those with a turn are served as fast as we can.
            while taken.len() < limit
                && !state.has_turn
                && state.queue.front().is_some_and(|(_, position)| *position < before)
            {
                taken.extend(state.queue.pop_front().map(|(entry, _)| entry));
                self.parked -= 1;
            }
        }
        self.lanes.retain(|_, state| state.in_flight > 0 || !state.queue.is_empty() || state.deferred_to > before);
        taken
    }

    /// Where a deferred key of this lane goes: behind those that wait in memory and those deferred before it, at the rate
    /// at which the lane ends attempts, so that keys come back about when there is a slot for them.
    pub(crate) fn defer_to(&mut self, lane: Lane, now: Timestamp) -> Timestamp {
        const SOONEST: Duration = Duration::from_secs(1);
        let latest = now + self.defer_max.max(SOONEST);
        let state = self.lanes.entry(lane).or_default();
        let at_rate =
            |keys: u64| Duration::from_millis(keys.saturating_mul(1_000) / u64::from(state.per_second.max(1)));
        let waiting = u64::try_from(state.queue.len()).unwrap_or(u64::MAX);
        let next = state.deferred_from + at_rate(state.deferred);
        // Past the latest one, start over from the soonest: they spread evenly over the span again.
        if next > latest || next < now + SOONEST {
            state.deferred_from = (now + at_rate(waiting)).clamp(now + SOONEST, latest);
            state.deferred = 0;
        }
        state.deferred_to = state.deferred_from + at_rate(state.deferred);
        state.deferred += 1;
        state.deferred_to
    }

    /// Takes out the keys of which `is_gone` says so, and says which.
    pub(crate) fn take_gone(&mut self, is_gone: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        for state in self.lanes.values_mut() {
            state.has_turn = false;
            state.queue.retain(|(entry, _)| {
                let is_gone = is_gone(*entry);
                if is_gone {
                    taken.push(*entry);
                }
                !is_gone
            });
        }
        self.parked -= taken.len();
        // A lane without keys takes no turn: all line up again.
        self.tenants.clear();
        self.turns.clear();
        let lanes: Vec<Lane> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.offer_turn(lane));
        taken
    }

    fn offer_turn(&mut self, (tenant, target): Lane) {
        let state = self.lanes.get_mut(&(tenant, target)).expect("the caller has just used this lane");
        if state.has_turn || state.queue.is_empty() || state.in_flight >= self.in_flight_per_target {
            return;
        }
        state.has_turn = true;
        let turns = self.turns.entry(tenant).or_default();
        if turns.is_empty() {
            self.tenants.push_back(tenant);
        }
        turns.push_back(target);
    }
}

impl LaneState {
    fn count_end(&mut self, now: Timestamp) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn lane(tenant: u32, target: u32) -> Lane {
        (TenantId(tenant), TargetKey(target))
    }

    fn dispatch(in_flight_per_target: usize, in_flight_max: usize, parked_per_target: usize) -> Dispatch {
        Dispatch::new(&Options { in_flight_per_target, in_flight_max, parked_per_target, ..Options::default() })
    }

    #[test]
    fn tenants_take_turns_whatever_the_length_of_their_queues() {
        let mut dispatch = dispatch(10, 100, 100);
        for entry in 0..6 {
            assert!(dispatch.push(lane(1, 1), entry, NOW));
        }
        assert!(dispatch.push(lane(2, 1), 10, NOW));
        assert!(dispatch.push(lane(2, 2), 11, NOW));
        let order: Vec<u32> = std::iter::from_fn(|| dispatch.pop()).collect();
        assert_eq!(order, [0, 10, 1, 11, 2, 3, 4, 5]);
    }

    #[test]
    fn a_full_target_parks_only_its_own_keys() {
        let mut dispatch = dispatch(1, 100, 100);
        for entry in 0..3 {
            assert!(dispatch.push(lane(1, 1), entry, NOW));
        }
        assert!(dispatch.push(lane(1, 2), 10, NOW));
        let order: Vec<u32> = std::iter::from_fn(|| dispatch.pop()).collect();
        assert_eq!(order, [0, 10]);
        dispatch.ended(lane(1, 1), NOW);
        assert_eq!(dispatch.pop(), Some(1));
        assert_eq!(dispatch.pop(), None);
        assert_eq!((dispatch.in_flight(), dispatch.parked()), (2, 1));
    }

    #[test]
    fn the_limit_in_all_holds_over_targets() {
        let mut dispatch = dispatch(10, 2, 100);
        for target in 0..4 {
            assert!(dispatch.push(lane(1, target), target, NOW));
        }
        assert_eq!(std::iter::from_fn(|| dispatch.pop()).count(), 2);
        dispatch.ended(lane(1, 0), NOW);
        assert_eq!(dispatch.pop(), Some(2));
    }

    #[test]
    fn a_full_queue_refuses_and_what_waits_too_long_is_taken_out() {
        let mut dispatch = dispatch(1, 100, 2);
        let late = NOW + Duration::from_secs(1);
        assert!(dispatch.push(lane(1, 1), 0, NOW));
        assert_eq!(dispatch.pop(), Some(0));
        assert!(dispatch.push(lane(1, 1), 1, NOW));
        assert!(dispatch.push(lane(1, 1), 2, late));
        assert!(!dispatch.push(lane(1, 1), 3, late));
        assert_eq!(dispatch.take_overdue(late, 10), [1]);
        assert_eq!(dispatch.parked(), 1);
    }

    #[test]
    fn what_is_gone_leaves_no_empty_turn_behind() {
        let mut dispatch = dispatch(1, 100, 100);
        for entry in 0..4 {
            assert!(dispatch.push(lane(1, entry / 2), entry, NOW));
        }
        assert_eq!(dispatch.pop(), Some(0));
        assert_eq!(dispatch.take_gone(|entry| entry == 1 || entry == 2), [1, 2]);
        assert_eq!(std::iter::from_fn(|| dispatch.pop()).collect::<Vec<_>>(), [3]);
        assert_eq!((dispatch.in_flight(), dispatch.parked()), (2, 0));
        dispatch.ended(lane(1, 0), NOW);
        dispatch.ended(lane(1, 1), NOW);
        assert_eq!(dispatch.pop(), None);
    }

    #[test]
    fn slow_targets_leave_a_part_of_the_window_to_the_rest() {
        let options =
            Options { in_flight_per_target: 1, window_keys_max: 120, parked_per_target: 120, ..Options::default() };
        let mut dispatch = Dispatch::new(&options);
        let mut parked = |target| (0..120).filter(|entry| dispatch.push(lane(1, target), *entry, NOW)).count();
        assert_eq!((parked(1), parked(2), parked(3)), (60, 30, 15));
    }

    #[test]
    fn deferred_keys_are_spread_at_the_rate_of_their_target_and_within_the_bound() {
        let mut dispatch = dispatch(1, 100, 2);
        let places: Vec<Timestamp> = (0..200).map(|_| dispatch.defer_to(lane(1, 1), NOW)).collect();
        assert_eq!(places[0], NOW + Duration::from_secs(1));
        assert_eq!(places[1], NOW + Duration::from_secs(2), "a target of unknown rate gets one a second");
        assert!(places.iter().all(|place| *place <= NOW + Duration::from_secs(60)));
        assert!(places.iter().filter(|place| **place == places[0]).count() <= 4);
    }

    #[test]
    fn a_quick_target_gets_its_deferred_keys_back_as_quickly_as_it_takes_them() {
        let mut dispatch = dispatch(10_000, 10_000, 10_000);
        // One that goes on, so that the lane is never forgotten.
        dispatch.push(lane(1, 1), 0, NOW);
        dispatch.pop();
        for entry in 0..10_000 {
            dispatch.push(lane(1, 1), entry, NOW);
            dispatch.pop();
            dispatch.ended(lane(1, 1), NOW + Duration::from_millis(u64::from(entry) / 3));
        }
        let now = NOW + Duration::from_secs(4);
        dispatch.push(lane(1, 1), 1, NOW);
        let places: Vec<Timestamp> = (0..2_000).map(|_| dispatch.defer_to(lane(1, 1), now)).collect();
        let span = places[1_999].since(places[0]);
        assert!(span < Duration::from_secs(2), "2,000 keys take {span:?} at thousands a second");
    }
}

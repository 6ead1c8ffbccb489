//! Who goes next: fair between tenants, fair between a tenant's targets, each within its limits.
//!
//! A pure queue. Keys wait in a queue per (tenant, target), a *lane*. A lane with a free slot takes its turn among its
//! tenant's lanes, the tenant takes its turn among tenants, one key a turn. A full target parks only its own keys. What
//! is at a limit in time (a rate, an open circuit) takes no turn and *waits* until then.
//!
//! Always true here: whoever may start a key and does not wait has a turn, once; so nobody is looked at who may not.

mod circuit;
mod limits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use domain::quota::TokenBucket;
use domain::{TargetKey, TenantId, Timestamp};
use runtime::Monotonic;

use crate::options::Options;

use circuit::Circuit;
pub(crate) use circuit::TargetSays;
pub(crate) use limits::Limits;

/// Where a limit is counted.
pub(crate) type Lane = (TenantId, TargetKey);

/// By the wall clock, which keys are due by, and by the one that rates are measured with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) monotonic: Monotonic,
}

#[derive(Debug)]
pub(crate) struct Dispatch {
    in_flight_max: usize,
    parked_per_target: usize,
    window_keys_max: usize,
    defer_max: Duration,
    in_flight: usize,
    parked: usize,
    /// Callbacks that were let go since they were counted last, and late because of their tenant's rate.
    throttled: u64,
    lanes: BTreeMap<Lane, LaneState>,
    tenants: BTreeMap<TenantId, TenantState>,
    /// Of a tenant that none were set for.
    default_limits: Limits,
    /// Tenants with a lane that may start something, each once.
    turns: VecDeque<TenantId>,
    /// Who waits, and until when.
    waits: BTreeSet<(Monotonic, Waiter)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Waiter {
    Tenant(TenantId),
    Lane(Lane),
}

#[derive(Debug)]
struct TenantState {
    limits: Limits,
    in_flight: usize,
    parked: usize,
    bucket: TokenBucket,
    /// Its lanes that may start something, each once.
    turns: VecDeque<TargetKey>,
    /// It stands in [`Dispatch::turns`].
    has_turn: bool,
    waits_until: Option<Monotonic>,
    /// When it last had to wait for its rate.
    throttled_at: Timestamp,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Window entries and their positions, in the order in which they became ready.
    queue: VecDeque<(u32, Timestamp)>,
    in_flight: usize,
    bucket: TokenBucket,
    circuit: Circuit,
    /// It stands in its tenant's turns.
    has_turn: bool,
    waits_until: Option<Monotonic>,
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
    pub(crate) fn new(options: &Options) -> Self {
        Dispatch {
            in_flight_max: options.in_flight_max.max(1),
            parked_per_target: options.parked_per_target.max(1),
            window_keys_max: options.window_keys_max,
            defer_max: options.defer_max,
            in_flight: 0,
            parked: 0,
            throttled: 0,
            lanes: BTreeMap::new(),
            tenants: BTreeMap::new(),
            default_limits: Limits::of_service(options),
            turns: VecDeque::new(),
            waits: BTreeSet::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// How many were late because of their tenant's rate, since this was last asked.
    pub(crate) fn take_throttled(&mut self) -> u64 {
        std::mem::take(&mut self.throttled)
    }

    pub(crate) fn open_circuits(&self, now: Monotonic) -> usize {
        self.lanes.values().filter(|lane| lane.circuit.open_until(now).is_some()).count()
    }

    /// From now on these are the tenant's limits.
    pub(crate) fn limit(&mut self, tenant: TenantId, limits: Limits) {
        let state = self.tenants.entry(tenant).or_insert_with(|| TenantState::new(limits));
        if state.limits == limits && state.waits_until.is_none() {
            return;
        }
        state.limits = limits;
        // Whoever waited for the old rate looks at the new one when it has its turn.
        if let Some(until) = state.waits_until.take() {
            self.waits.remove(&(until, Waiter::Tenant(tenant)));
        }
        let lanes: Vec<Lane> = self.lanes.range(lanes_of(tenant)).map(|(lane, _)| *lane).collect();
        for lane in lanes {
            let state = self.lanes.get_mut(&lane).expect("it was there a moment ago");
            if let Some(until) = state.waits_until.take() {
                self.waits.remove(&(until, Waiter::Lane(lane)));
            }
            self.offer_lane(lane);
        }
        self.offer_tenant(tenant);
    }

    /// How many more of the tenant's keys there is a use for here soon. One that waits for its rate needs no more than it
    /// can start in the next seconds: the rest may as well wait in the store.
    pub(crate) fn room(&self, tenant: TenantId) -> usize {
        match self.tenants.get(&tenant) {
            Some(state) if state.waits_until.is_some() => state.limits.ahead.saturating_sub(state.parked),
            _ => usize::MAX,
        }
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
        let limits = self.default_limits;
        self.tenants.entry(lane.0).or_insert_with(|| TenantState::new(limits)).parked += 1;
        self.offer_lane(lane);
        true
    }

    /// The next key that may start; it counts as in flight until [`Dispatch::ended`].
    pub(crate) fn pop(&mut self, now: Now) -> Option<u32> {
        if self.in_flight >= self.in_flight_max {
            return None;
        }
        self.end_waits(now.monotonic);
        while let Some(tenant) = self.turns.pop_front() {
            let state = self.tenants.get_mut(&tenant).expect("a tenant in turn exists");
            state.has_turn = false;
            if state.in_flight >= state.limits.in_flight_max {
                continue; // It takes its turn once one has ended.
            }
            if let Err(until) = state.may_start(now.monotonic) {
                state.throttled_at = now.wall;
                state.waits_until = Some(until);
                self.waits.insert((until, Waiter::Tenant(tenant)));
                continue;
            }
            if let Some(entry) = self.pop_of(tenant, now) {
                self.offer_tenant(tenant);
                return Some(entry);
            }
        }
        None
    }

    /// Of a tenant that may start one.
    fn pop_of(&mut self, tenant: TenantId, now: Now) -> Option<u32> {
        let state = self.tenants.get_mut(&tenant).expect("its caller has looked");
        while let Some(target) = state.turns.pop_front() {
            let lane = self.lanes.get_mut(&(tenant, target)).expect("a lane in turn exists");
            lane.has_turn = false;
            if lane.in_flight >= lane.in_flight_max(&state.limits) {
                continue; // Its limit is lower than when it got its turn.
            }
            if let Err(until) = lane.may_start(&state.limits, now.monotonic) {
                lane.waits_until = Some(until);
                self.waits.insert((until, Waiter::Lane((tenant, target))));
                continue;
            }
            let (entry, position) = lane.queue.pop_front().expect("a lane in turn has a key");
            lane.in_flight += 1;
            state.in_flight += 1;
            state.parked -= 1;
            self.in_flight += 1;
            self.parked -= 1;
            let since_start = now.monotonic.since_start();
            if let Some(rate) = state.limits.rate_per_target {
                lane.bucket.take(rate, since_start);
            }
            if let Some(rate) = state.limits.rate {
                state.bucket.take(rate, since_start);
                self.throttled += u64::from(position <= state.throttled_at);
            }
            self.offer_lane((tenant, target));
            return Some(entry);
        }
        None
    }

    /// An attempt has left the lane, or a key that came to nothing; then `says` is `None`, and it does not count.
    pub(crate) fn ended(&mut self, lane: Lane, now: Now, says: Option<TargetSays>) {
        let state = self.lanes.get_mut(&lane).expect("what ended was started");
        let tenant = self.tenants.get_mut(&lane.0).expect("the tenant of a lane exists");
        assert!(state.in_flight > 0 && tenant.in_flight > 0 && self.in_flight > 0, "what ended was in flight");
        state.in_flight -= 1;
        tenant.in_flight -= 1;
        self.in_flight -= 1;
        match says {
            Some(says) => state.circuit.hear(says, now.monotonic),
            None => {
                if let Some(rate) = tenant.limits.rate {
                    tenant.bucket.give_back(rate);
                }
                if let Some(rate) = tenant.limits.rate_per_target {
                    state.bucket.give_back(rate);
                }
            }
        }
        state.count_end(now.wall);
        if state.is_idle(now) {
            self.lanes.remove(&lane);
        } else {
            self.offer_lane(lane);
        }
        self.offer_tenant(lane.0);
    }

    /// When the next one that waits may start something.
    pub(crate) fn next_wait(&self) -> Option<Monotonic> {
        self.waits.first().map(|(until, _)| *until)
    }

    fn end_waits(&mut self, now: Monotonic) {
        while let Some((until, waiter)) = self.waits.first().copied() {
            if until > now {
                return;
            }
            self.waits.pop_first();
            match waiter {
                Waiter::Tenant(tenant) => {
                    self.tenants.get_mut(&tenant).expect("a tenant that waits exists").waits_until = None;
                    self.offer_tenant(tenant);
                }
                Waiter::Lane(lane) => {
                    self.lanes.get_mut(&lane).expect("a lane that waits exists").waits_until = None;
                    self.offer_lane(lane);
                }
            }
        }
    }

    /// Takes out the keys with a position before `before`, lane by lane, at most `limit`.
    pub(crate) fn take_overdue(&mut self, before: Timestamp, limit: usize, now: Now) -> Vec<u32> {
        let mut taken = Vec::new();
        for ((tenant, _), state) in &mut self.lanes {
            // Only lanes that are full, or whose target fails, have keys that wait long; those with a turn are served as
            // fast as we, and their tenant's limits, can.
            while taken.len() < limit
                && !state.has_turn
                && state.queue.front().is_some_and(|(_, position)| *position < before)
            {
                taken.extend(state.queue.pop_front().map(|(entry, _)| entry));
                self.parked -= 1;
                self.tenants.get_mut(tenant).expect("the tenant of a lane exists").parked -= 1;
            }
        }
        self.lanes.retain(|_, state| !state.is_idle(now));
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
        for ((tenant, _), state) in &mut self.lanes {
            state.has_turn = false;
            let before = state.queue.len();
            state.queue.retain(|(entry, _)| {
                let is_gone = is_gone(*entry);
                if is_gone {
                    taken.push(*entry);
                }
                !is_gone
            });
            let tenant = self.tenants.get_mut(tenant).expect("the tenant of a lane exists");
            tenant.parked -= before - state.queue.len();
        }
        self.parked -= taken.len();
        // A lane without keys takes no turn: all line up again.
        self.turns.clear();
        for tenant in self.tenants.values_mut() {
            tenant.has_turn = false;
            tenant.turns.clear();
        }
        let lanes: Vec<Lane> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.offer_lane(lane));
        taken
    }

    fn offer_lane(&mut self, lane: Lane) {
        let state = self.lanes.get_mut(&lane).expect("the caller has just used this lane");
        let tenant = self.tenants.get_mut(&lane.0).expect("the tenant of a lane exists");
        let may_start = state.in_flight < state.in_flight_max(&tenant.limits) && state.waits_until.is_none();
        if state.has_turn || state.queue.is_empty() || !may_start {
            return;
        }
        state.has_turn = true;
        tenant.turns.push_back(lane.1);
        self.offer_tenant(lane.0);
    }

    fn offer_tenant(&mut self, tenant: TenantId) {
        let state = self.tenants.get_mut(&tenant).expect("the caller has just used this tenant");
        let may_start = state.in_flight < state.limits.in_flight_max && state.waits_until.is_none();
        if state.has_turn || state.turns.is_empty() || !may_start {
            return;
        }
        state.has_turn = true;
        self.turns.push_back(tenant);
    }
}

/// The lanes of one tenant.
fn lanes_of(tenant: TenantId) -> std::ops::RangeInclusive<Lane> {
    (tenant, TargetKey(0))..=(tenant, TargetKey(u32::MAX))
}

impl TenantState {
    fn new(limits: Limits) -> Self {
        TenantState {
            limits,
            in_flight: 0,
            parked: 0,
            bucket: TokenBucket::default(),
            turns: VecDeque::new(),
            has_turn: false,
            waits_until: None,
            throttled_at: Timestamp::MIN,
        }
    }

    /// Or when it may.
    fn may_start(&self, now: Monotonic) -> Result<(), Monotonic> {
        limits::has_token(self.limits.rate, &self.bucket, now)
    }
}

impl LaneState {
    fn in_flight_max(&self, limits: &Limits) -> usize {
        if self.circuit.is_probing() { 1 } else { limits.in_flight_per_target }
    }

    /// Or when it may.
    fn may_start(&self, limits: &Limits, now: Monotonic) -> Result<(), Monotonic> {
        match self.circuit.open_until(now) {
            Some(until) => Err(until),
            None => limits::has_token(limits.rate_per_target, &self.bucket, now),
        }
    }

    /// There is nothing about it that a new one would not have.
    fn is_idle(&self, now: Now) -> bool {
        self.in_flight == 0
            && self.queue.is_empty()
            && self.waits_until.is_none()
            && self.deferred_to <= now.wall
            && self.bucket.is_full(now.monotonic.since_start())
            && self.circuit.is_forgotten(now.monotonic)
    }

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
mod tests;

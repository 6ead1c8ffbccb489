//! Dispatch queue of due keys. It is fair between tenants and between a tenant's targets, and respects all limits.
//!
//! This queue does no I/O and reads no clock. Each pair of tenant and target has its own queue of keys, a *lane*. A
//! lane with a free slot takes its turn among its tenant's lanes of the same kind (HTTP or bus). The kinds of a tenant take
//! turns, and so do the tenants: the next turn goes to the tenant whose attempts have used the least processor time for
//! its weight ([`Turns`]). One key starts per turn: the oldest key of the lane. A target without a free slot delays
//! only its own keys. If a rate or an open circuit blocks a lane, a kind or a tenant until some instant, the lane, kind or
//! tenant *waits* and takes no turn until that instant.
//!
//! A key occupies a *slot* of the service from its start until its attempt ends. It is *unresolved* from its start until
//! its outcome is durable. Each tenant gets a share of the slots, and a share of the larger number of unresolved keys
//! ([`Slots`]). Slow targets of some tenants therefore do not stop the callbacks of other tenants, even while a slow disk
//! delays the outcomes. A tenant that has reached a share gets its next turn when it is below that share again.
//!
//! docs/decisions/0220-start-overdue-keys-oldest-first.md gives the reasons for the order within a lane, and
//! docs/decisions/0221-start-deferred-keys-early.md for the early start of deferred keys.
//!
//! Invariant: each tenant or lane that may start a key and does not wait has exactly one turn. All other tenants and
//! lanes have no turn, so [`Dispatch::pop`] does not visit them.

mod blocked;
mod circuit;
mod deferred;
mod kinds;
mod lane;
mod limits;
mod slots;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::decide::CatchUp;
use domain::quota::TokenBucket;
use domain::{Quota, TargetKey, TargetKind, TenantId, Timestamp};
use runtime::Monotonic;

use crate::options::Options;

pub(crate) use blocked::Wait;
use blocked::{Blocked, Reason, quotas_of};
pub(crate) use circuit::TargetHealth;
use deferred::Deferred;
pub(crate) use deferred::DeferredKey;
use kinds::Kinds;
use lane::{LaneState, Parked, Place};
pub(crate) use limits::Limits;
use slots::{Slots, TenantSlots};
use turns::{TenantTurn, Turns};

/// Longest time between two instants without a free slot that belong to the same period without free slots. This time
/// is at most the shortest interval of a schedule.
const NO_SLOT_GAP: Duration = Duration::from_secs(1);

/// Largest number of unresolved keys for each slot. While the store is slow, as many outcomes may wait as attempts are in
/// flight.
const UNRESOLVED_PER_SLOT: usize = 2;

/// Pair of a tenant and a target. The dispatch queue has a separate queue of keys and separate limits for each lane.
pub(crate) type Lane = (TenantId, TargetKey);

/// Current instant by both clocks. Due instants use the wall clock, and rates use the monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) monotonic: Monotonic,
}

#[derive(Debug)]
pub(crate) struct Dispatch {
    parked_per_target: usize,
    window_keys_max: usize,
    defer_max: Duration,
    /// Slots of the keys whose attempts are in flight.
    slots: Slots,
    /// Numbers of keys that have started and whose outcomes are not yet durable.
    unresolved: Slots,
    parked: usize,
    /// Number of calls of [`Dispatch::take_overdue`]. The dispatch queue measures waits in these calls and not in time.
    /// Time in which the process does not run therefore does not count as a wait for a target.
    checks: u32,
    /// Number of keys that the owner has pushed.
    pushed: u64,
    /// Number of callbacks that started late because of the rate of their tenant, since the last call of
    /// [`Dispatch::take_throttled`].
    throttled: u64,
    lanes: BTreeMap<Lane, LaneState>,
    tenants: BTreeMap<TenantId, TenantState>,
    deferred: Deferred,
    /// Limits of a tenant for which the owner has set no limits.
    default_limits: Limits,
    /// Turns of the tenants. Each tenant that may start a key and does not wait has exactly one turn.
    turns: Turns,
    /// Waiting tenants, kinds and lanes, with the end of each wait.
    waits: BTreeSet<(Monotonic, Waiter)>,
    /// Start and end of the latest period in which the service had no free slot.
    no_slot: Option<(Timestamp, Timestamp)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Waiter {
    Tenant(TenantId),
    Kind(TenantId, TargetKind),
    Lane(Lane),
}

#[derive(Debug)]
struct TenantState {
    limits: Limits,
    slots: TenantSlots,
    unresolved: TenantSlots,
    parked: usize,
    bucket: TokenBucket,
    kinds: Kinds,
    /// Latest period in which a limit of the tenant blocked its keys.
    blocked: Blocked,
    turn: TenantTurn,
    waits_until: Option<Monotonic>,
    /// Latest instant at which the tenant's rate blocked the tenant.
    throttled_at: Timestamp,
}

impl Dispatch {
    pub(crate) fn new(options: &Options) -> Self {
        Dispatch {
            parked_per_target: options.parked_per_target.max(1),
            window_keys_max: options.window_keys_max,
            defer_max: options.defer_max,
            slots: Slots::new(options.in_flight_max),
            unresolved: Slots::new(options.in_flight_max.saturating_mul(UNRESOLVED_PER_SLOT)),
            parked: 0,
            checks: 0,
            pushed: 0,
            throttled: 0,
            lanes: BTreeMap::new(),
            tenants: BTreeMap::new(),
            deferred: Deferred::default(),
            default_limits: Limits::of_service(options),
            turns: Turns::default(),
            waits: BTreeSet::new(),
            no_slot: None,
        }
    }

    /// Returns the number of keys that have started and whose outcomes are not yet durable.
    pub(crate) fn unresolved(&self) -> usize {
        self.unresolved.used()
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// Returns the number of callbacks that started late because of their tenant's rate, and resets this number to 0.
    pub(crate) fn take_throttled(&mut self) -> u64 {
        std::mem::take(&mut self.throttled)
    }

    pub(crate) fn open_circuits(&self, now: Monotonic) -> usize {
        self.lanes.values().filter(|lane| lane.circuit.open_until(now).is_some()).count()
    }

    /// Sets the tenant's limits.
    pub(crate) fn limit(&mut self, tenant: TenantId, limits: Limits) {
        let state = self.tenants.entry(tenant).or_insert_with(|| TenantState::new(limits));
        if state.limits == limits && state.waits_until.is_none() {
            return;
        }
        state.limits = limits;
        self.unresolved.weigh(tenant, &mut state.unresolved, limits.unresolved_weight());
        // The dispatch queue ends all waits of the tenant and its lanes, because the old rate may have caused them. It
        // checks the new rate at the next turn of the tenant and of each lane.
        if let Some(until) = state.waits_until.take() {
            self.waits.remove(&(until, Waiter::Tenant(tenant)));
        }
        for kind in TargetKind::ALL {
            if let Some(until) = state.kinds.of(kind).waits_until.take() {
                self.waits.remove(&(until, Waiter::Kind(tenant, kind)));
            }
        }
        let lanes: Vec<Lane> = self.lanes.range(lanes_of(tenant)).map(|(lane, _)| *lane).collect();
        for lane in lanes {
            let state = self.lanes.get_mut(&lane).expect("each lane in the list `lanes` exists in `self.lanes`");
            if let Some(until) = state.waits_until.take() {
                self.waits.remove(&(until, Waiter::Lane(lane)));
            }
            self.offer_lane(lane);
        }
        self.offer_tenant(tenant);
    }

    /// Returns the largest number of further keys of the tenant that the owner should read from the store. While the
    /// tenant's rate blocks the tenant, the dispatch queue needs only the keys that the tenant can start in the next
    /// seconds. All later keys can stay in the store.
    pub(crate) fn demand(&self, tenant: TenantId) -> usize {
        match self.tenants.get(&tenant) {
            Some(state) if state.waits_until.is_some() => state.limits.ahead.saturating_sub(state.parked),
            _ => usize::MAX,
        }
    }

    /// Queues a key. Returns `false` if the target's queue is full. The caller must then defer the key.
    pub(crate) fn push(&mut self, lane: Lane, entry: u32, position: Timestamp) -> bool {
        // A lane may have at most as many keys as the window has free entries. With n slow lanes, 1 / (n + 1) of the
        // window therefore remains free for other lanes (dynamic thresholds; Choudhury and Hahne 1998).
        let left_over = self.window_keys_max.saturating_sub(self.parked).max(1);
        let state = self.lanes.entry(lane).or_default();
        if state.queue.len() >= self.parked_per_target.min(left_over) {
            return false;
        }
        let place = Place { position, pushed: self.pushed };
        let since = state.queue.range(place..).next().map_or(self.checks, |(_, later)| later.since);
        state.queue.insert(place, Parked { entry, since });
        self.pushed += 1;
        self.parked += 1;
        let limits = self.default_limits;
        self.tenants.entry(lane.0).or_insert_with(|| TenantState::new(limits)).parked += 1;
        self.offer_lane(lane);
        true
    }

    /// Returns the next key that may start. The key counts as in flight until the caller calls [`Dispatch::ended`], and
    /// as unresolved until the caller calls [`Dispatch::resolved`].
    pub(crate) fn pop(&mut self, now: Now) -> Option<u32> {
        if self.is_full() {
            self.record_no_slot(now.wall);
            return None;
        }
        self.end_waits(now.monotonic);
        while let Some(tenant) = self.turns.next() {
            let state = self.tenants.get_mut(&tenant).expect("each tenant in `turns` exists in `tenants`");
            state.turn.end();
            if state.slots.used() >= state.limits.in_flight_max {
                continue; // The tenant gets its next turn when one of its attempts ends.
            }
            if !self.slots.has_share(tenant, &mut state.slots)
                || !self.unresolved.has_share(tenant, &mut state.unresolved)
            {
                state.blocked.record(Reason::Slot, now.wall, now.wall);
                continue; // The tenant gets its next turn when it is below its share.
            }
            if let Err(until) = state.may_start(now.monotonic) {
                state.throttled_at = now.wall;
                state.blocked.record_until(Reason::Quota(Quota::CallbacksPerMinute), now, until);
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

    /// Returns the next key of a tenant whose limits permit an attempt. Returns `None` if no lane of the tenant may
    /// start a key.
    fn pop_of(&mut self, tenant: TenantId, now: Now) -> Option<u32> {
        let state = self.tenants.get_mut(&tenant).expect("the caller has checked that the tenant exists");
        for kind in state.kinds.take_turns() {
            let state = self.tenants.get_mut(&tenant).expect("the caller has checked that the tenant exists");
            let (limits, kind_state) = (*state.limits.of_kind(kind), state.kinds.of(kind));
            if kind_state.turns.is_empty() || kind_state.is_blocked(&limits) {
                continue; // The tenant gets its next turn when a lane of this kind gets a turn, or when its limit permits it.
            }
            if let Err(until) = kind_state.has_token(&limits, now.monotonic) {
                kind_state.waits_until = Some(until);
                kind_state.blocked.record_until(Reason::Quota(quotas_of(kind).1), now, until);
                self.waits.insert((until, Waiter::Kind(tenant, kind)));
                continue;
            }
            if let Some(entry) = self.pop_of_kind(tenant, kind, now) {
                return Some(entry);
            }
        }
        None
    }

    /// Returns the next key of a tenant for one kind of targets, whose limits permit an attempt.
    fn pop_of_kind(&mut self, tenant: TenantId, kind: TargetKind, now: Now) -> Option<u32> {
        let state = self.tenants.get_mut(&tenant).expect("the caller has checked that the tenant exists");
        while let Some(target) = state.kinds.of(kind).turns.pop_front() {
            let lane = self.lanes.get_mut(&(tenant, target)).expect("each lane in a tenant's turns exists in `lanes`");
            lane.has_turn = false;
            if lane.in_flight >= lane.in_flight_max(&state.limits) {
                continue; // The limit of the lane fell after the lane got its turn.
            }
            if let Err(until) = lane.may_start(&state.limits, now.monotonic) {
                lane.waits_until = Some(until);
                let is_open = lane.circuit.open_until(now.monotonic).is_some();
                let quota = Reason::Quota(Quota::CallbacksPerSecondPerTarget);
                lane.blocked.record_until(if is_open { Reason::Circuit } else { quota }, now, until);
                self.waits.insert((until, Waiter::Lane((tenant, target))));
                continue;
            }
            let (Place { position, .. }, Parked { entry, .. }) =
                lane.queue.pop_first().expect("each lane that has a turn has a key in its queue");
            lane.in_flight += 1;
            state.kinds.of(kind).start(state.limits.of_kind(kind), now.monotonic);
            self.slots.occupy(tenant, &mut state.slots);
            self.unresolved.occupy(tenant, &mut state.unresolved);
            self.turns.record_start(tenant, &mut state.turn, state.limits.weight, now.monotonic);
            state.parked -= 1;
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

    /// Records that the service has no free slot at `now`.
    fn record_no_slot(&mut self, now: Timestamp) {
        if self.parked == 0 {
            return;
        }
        let start = match self.no_slot {
            Some((start, end)) if now.since(end) <= NO_SLOT_GAP => start,
            _ => now,
        };
        self.no_slot = Some((start, now));
    }

    /// Returns [`CatchUp::Every`] for an occurrence that became due while the service had no free slot. The service,
    /// not the tenant, then caused the delay, so every late occurrence fires.
    pub(crate) fn catch_up(&self, nominal: Timestamp) -> CatchUp {
        match self.no_slot {
            Some((start, end)) if nominal + NO_SLOT_GAP >= start && nominal <= end => CatchUp::Every,
            _ => CatchUp::Latest,
        }
    }

    /// Records that the attempt of a key has ended. If the key caused no attempt, `health` is `None`, and the dispatch
    /// queue returns the key's tokens to the token buckets of the tenant, the kind of target and the lane.
    pub(crate) fn ended(&mut self, lane: Lane, now: Now, health: Option<TargetHealth>) {
        let state = self.lanes.get_mut(&lane).expect("each key in flight belongs to a lane in `lanes`");
        let tenant = self.tenants.get_mut(&lane.0).expect("the tenant of a lane exists");
        assert!(state.in_flight > 0, "a key whose attempt ended was in flight");
        tenant.record_blocked(lane, state, self.slots.is_full(), now.wall);
        state.in_flight -= 1;
        self.slots.free(lane.0, &mut tenant.slots);
        let kind = lane.1.kind();
        tenant.kinds.of(kind).end(tenant.limits.of_kind(kind), health.is_some());
        match health {
            Some(health) => state.circuit.record(health, now.monotonic),
            None => {
                if let Some(rate) = tenant.limits.rate {
                    tenant.bucket.put_back(rate);
                }
                if let Some(rate) = tenant.limits.rate_per_target {
                    state.bucket.put_back(rate);
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
        while let Some(tenant) = self.slots.next_below_share() {
            self.tenants.get_mut(&tenant).expect("each tenant at its share exists in `tenants`").slots.leave_share();
            self.offer_tenant(tenant);
        }
    }

    /// Records an unresolved key that another member has started. That member sent the key's outcome to this member.
    /// The number of unresolved keys may exceed its limit after this call.
    pub(crate) fn add_unresolved(&mut self, tenant: TenantId) {
        let limits = self.default_limits;
        let state = self.tenants.entry(tenant).or_insert_with(|| TenantState::new(limits));
        self.unresolved.occupy(tenant, &mut state.unresolved);
    }

    /// Records that the outcome of a tenant's key is durable, or that the key will have no outcome.
    pub(crate) fn resolved(&mut self, tenant: TenantId) {
        let state = self.tenants.get_mut(&tenant).expect("the tenant of an unresolved key exists in `tenants`");
        self.unresolved.free(tenant, &mut state.unresolved);
        while let Some(tenant) = self.unresolved.next_below_share() {
            let state = self.tenants.get_mut(&tenant).expect("each tenant at its share exists in `tenants`");
            state.unresolved.leave_share();
            self.offer_tenant(tenant);
        }
    }

    /// Returns the end of the earliest wait. Returns `None` if no tenant or lane waits, or if the service has no free
    /// slot. Without a free slot, no key can start, and [`Dispatch::pop`] ends no wait.
    pub(crate) fn next_wait(&self) -> Option<Monotonic> {
        let is_full = self.is_full();
        self.waits.first().map(|(until, _)| *until).filter(|_| !is_full)
    }

    /// Returns true if a key may start at once. After [`Dispatch::pop`] has returned `None`, this function returns true
    /// only if a slot has become free since then.
    pub(crate) fn may_start(&self) -> bool {
        !self.is_full() && !self.turns.is_empty()
    }

    /// Returns true if no key may start, because all slots are in use or too many keys are unresolved.
    fn is_full(&self) -> bool {
        self.slots.is_full() || self.unresolved.is_full()
    }

    /// Returns true if several tenants share the processors: they have keys that may start, or have started keys
    /// lately.
    pub(crate) fn is_shared(&self, now: Monotonic) -> bool {
        self.turns.is_shared(now)
    }

    /// Records the processor time of one attempt of the tenant.
    pub(crate) fn record_cost(&mut self, tenant: TenantId, cost: Duration) {
        if let Some(state) = self.tenants.get_mut(&tenant) {
            state.turn.record_cost(cost);
        }
    }

    /// Ends the waits that are over at `now`. [`Dispatch::pop`] calls this function too.
    pub(crate) fn end_waits(&mut self, now: Monotonic) {
        while let Some((until, waiter)) = self.waits.first().copied() {
            if until > now {
                return;
            }
            self.waits.pop_first();
            match waiter {
                Waiter::Tenant(tenant) => {
                    self.tenants.get_mut(&tenant).expect("each waiting tenant exists in `tenants`").waits_until = None;
                    self.offer_tenant(tenant);
                }
                Waiter::Kind(tenant, kind) => {
                    let state = self.tenants.get_mut(&tenant).expect("each waiting tenant exists in `tenants`");
                    state.kinds.of(kind).waits_until = None;
                    self.offer_tenant(tenant);
                }
                Waiter::Lane(lane) => {
                    self.lanes.get_mut(&lane).expect("each waiting lane exists in `lanes`").waits_until = None;
                    self.offer_lane(lane);
                }
            }
        }
    }

    /// Removes the keys for which `is_released` returns true, and returns these keys.
    pub(crate) fn remove_released(&mut self, is_released: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        for ((tenant, _), state) in &mut self.lanes {
            state.has_turn = false;
            let before = state.queue.len();
            state.queue.retain(|_, key| {
                let is_released = is_released(key.entry);
                if is_released {
                    taken.push(key.entry);
                }
                !is_released
            });
            let tenant = self.tenants.get_mut(tenant).expect("the tenant of a lane exists");
            tenant.parked -= before - state.queue.len();
        }
        self.parked -= taken.len();
        // A lane without keys must have no turn, so this function computes all turns again.
        self.turns.clear();
        for tenant in self.tenants.values_mut() {
            tenant.turn.end();
            tenant.kinds.clear_turns();
        }
        let lanes: Vec<Lane> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.offer_lane(lane));
        taken
    }

    fn offer_lane(&mut self, lane: Lane) {
        let state = self.lanes.get_mut(&lane).expect("the caller passes a lane that exists in `lanes`");
        let tenant = self.tenants.get_mut(&lane.0).expect("the tenant of a lane exists");
        let may_start = state.in_flight < state.in_flight_max(&tenant.limits) && state.waits_until.is_none();
        if state.has_turn || state.queue.is_empty() || !may_start {
            return;
        }
        state.has_turn = true;
        tenant.kinds.of(lane.1.kind()).turns.push_back(lane.1);
        self.offer_tenant(lane.0);
    }

    fn offer_tenant(&mut self, tenant: TenantId) {
        let state = self.tenants.get_mut(&tenant).expect("the caller passes a tenant that exists in `tenants`");
        let is_at_share = state.slots.is_at_share() || state.unresolved.is_at_share();
        let may_start = state.slots.used() < state.limits.in_flight_max && state.waits_until.is_none() && !is_at_share;
        if may_start && state.kinds.any_may_start(&state.limits) {
            self.turns.offer(tenant, &mut state.turn);
        }
    }
}

/// Returns the range of all lanes of one tenant.
fn lanes_of(tenant: TenantId) -> std::ops::RangeInclusive<Lane> {
    (tenant, TargetKey(0))..=(tenant, TargetKey(u32::MAX))
}

impl TenantState {
    fn new(limits: Limits) -> Self {
        TenantState {
            limits,
            slots: TenantSlots::new(1),
            unresolved: TenantSlots::new(limits.unresolved_weight()),
            parked: 0,
            bucket: TokenBucket::default(),
            kinds: Kinds::default(),
            blocked: Blocked::default(),
            turn: TenantTurn::default(),
            waits_until: None,
            throttled_at: Timestamp::MIN,
        }
    }

    /// Returns `Ok` if the tenant may start a key now. Otherwise returns the instant from which the tenant may start a
    /// key.
    fn may_start(&self, now: Monotonic) -> Result<(), Monotonic> {
        limits::has_token(self.limits.rate, &self.bucket, now)
    }
}

#[cfg(test)]
mod tests;

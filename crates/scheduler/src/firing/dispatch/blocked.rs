//! Records of the periods in which a limit, missing slots or an open circuit kept keys from starting. They give the reason
//! for which a key started late.
//!
//! The dispatch queue records a period only when a limit stops a key, and looks a period up only for a key that is late.
//! Keys that start on time therefore cost nothing.

use domain::{Delay, Quota, TargetKind, Timestamp};
use runtime::Monotonic;

use super::limits::Limits;
use super::{Dispatch, Lane, LaneState, NO_SLOT_GAP, Now, TenantState};

/// Reason why a key waited, and the end of the wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) delay: Delay,
    pub(crate) until: Timestamp,
}

/// Latest period in which a lane, a kind, a tenant or the service was blocked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blocked(Option<Period>);

#[derive(Clone, Copy, Debug)]
struct Period {
    reason: Reason,
    from: Timestamp,
    until: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    Quota(Quota),
    Slot,
    Circuit,
}

impl Blocked {
    /// Records that `reason` blocks from `now` to `until`. Two periods with the same reason and a short gap are one period.
    pub(super) fn record(&mut self, reason: Reason, now: Timestamp, until: Timestamp) {
        let from = match self.0 {
            Some(period) if period.reason == reason && now.since(period.until) <= NO_SLOT_GAP => period.from,
            _ => now,
        };
        self.0 = Some(Period { reason, from, until });
    }

    /// Records that `reason` blocks from `now` to the reading `until` of the monotonic clock.
    pub(super) fn record_until(&mut self, reason: Reason, now: Now, until: Monotonic) {
        self.record(reason, now.wall, now.wall + until.since(now.monotonic));
    }

    /// Returns the latest period, if it ended at or after `due`.
    fn since(&self, due: Timestamp, now: Timestamp) -> Option<Wait> {
        let Period { reason, from, until } = self.0.filter(|period| period.until >= due)?;
        let delay = match reason {
            Reason::Quota(quota) => Delay::Quota { quota, since: from },
            Reason::Slot => Delay::Slot,
            Reason::Circuit => Delay::Circuit { until: None },
        };
        Some(Wait { delay, until: until.min(now) })
    }
}

/// Returns the quotas of a kind of targets: attempts in flight, and rate.
pub(super) fn quotas_of(kind: TargetKind) -> (Quota, Quota) {
    match kind {
        TargetKind::Http => (Quota::HttpInFlightMax, Quota::HttpCallbacksPerSecond),
        TargetKind::Bus => (Quota::BusInFlightMax, Quota::BusCallbacksPerSecond),
    }
}

impl LaneState {
    /// Returns the reason why the lane starts no key while it has reached its limit of attempts in flight.
    fn in_flight_reason(&self, limits: &Limits) -> Reason {
        match limits.has_quota_per_target {
            _ if self.circuit.is_probing() => Reason::Circuit,
            true => Reason::Quota(Quota::InFlightPerTargetMax),
            false => Reason::Slot,
        }
    }
}

impl TenantState {
    /// Records the limits that block the tenant's keys in memory now. The caller is about to end an attempt of `lane`.
    pub(super) fn record_blocked(&mut self, lane: Lane, state: &mut LaneState, is_full: bool, now: Timestamp) {
        if self.parked == 0 {
            return;
        }
        let limits = self.limits;
        if !state.queue.is_empty() && state.in_flight >= state.in_flight_max(&limits) {
            state.blocked.record(state.in_flight_reason(&limits), now, now);
        }
        // A limit that equals the number of the service's slots is no quota.
        let or_slot = |quota| if is_full { Reason::Slot } else { Reason::Quota(quota) };
        let kind = self.kinds.of(lane.1.kind());
        if !kind.turns.is_empty() && kind.in_flight >= limits.of_kind(lane.1.kind()).in_flight_max {
            kind.blocked.record(or_slot(quotas_of(lane.1.kind()).0), now, now);
        }
        if self.slots.used() >= limits.in_flight_max {
            self.blocked.record(or_slot(Quota::InFlightMax), now, now);
        } else if self.slots.is_at_share() || self.unresolved.is_at_share() {
            self.blocked.record(Reason::Slot, now, now);
        }
    }
}

impl Dispatch {
    /// Returns the latest reason that kept the keys of `lane` from starting at or after `due`. Returns `None` if the
    /// dispatch queue knows no reason. A wait for a limit or a circuit counts only if it lasted to the second half of the
    /// time since `due`, because something else delayed the keys more otherwise.
    pub(crate) fn wait_since(&self, lane: Lane, due: Timestamp, now: Now) -> Option<Wait> {
        let state = self.lanes.get(&lane);
        let of_lane = state.and_then(|state| {
            let open_until = state.circuit.open_until(now.monotonic);
            let open = open_until.map(|until| {
                let until = Some(now.wall + until.since(now.monotonic));
                Wait { delay: Delay::Circuit { until }, until: now.wall }
            });
            open.or_else(|| state.blocked.since(due, now.wall))
        });
        let tenant = self.tenants.get(&lane.0);
        let of_tenant = tenant.map(|tenant| {
            let kind = &tenant.kinds.get(lane.1.kind()).blocked;
            [kind, &tenant.blocked].map(|blocked| blocked.since(due, now.wall))
        });
        let [of_kind, of_tenant] = of_tenant.unwrap_or_default();
        // The dispatch queue records only when it finds no slot for a key. Such a wait can have lasted longer.
        let no_slot = self.no_slot.filter(|(_, until)| *until >= due);
        let of_service = no_slot.map(|(_, until)| Wait { delay: Delay::Slot, until });
        // Of two waits with the same end, the more specific one comes last here, and wins.
        let is_long = |wait: &Wait| wait.until.since(due) * 2 >= now.wall.since(due);
        let [of_tenant, of_kind, of_lane] = [of_tenant, of_kind, of_lane].map(|wait| wait.filter(is_long));
        [of_service, of_tenant, of_kind, of_lane].into_iter().flatten().max_by_key(|wait| wait.until)
    }
}

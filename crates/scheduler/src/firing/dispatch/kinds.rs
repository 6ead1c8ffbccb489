//! Kinds of targets of one tenant. Each kind has its own limits, and its own turns of lanes.
//!
//! The dispatch queue alternates between the kinds. If a limit of one kind is reached, the tenant's callbacks of the other
//! kind continue.

use std::collections::VecDeque;

use domain::quota::TokenBucket;
use domain::{TargetKey, TargetKind};
use runtime::Monotonic;

use super::blocked::Blocked;
use super::limits::{self, KindLimits, Limits};

/// State of all kinds of one tenant.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    states: [KindState; TargetKind::ALL.len()],
    /// Kind that gets the next turn.
    next: usize,
}

/// State of one kind of targets of a tenant.
#[derive(Debug, Default)]
pub(super) struct KindState {
    /// Turns of the lanes of this kind. Each lane that may start a key is in this list exactly once.
    pub(super) turns: VecDeque<TargetKey>,
    pub(super) in_flight: usize,
    /// Latest period in which a limit of this kind blocked its keys.
    pub(super) blocked: Blocked,
    bucket: TokenBucket,
    pub(super) waits_until: Option<Monotonic>,
}

impl Kinds {
    pub(super) fn of(&mut self, kind: TargetKind) -> &mut KindState {
        &mut self.states[kind as usize]
    }

    pub(super) fn get(&self, kind: TargetKind) -> &KindState {
        &self.states[kind as usize]
    }

    /// Returns all kinds, first the kind that gets the next turn. The other kind then gets the turn after it.
    pub(super) fn take_turns(&mut self) -> [TargetKind; TargetKind::ALL.len()] {
        let mut order = TargetKind::ALL;
        order.rotate_left(self.next);
        self.next = (self.next + 1) % order.len();
        order
    }

    /// Returns true if a lane of some kind may start a key.
    pub(super) fn any_may_start(&self, limits: &Limits) -> bool {
        let may_start = |kind| {
            let state = &self.states[kind as usize];
            !state.turns.is_empty() && !state.is_blocked(limits.of_kind(kind))
        };
        TargetKind::ALL.into_iter().any(may_start)
    }

    /// Returns true if a limit of this kind blocks all its lanes.
    pub(super) fn is_blocked(&self, kind: TargetKind, limits: &Limits) -> bool {
        self.states[kind as usize].is_blocked(limits.of_kind(kind))
    }

    pub(super) fn clear_turns(&mut self) {
        self.states.iter_mut().for_each(|state| state.turns.clear());
    }
}

impl KindState {
    /// Returns true if a limit blocks all lanes of this kind.
    pub(super) fn is_blocked(&self, limits: &KindLimits) -> bool {
        self.in_flight >= limits.in_flight_max || self.waits_until.is_some()
    }

    /// Returns `Ok` if the rate permits an attempt now. Otherwise returns the instant from which it permits an attempt.
    pub(super) fn has_token(&self, limits: &KindLimits, now: Monotonic) -> Result<(), Monotonic> {
        limits::has_token(limits.rate, &self.bucket, now)
    }

    pub(super) fn start(&mut self, limits: &KindLimits, now: Monotonic) {
        self.in_flight += 1;
        if let Some(rate) = limits.rate {
            self.bucket.take(rate, now.since_start());
        }
    }

    /// Records the end of an attempt. If the key caused no attempt, the token of the key returns to the bucket.
    pub(super) fn end(&mut self, limits: &KindLimits, was_attempted: bool) {
        self.in_flight -= 1;
        if let Some(rate) = limits.rate.filter(|_| !was_attempted) {
            self.bucket.put_back(rate);
        }
    }
}

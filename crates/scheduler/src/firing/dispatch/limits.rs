//! Limits of one tenant at this member: attempts in flight and rates.
//!
//! docs/decisions/0009-keep-the-backlog-of-a-rate-in-the-store.md gives the reasons for the design.

use std::time::Duration;

use domain::quota::{Rate, TokenBucket};
use domain::{Quota, Quotas, TargetKind};
use runtime::Monotonic;

use super::blocked::quotas_of;
use super::turns::WEIGHT_MIN;
use crate::options::Options;

/// Number of keys of a tenant that the owner may have in memory even if the tenant's rate is very low.
const AHEAD_MIN: usize = 64;

/// Largest factor of a tenant's share of the unresolved keys.
const UNRESOLVED_WEIGHT_MAX: usize = 4;

/// Limits of one tenant at this member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(super) in_flight_max: usize,
    pub(super) in_flight_per_target: usize,
    /// True if a quota determines `in_flight_per_target`.
    pub(super) has_quota_per_target: bool,
    /// Largest number of callbacks per minute. `None` means no limit.
    pub(super) rate: Option<Rate>,
    /// Largest number of callbacks per second to one target. `None` means no limit.
    pub(super) rate_per_target: Option<Rate>,
    /// Limits of each kind of targets, in the order of [`TargetKind::ALL`].
    kinds: [KindLimits; TargetKind::ALL.len()],
    /// Weight of the tenant's use of the processors: its callbacks per minute, but at least [`WEIGHT_MIN`].
    pub(super) weight: u32,
    /// Largest number of the tenant's keys that the owner reads into memory while the tenant's rate blocks the tenant.
    pub(super) ahead: usize,
}

/// Limits of all targets of one kind together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KindLimits {
    pub(super) in_flight_max: usize,
    /// Largest number of callbacks per second. `None` means no limit.
    pub(super) rate: Option<Rate>,
}

impl Limits {
    /// Returns the factor of the tenant's share of the unresolved keys. A tenant with a high rate has more outcomes
    /// that wait for the disk.
    pub(super) fn unresolved_weight(&self) -> usize {
        usize::try_from(self.weight / WEIGHT_MIN).unwrap_or(usize::MAX).clamp(1, UNRESOLVED_WEIGHT_MAX)
    }

    pub(super) fn of_kind(&self, kind: TargetKind) -> &KindLimits {
        &self.kinds[kind as usize]
    }

    /// Returns the limits of a tenant without quotas.
    pub(crate) fn of_service(options: &Options) -> Self {
        Limits::of(&Quotas::NONE, options, 1, 1)
    }

    /// Returns the limits of a tenant at a member that owns `owned` of the tenant's `all` pollers. The tenant's keys
    /// are spread evenly over its pollers, so the member gets the part `owned / all` of the tenant's quotas. If this
    /// part of a quota for attempts in flight is not an integer, the function rounds it up.
    pub(crate) fn of(quotas: &Quotas, options: &Options, owned: u32, all: u32) -> Self {
        let part =
            |number: u32| usize::try_from((u64::from(number) * u64::from(owned)).div_ceil(u64::from(all.max(1))));
        let service_max = options.in_flight_max.max(1);
        let at_once = |quota: Quota, without_quota: usize| {
            quotas.get(quota).map_or(without_quota, |number| part(number).unwrap_or(usize::MAX).min(service_max))
        };
        let rate = |quota: Quota, per: Duration| {
            quotas.get(quota).map(|number| Rate::new(number, per).share(owned.min(all), all.max(1)))
        };
        let per_second = |quota: Quota| rate(quota, Duration::from_secs(1));
        let kinds = TargetKind::ALL.map(quotas_of);
        let per_minute = rate(Quota::CallbacksPerMinute, Duration::from_secs(60));
        let ahead = per_minute.map_or(0, |rate| rate.tokens_in(options.parked_for));
        Limits {
            in_flight_max: at_once(Quota::InFlightMax, service_max),
            in_flight_per_target: at_once(Quota::InFlightPerTargetMax, options.in_flight_per_target.max(1)),
            has_quota_per_target: quotas.get(Quota::InFlightPerTargetMax).is_some(),
            rate: per_minute,
            rate_per_target: per_second(Quota::CallbacksPerSecondPerTarget),
            weight: quotas.get(Quota::CallbacksPerMinute).unwrap_or(0).max(WEIGHT_MIN),
            kinds: kinds.map(|(in_flight, rate)| KindLimits {
                in_flight_max: at_once(in_flight, service_max),
                rate: per_second(rate),
            }),
            ahead: usize::try_from(ahead).unwrap_or(usize::MAX).max(AHEAD_MIN),
        }
    }
}

/// Returns `Ok` if the bucket has a token. Otherwise returns the instant of the next token.
pub(super) fn has_token(rate: Option<Rate>, bucket: &TokenBucket, now: Monotonic) -> Result<(), Monotonic> {
    let Some(rate) = rate else { return Ok(()) };
    match bucket.next(rate, now.since_start()) {
        Some(at) if at <= now.since_start() => Ok(()),
        Some(at) => Err(Monotonic::from_start(at)),
        None => Err(Monotonic::from_start(Duration::MAX)),
    }
}

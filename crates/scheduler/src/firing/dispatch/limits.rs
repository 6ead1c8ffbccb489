//! What one tenant may do at this member, at once and in time.

use std::time::Duration;

use domain::quota::{Rate, TokenBucket};
use domain::{Quota, Quotas};
use runtime::Monotonic;

use crate::options::Options;

/// However slow a tenant's rate is, so many of its keys are known ahead.
const AHEAD_MIN: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(super) in_flight_max: usize,
    pub(super) in_flight_per_target: usize,
    /// `None`: no limit.
    pub(super) rate: Option<Rate>,
    pub(super) rate_per_target: Option<Rate>,
    /// Keys to know ahead while it waits for its rate.
    pub(super) ahead: usize,
}

impl Limits {
    /// Of a tenant without limits of its own.
    pub(crate) fn of_service(options: &Options) -> Self {
        Limits::of(&Quotas::NONE, options, 1, 1)
    }

    /// Of a tenant of whose `all` pollers `owned` are owned here: its keys are spread over its pollers evenly, so this
    /// member takes as large a part of its rates, and of what may be in flight, rounded up.
    pub(crate) fn of(quotas: &Quotas, options: &Options, owned: u32, all: u32) -> Self {
        let part =
            |number: u32| usize::try_from((u64::from(number) * u64::from(owned)).div_ceil(u64::from(all.max(1))));
        let at_once = |quota: Quota, service: usize| {
            quotas.get(quota).map_or(service, |number| part(number).unwrap_or(usize::MAX).min(service))
        };
        let rate = |quota: Quota, per: Duration| {
            quotas.get(quota).map(|number| Rate::new(number, per).share(owned.min(all), all.max(1)))
        };
        let per_minute = rate(Quota::CallbacksPerMinute, Duration::from_secs(60));
        let ahead = per_minute.map_or(0, |rate| rate.tokens_in(options.parked_for));
        Limits {
            in_flight_max: at_once(Quota::InFlightMax, options.in_flight_max.max(1)),
            in_flight_per_target: at_once(Quota::InFlightPerTargetMax, options.in_flight_per_target.max(1)),
            rate: per_minute,
            rate_per_target: rate(Quota::CallbacksPerSecondPerTarget, Duration::from_secs(1)),
            ahead: usize::try_from(ahead).unwrap_or(usize::MAX).max(AHEAD_MIN),
        }
    }
}

/// Or when there is one.
pub(super) fn has_token(rate: Option<Rate>, bucket: &TokenBucket, now: Monotonic) -> Result<(), Monotonic> {
    let Some(rate) = rate else { return Ok(()) };
    match bucket.next(rate, now.since_start()) {
        Some(at) if at <= now.since_start() => Ok(()),
        Some(at) => Err(Monotonic::from_start(at)),
        None => Err(Monotonic::from_start(Duration::MAX)),
    }
}

//! Quotas of a tenant, and the token bucket that limits rates.

use std::time::Duration;

/// Kind of limit that the service can apply to a tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quota {
    /// Attempts per minute, including retries. The scheduler delays attempts above the limit, and starts them in the
    /// order of their due times. It drops no attempt.
    CallbacksPerMinute,
    /// Number of requests and batch lines per second that create or change a schedule. Rejected requests and lines
    /// count too.
    CreatesPerSecond,
    /// Number of the tenant's schedules that have a future occurrence.
    PendingMax,
    PayloadBytesMax,
    /// Maximum number of days that `at` may lie in the future, and maximum length of `every` in days.
    HorizonDays,
    /// Number of the tenant's attempts that are in flight to all targets together.
    InFlightMax,
    /// Number of the tenant's attempts that are in flight to one scheme, host and port.
    InFlightPerTargetMax,
    /// Number of the tenant's attempts per second to one scheme, host and port.
    CallbacksPerSecondPerTarget,
    /// Size of the tenant's schedules and retained runs in MiB.
    StoredMibMax,
    /// Number of the tenant's attempts that are in flight to HTTP targets.
    HttpInFlightMax,
    /// Number of the tenant's attempts per second to HTTP targets.
    HttpCallbacksPerSecond,
    /// Number of the tenant's attempts that are in flight to topics of the message bus.
    BusInFlightMax,
    /// Number of the tenant's attempts per second to topics of the message bus.
    BusCallbacksPerSecond,
    /// Days for which the store retains the tenant's finished runs, and its ended or cancelled schedules: the days of a
    /// class [`Retention`](crate::Retention). Without a number, the option of the server applies.
    RetentionDays,
}

impl Quota {
    pub const ALL: [Quota; 14] = [
        Quota::CallbacksPerMinute,
        Quota::CreatesPerSecond,
        Quota::PendingMax,
        Quota::PayloadBytesMax,
        Quota::HorizonDays,
        Quota::InFlightMax,
        Quota::InFlightPerTargetMax,
        Quota::CallbacksPerSecondPerTarget,
        Quota::StoredMibMax,
        Quota::HttpInFlightMax,
        Quota::HttpCallbacksPerSecond,
        Quota::BusInFlightMax,
        Quota::BusCallbacksPerSecond,
        Quota::RetentionDays,
    ];

    /// Returns the name of the quota in storage and in the API. The name never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Quota::CallbacksPerMinute => "callbacks_per_minute",
            Quota::CreatesPerSecond => "creates_per_second",
            Quota::PendingMax => "pending_max",
            Quota::PayloadBytesMax => "payload_bytes_max",
            Quota::HorizonDays => "horizon_days",
            Quota::InFlightMax => "in_flight_max",
            Quota::InFlightPerTargetMax => "in_flight_per_target_max",
            Quota::CallbacksPerSecondPerTarget => "callbacks_per_second_per_target",
            Quota::StoredMibMax => "stored_mib_max",
            Quota::HttpInFlightMax => "http_in_flight_max",
            Quota::HttpCallbacksPerSecond => "http_callbacks_per_second",
            Quota::BusInFlightMax => "bus_in_flight_max",
            Quota::BusCallbacksPerSecond => "bus_callbacks_per_second",
            Quota::RetentionDays => "retention_days",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Quota::ALL.into_iter().find(|quota| quota.name() == name)
    }
}

/// Limits of a tenant, one inclusive limit for each [`Quota`]. `None` means that only the limits of the whole service
/// apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quotas([Option<u32>; Quota::ALL.len()]);

impl Quotas {
    /// Quotas that set no limits for the tenant.
    pub const NONE: Quotas = Quotas([None; Quota::ALL.len()]);

    #[must_use]
    pub const fn with(mut self, quota: Quota, number: u32) -> Self {
        self.0[quota as usize] = Some(number);
        self
    }

    #[must_use]
    pub const fn get(&self, quota: Quota) -> Option<u32> {
        self.0[quota as usize]
    }

    pub const fn set(&mut self, quota: Quota, number: Option<u32>) {
        self.0[quota as usize] = number;
    }

    pub fn iter(&self) -> impl Iterator<Item = (Quota, Option<u32>)> + '_ {
        Quota::ALL.into_iter().map(|quota| (quota, self.get(quota)))
    }

    /// Returns the first quota whose number is above its ceiling.
    #[must_use]
    pub fn first_above(&self, ceilings: &Quotas) -> Option<Quota> {
        self.iter().map(|(quota, _)| quota).find(|quota| self.lowered(*quota, ceilings) != self.get(*quota))
    }

    /// Returns a copy of these quotas in which each number above its ceiling is lowered to the ceiling.
    #[must_use]
    pub fn lowered_to(&self, ceilings: &Quotas) -> Quotas {
        Quotas(Quota::ALL.map(|quota| self.lowered(quota, ceilings)))
    }

    /// Returns the number of a quota, at most its ceiling. A quota without a number is unlimited, so its ceiling
    /// applies. The exception is the retention: without a number, the option of the server applies, which may be below
    /// the ceiling.
    fn lowered(&self, quota: Quota, ceilings: &Quotas) -> Option<u32> {
        if quota == Quota::RetentionDays && self.get(quota).is_none() {
            return None;
        }
        [self.get(quota), ceilings.get(quota)].into_iter().flatten().min()
    }
}

/// Number of callbacks per minute for which a tenant needs one poller.
pub const CALLBACKS_PER_POLLER: u32 = 1_000;
/// Additional pollers of a tenant, in percent of the number that its quota needs.
pub const SPARE_PERCENT: u32 = 10;
/// Maximum number of pollers of a tenant, also for a very high quota. Each poller causes load, because its owner reads
/// it regularly even when no row is due.
pub const POLLERS_MAX: u16 = 1_024;

/// Returns the number of pollers for a quota of callbacks per minute: a power of two, at most [`POLLERS_MAX`].
#[must_use]
pub fn pollers(callbacks_per_minute: u32) -> u16 {
    let needed = u64::from(callbacks_per_minute.div_ceil(CALLBACKS_PER_POLLER).max(1));
    let with_spare = (needed * u64::from(100 + SPARE_PERCENT)).div_ceil(100);
    u16::try_from(with_spare.next_power_of_two()).unwrap_or(POLLERS_MAX).min(POLLERS_MAX)
}

/// Rate of tokens: a number of tokens per period. After a token bucket was idle, the tokens of one whole period are
/// available at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Interval between two tokens; `None` if the rate is zero.
    each: Option<Duration>,
    per: Duration,
}

impl Rate {
    #[must_use]
    pub fn new(tokens: u32, per: Duration) -> Self {
        Rate { each: (tokens > 0).then(|| per / tokens), per }
    }

    /// Returns the number of tokens that become available in `time`.
    #[must_use]
    pub fn tokens_in(self, time: Duration) -> u64 {
        let tokens = self.each.map_or(0, |each| time.as_nanos() / each.as_nanos().max(1));
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Returns the fraction `part / whole` of this rate. `part` is at most `whole`.
    #[must_use]
    pub fn share(self, part: u32, whole: u32) -> Self {
        assert!(part <= whole, "the share is not larger than the whole rate");
        match part {
            0 => Rate { each: None, ..self },
            _ => Rate { each: self.each.map(|each| each.saturating_mul(whole) / part), ..self },
        }
    }
}

/// Token bucket. Tokens arrive at a [`Rate`], and the bucket contains at most the tokens of one period. The algorithm
/// is virtual scheduling (ITU-T I.371), which is equivalent to a token bucket but stores only one number. The caller
/// passes the rate as an argument and may change the rate at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TokenBucket {
    /// Instant of a monotonic clock at which the bucket is full again.
    full_at: Duration,
}

impl TokenBucket {
    /// Returns the instant of the next token. It is `now` if a token is available, and `None` if this rate never yields
    /// a token.
    #[must_use]
    pub fn next(&self, rate: Rate, now: Duration) -> Option<Duration> {
        let each = rate.each?;
        // A full bucket always has a token, even if the rate is very low.
        let burst = rate.per.saturating_sub(each);
        Some(self.full_at.saturating_sub(burst).max(now))
    }

    /// Takes a token if one is available, and returns true if it took a token.
    pub fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let is_available = self.next(rate, now) == Some(now);
        if let Some(each) = rate.each.filter(|_| is_available) {
            self.full_at = self.full_at.max(now).saturating_add(each);
        }
        is_available
    }

    /// Puts back a token that the caller took but did not use.
    pub fn put_back(&mut self, rate: Rate) {
        self.full_at = self.full_at.saturating_sub(rate.each.unwrap_or(Duration::ZERO));
    }

    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_quota_has_a_unique_name_and_its_own_stored_number() {
        let mut quotas = Quotas::NONE;
        for (number, quota) in (1..).zip(Quota::ALL) {
            assert_eq!(Quota::named(quota.name()), Some(quota));
            quotas.set(quota, Some(number));
        }
        assert_eq!(quotas.iter().map(|(_, number)| number).collect::<Vec<_>>(), (1..=14).map(Some).collect::<Vec<_>>());
        assert_eq!(Quota::named("callbacks"), None);
    }

    #[test]
    fn unset_quota_is_above_every_ceiling() {
        let ceilings = Quotas::NONE.with(Quota::PendingMax, 10);
        assert_eq!(Quotas::NONE.first_above(&ceilings), Some(Quota::PendingMax));
        assert_eq!(Quotas::NONE.with(Quota::PendingMax, 11).first_above(&ceilings), Some(Quota::PendingMax));
        assert_eq!(Quotas::NONE.with(Quota::PendingMax, 10).first_above(&ceilings), None);
        assert_eq!(Quotas::NONE.lowered_to(&ceilings), ceilings);
        assert_eq!(ceilings.lowered_to(&Quotas::NONE), ceilings);
    }

    #[test]
    fn ceiling_does_not_set_a_retention() {
        let ceilings = Quotas::NONE.with(Quota::RetentionDays, 30);
        assert_eq!(Quotas::NONE.lowered_to(&ceilings), Quotas::NONE);
        assert_eq!(Quotas::NONE.with(Quota::RetentionDays, 90).lowered_to(&ceilings), ceilings);
    }

    #[test]
    fn tenant_gets_enough_pollers_for_its_rate_quota_plus_ten_percent() {
        let quotas = [0, 1, 900, 1_000, 1_001, 7_000, 8_000, 50_000, 60_000, 1_000_000, u32::MAX];
        assert_eq!(quotas.map(pollers), [2, 2, 2, 2, 4, 8, 16, 64, 128, 1_024, 1_024]);
    }

    #[test]
    fn idle_token_bucket_gives_at_most_one_period_of_tokens_at_once() {
        let rate = Rate::new(10, SECOND);
        let mut bucket = TokenBucket::default();
        let now = Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| bucket.take(rate, now)).count(), 10);
        assert_eq!(bucket.next(rate, now), Some(now + SECOND / 10));
        assert!(bucket.take(rate, now + SECOND / 10));
        assert!(!bucket.take(rate, now + SECOND / 10));
    }

    #[test]
    fn token_bucket_gives_no_token_if_its_rate_is_zero() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.next(Rate::new(0, SECOND), SECOND), None);
        assert!(!bucket.take(Rate::new(5, SECOND).share(0, 2), SECOND));
        let slow = Rate::new(1, SECOND).share(1, 3);
        assert!(bucket.take(slow, SECOND));
        assert_eq!(bucket.next(slow, SECOND), Some(4 * SECOND - SECOND.saturating_sub(SECOND)));
    }

    proptest! {
        #[test]
        fn bucket_gives_at_most_its_rate_plus_one_period_of_tokens(
            tokens in 1_u32..1_000, waits in prop::collection::vec(0_u64..50, 1..200)
        ) {
            let rate = Rate::new(tokens, SECOND);
            let mut bucket = TokenBucket::default();
            let (mut now, mut taken) = (Duration::from_secs(5), 0_u32);
            let began = now;
            for wait in waits {
                now += Duration::from_millis(wait);
                while bucket.take(rate, now) {
                    taken += 1;
                }
                let arrived = (now - began).as_secs_f64() * f64::from(tokens);
                // `Rate` rounds the interval between two tokens down to whole nanoseconds, so the test tolerates a few
                // more tokens.
                prop_assert!(f64::from(taken) <= arrived + f64::from(tokens) + 1.0 + arrived * 1e-6);
                prop_assert!(f64::from(taken) + 1.0 >= arrived.min(f64::from(tokens)));
            }
        }
    }
}

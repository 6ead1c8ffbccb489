//! What a tenant may use, and the token bucket that measures rates.

use std::time::Duration;

/// One of the things that are limited for each tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quota {
    /// Attempts, retries among them. Those above it are made late, in due order; none is dropped.
    CallbacksPerMinute,
    /// Schedules made, put ones among them.
    CreatesPerSecond,
    /// Schedules that have an occurrence to come.
    PendingMax,
    PayloadBytesMax,
    /// How far ahead `at` may be, and the longest `every`.
    HorizonDays,
    /// Attempts in flight, over all targets.
    InFlightMax,
    /// Attempts in flight to one scheme, host and port.
    InFlightPerTargetMax,
    /// Attempts to one scheme, host and port.
    CallbacksPerSecondPerTarget,
}

impl Quota {
    pub const ALL: [Quota; 8] = [
        Quota::CallbacksPerMinute,
        Quota::CreatesPerSecond,
        Quota::PendingMax,
        Quota::PayloadBytesMax,
        Quota::HorizonDays,
        Quota::InFlightMax,
        Quota::InFlightPerTargetMax,
        Quota::CallbacksPerSecondPerTarget,
    ];

    /// As stored and in the API; it never changes.
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
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Quota::ALL.into_iter().find(|quota| quota.name() == name)
    }
}

/// A number for each [`Quota`], inclusive; `None`: as much as the service takes from anybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quotas([Option<u32>; Quota::ALL.len()]);

impl Quotas {
    /// No tenant's own limits.
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

    /// The first that is above its ceiling.
    #[must_use]
    pub fn first_above(&self, ceilings: &Quotas) -> Option<Quota> {
        self.iter().map(|(quota, _)| quota).find(|quota| self.lowered(*quota, ceilings) != self.get(*quota))
    }

    /// As it is, but nothing above its ceiling.
    #[must_use]
    pub fn lowered_to(&self, ceilings: &Quotas) -> Quotas {
        Quotas(Quota::ALL.map(|quota| self.lowered(quota, ceilings)))
    }

    fn lowered(&self, quota: Quota, ceilings: &Quotas) -> Option<u32> {
        [self.get(quota), ceilings.get(quota)].into_iter().flatten().min()
    }
}

/// Callbacks a minute that one poller is made for (seed 004).
pub const CALLBACKS_PER_POLLER: u32 = 1_000;
/// Pollers that a tenant gets beyond what its quota needs, in percent.
pub const SPARE_PERCENT: u32 = 10;
/// However high a quota is. Each poller costs its owner a read now and then, also when nothing is due.
pub const POLLERS_MAX: u16 = 1_024;

/// How many pollers a quota of so many callbacks a minute asks for: a power of two, at most [`POLLERS_MAX`].
#[must_use]
pub fn pollers(callbacks_per_minute: u32) -> u16 {
    let needed = u64::from(callbacks_per_minute.div_ceil(CALLBACKS_PER_POLLER).max(1));
    let with_spare = (needed * u64::from(100 + SPARE_PERCENT)).div_ceil(100);
    u16::try_from(with_spare.next_power_of_two()).unwrap_or(POLLERS_MAX).min(POLLERS_MAX)
}

/// So many in so long, which is also what may come at once after a rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// From one token to the next; `None`: there are none.
    each: Option<Duration>,
    per: Duration,
}

impl Rate {
    #[must_use]
    pub fn new(tokens: u32, per: Duration) -> Self {
        Rate { each: (tokens > 0).then(|| per / tokens), per }
    }

    /// How many come in so long.
    #[must_use]
    pub fn tokens_in(self, time: Duration) -> u64 {
        let come = self.each.map_or(0, |each| time.as_nanos() / each.as_nanos().max(1));
        u64::try_from(come).unwrap_or(u64::MAX)
    }

    /// `part` of `whole` of this rate. `part` is at most `whole`.
    #[must_use]
    pub fn share(self, part: u32, whole: u32) -> Self {
        assert!(part <= whole, "a share is a part");
        match part {
            0 => Rate { each: None, ..self },
            _ => Rate { each: self.each.map(|each| each.saturating_mul(whole) / part), ..self },
        }
    }
}

/// Tokens come at a [`Rate`] and are kept up to what comes in its time: virtual scheduling (ITU-T I.371), which is the same
/// as a token bucket and needs one number. The rate is an argument, so that it may change at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TokenBucket {
    /// When it will be full again, by a monotonic clock.
    full_at: Duration,
}

impl TokenBucket {
    /// When there is a token: `now` if there is one, `None` if there never will be at this rate.
    #[must_use]
    pub fn next(&self, rate: Rate, now: Duration) -> Option<Duration> {
        let each = rate.each?;
        // One that is full always has a token, however slowly they come.
        let room = rate.per.saturating_sub(each);
        Some(self.full_at.saturating_sub(room).max(now))
    }

    /// Takes one token, if there is one.
    pub fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let is_there = self.next(rate, now) == Some(now);
        if let Some(each) = rate.each.filter(|_| is_there) {
            self.full_at = self.full_at.max(now).saturating_add(each);
        }
        is_there
    }

    /// A token that was taken and not used.
    pub fn give_back(&mut self, rate: Rate) {
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
    fn every_quota_is_found_by_its_name_and_has_a_place_of_its_own() {
        let mut quotas = Quotas::NONE;
        for (number, quota) in (1..).zip(Quota::ALL) {
            assert_eq!(Quota::named(quota.name()), Some(quota));
            quotas.set(quota, Some(number));
        }
        assert_eq!(quotas.iter().map(|(_, number)| number).collect::<Vec<_>>(), (1..=8).map(Some).collect::<Vec<_>>());
        assert_eq!(Quota::named("callbacks"), None);
    }

    #[test]
    fn a_quota_without_a_number_is_above_every_ceiling() {
        let ceilings = Quotas::NONE.with(Quota::PendingMax, 10);
        assert_eq!(Quotas::NONE.first_above(&ceilings), Some(Quota::PendingMax));
        assert_eq!(Quotas::NONE.with(Quota::PendingMax, 11).first_above(&ceilings), Some(Quota::PendingMax));
        assert_eq!(Quotas::NONE.with(Quota::PendingMax, 10).first_above(&ceilings), None);
        assert_eq!(Quotas::NONE.lowered_to(&ceilings), ceilings);
        assert_eq!(ceilings.lowered_to(&Quotas::NONE), ceilings);
    }

    #[test]
    fn pollers_follow_the_quota_with_a_tenth_to_spare() {
        let asked = [0, 1, 900, 1_000, 1_001, 7_000, 8_000, 50_000, 60_000, 1_000_000, u32::MAX];
        assert_eq!(asked.map(pollers), [2, 2, 2, 2, 4, 8, 16, 64, 128, 1_024, 1_024]);
    }

    #[test]
    fn a_rested_bucket_gives_as_many_as_come_in_its_time_and_then_one_by_one() {
        let rate = Rate::new(10, SECOND);
        let mut bucket = TokenBucket::default();
        let now = Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| bucket.take(rate, now)).count(), 10);
        assert_eq!(bucket.next(rate, now), Some(now + SECOND / 10));
        assert!(bucket.take(rate, now + SECOND / 10));
        assert!(!bucket.take(rate, now + SECOND / 10));
    }

    #[test]
    fn a_rate_of_none_gives_none_and_a_share_of_a_slow_one_gives_one_in_its_time() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.next(Rate::new(0, SECOND), SECOND), None);
        assert!(!bucket.take(Rate::new(5, SECOND).share(0, 2), SECOND));
        let slow = Rate::new(1, SECOND).share(1, 3);
        assert!(bucket.take(slow, SECOND));
        assert_eq!(bucket.next(slow, SECOND), Some(4 * SECOND - SECOND.saturating_sub(SECOND)));
    }

    proptest! {
        #[test]
        fn in_no_stretch_of_time_come_more_than_it_and_a_rest_give(
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
                let came = (now - began).as_secs_f64() * f64::from(tokens);
                // Tokens come at whole nanoseconds.
                prop_assert!(f64::from(taken) <= came + f64::from(tokens) + 1.0 + came * 1e-6);
                prop_assert!(f64::from(taken) + 1.0 >= came.min(f64::from(tokens)));
            }
        }
    }
}

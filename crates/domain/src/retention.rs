//! Retention classes: the times for which a tenant can let the store retain its history.
//!
//! docs/decisions/0243-retain-runs-by-the-class-of-their-tenant.md gives the reasons for the design.

use std::time::Duration;

use crate::{Quota, Tenant, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// Class of the history of a tenant: its finished runs, and its ended or cancelled schedules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Retention {
    Day,
    Week,
    Month,
    Quarter,
}

impl Retention {
    /// All classes, the shortest first.
    pub const ALL: [Retention; 4] = [Retention::Day, Retention::Week, Retention::Month, Retention::Quarter];
    /// Longest time for which a class retains history.
    pub const LONGEST: Duration = Retention::Quarter.time();

    #[must_use]
    pub const fn days(self) -> u32 {
        match self {
            Retention::Day => 1,
            Retention::Week => 7,
            Retention::Month => 30,
            Retention::Quarter => 90,
        }
    }

    /// Returns the class with this number of days.
    #[must_use]
    pub fn from_days(days: u32) -> Option<Self> {
        Retention::ALL.into_iter().find(|class| class.days() == days)
    }

    /// Returns the time for which the store retains history of this class.
    #[must_use]
    pub const fn time(self) -> Duration {
        Duration::from_secs(self.days() as u64 * DAY.as_secs())
    }

    /// Returns the start of the history of this class that a store must retain when its clock shows `now`. The start is
    /// rounded down to a whole day, because a store may delete whole days.
    #[must_use]
    pub fn history_from(self, now: Timestamp) -> Timestamp {
        start_of_day(now - self.time())
    }
}

/// Returns the start of the UTC day of an instant.
#[must_use]
pub fn start_of_day(at: Timestamp) -> Timestamp {
    const MILLIS: i64 = 86_400_000;
    Timestamp::from_millis(at.as_millis() - at.as_millis().rem_euclid(MILLIS))
}

impl Tenant {
    /// Returns the time for which the store retains the tenant's history, if it retains the history of a tenant without
    /// a class for `default`. A change of the class also applies to stored history.
    #[must_use]
    pub fn retention(&self, default: Duration) -> Duration {
        let [chosen, ceiling] = [&self.quotas, &self.ceilings].map(|quotas| quotas.get(Quota::RetentionDays));
        let chosen = class_of(chosen).map_or(default, Retention::time);
        class_of(ceiling).map_or(chosen, |ceiling| chosen.min(ceiling.time()))
    }

    /// Returns the start of the tenant's history that a store must retain when its clock shows `now`, if `default` is
    /// the start for a tenant without a class.
    #[must_use]
    pub fn history_from(&self, now: Timestamp, default: Timestamp) -> Timestamp {
        let [chosen, ceiling] = [&self.quotas, &self.ceilings].map(|quotas| quotas.get(Quota::RetentionDays));
        let chosen = class_of(chosen).map_or(default, |class| class.history_from(now));
        class_of(ceiling).map_or(chosen, |ceiling| chosen.max(ceiling.history_from(now)))
    }
}

/// Returns the class of a quota or a ceiling. A number between two classes means the longer class. The API accepts only
/// the numbers of classes.
fn class_of(days: Option<u32>) -> Option<Retention> {
    let days = days?;
    Some(Retention::ALL.into_iter().find(|class| class.days() >= days).unwrap_or(Retention::Quarter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SigningSecret, TenantId};

    #[test]
    fn retention_is_the_chosen_class_up_to_the_ceiling() {
        let retention = |chosen, ceiling| {
            let mut tenant = Tenant::new(TenantId(1), "a", 1, SigningSecret::first(vec![0; 24], Timestamp::MIN));
            tenant.quotas.set(Quota::RetentionDays, chosen);
            tenant.ceilings.set(Quota::RetentionDays, ceiling);
            tenant.retention(DAY * 14).as_secs() / 86_400
        };
        assert_eq!(retention(None, None), 14, "the option of the server applies");
        assert_eq!([1, 7, 30, 90].map(|days| retention(Some(days), None)), [1, 7, 30, 90]);
        assert_eq!([retention(None, Some(7)), retention(None, Some(90))], [7, 14], "a ceiling only shortens");
        assert_eq!([retention(Some(8), None), retention(Some(u32::MAX), None)], [30, 90]);
        assert_eq!(retention(Some(90), Some(30)), 30);
    }

    #[test]
    fn retained_history_starts_at_the_start_of_a_day() {
        let now = Timestamp::from_millis(1_800_000_000_123);
        for class in Retention::ALL {
            let from = class.history_from(now);
            assert_eq!(from.as_millis().rem_euclid(86_400_000), 0);
            assert!(from <= now - class.time() && now - class.time() < from + DAY, "{class:?}");
            assert_eq!(Retention::from_days(class.days()), Some(class));
        }
        assert_eq!(Retention::from_days(2), None);
    }
}

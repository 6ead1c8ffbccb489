//! Limits of the history that one call deletes: an instant for each tenant, by the tenant's class of retention.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Tenant, Timestamp};

/// Limits of one deletion. The store may delete a tenant's history from before the tenant's limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Limit of the tenants that `by_tenant` lacks.
    pub(super) default: Timestamp,
    by_tenant: BTreeMap<i64, Timestamp>,
}

impl Limits {
    /// Returns the limits by two clocks: the clock of the member, which computed `default` when the clock showed `now`,
    /// and the clock of the database. A member whose clock jumped ahead therefore deletes no rows that the store must
    /// keep by the database's clock.
    pub(super) fn new(tenants: &[Tenant], now: Timestamp, default: Timestamp, database: Timestamp) -> Self {
        let ahead = now.as_millis().saturating_sub(database.as_millis());
        let ahead = Duration::from_millis(u64::try_from(ahead).unwrap_or(0));
        let (now, default) = (now - ahead, default - ahead);
        let of = |tenant: &Tenant| (i64::from(tenant.id.0), tenant.history_from(now, default));
        let by_tenant = tenants.iter().map(of).filter(|(_, limit)| *limit != default).collect();
        Limits { default, by_tenant }
    }

    /// Returns a copy of these limits by which the store keeps all history of `tenants`.
    pub(super) fn without(mut self, tenants: &[i64]) -> Self {
        self.by_tenant.extend(tenants.iter().map(|tenant| (*tenant, Timestamp::MIN)));
        self
    }

    /// Returns the different limits, the latest first.
    pub(super) fn latest_first(&self) -> Vec<Timestamp> {
        let limits: BTreeSet<_> = self.by_tenant.values().chain([&self.default]).copied().collect();
        limits.into_iter().rev().collect()
    }

    pub(super) fn latest(&self) -> Timestamp {
        self.by_tenant.values().chain([&self.default]).copied().fold(self.default, Timestamp::max)
    }

    /// Returns a copy of these limits in which each limit after `usable` is `usable`.
    pub(super) fn capped(&self, usable: Timestamp) -> Self {
        let by_tenant = self.by_tenant.iter().map(|(tenant, limit)| (*tenant, (*limit).min(usable)));
        Limits { default: self.default.min(usable), by_tenant: by_tenant.collect() }
    }

    pub(super) fn of(&self, tenant: i64) -> Timestamp {
        *self.by_tenant.get(&tenant).unwrap_or(&self.default)
    }

    /// Returns the tenants whose limit is after the limit of a tenant without a class, with their limits.
    pub(super) fn after_default(&self) -> impl Iterator<Item = (i64, Timestamp)> + '_ {
        self.by_tenant.iter().map(|(tenant, limit)| (*tenant, *limit)).filter(|(_, limit)| *limit > self.default)
    }

    /// Returns the tenants of `by_tenant` and their limits, as parameters of a statement.
    pub(super) fn columns(&self) -> (Vec<i64>, Vec<i64>) {
        self.by_tenant.iter().map(|(tenant, limit)| (*tenant, limit.as_millis())).unzip()
    }

    /// Splits the tenants by their runs in a partition that ends at `end`.
    pub(super) fn split(&self, end: Timestamp) -> Split {
        let is_over = |limit: Timestamp| limit >= end;
        let by_tenant = self.by_tenant.iter().map(|(tenant, limit)| (*tenant, *limit));
        let (over, kept): (Vec<(i64, Timestamp)>, Vec<_>) = by_tenant.partition(|(_, limit)| is_over(*limit));
        let before = over.iter().map(|(_, limit)| *limit).chain([self.default]).filter(|limit| is_over(*limit));
        let before = before.min().unwrap_or(Timestamp::MIN);
        let ids = |tenants: Vec<(i64, Timestamp)>| tenants.into_iter().map(|(tenant, _)| tenant).collect();
        let kept = if is_over(self.default) { Tenants::These(ids(kept)) } else { Tenants::AllExcept(ids(over)) };
        Split { before, kept }
    }
}

/// Tenants of a partition: those whose class has ended for the whole partition, and the others.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// Earliest limit of the tenants whose class has ended. The last write of a run must be before this limit.
    pub(super) before: Timestamp,
    /// Tenants that keep their runs.
    pub(super) kept: Tenants,
}

/// Set of tenants, in the order of their ids.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Tenants {
    These(Vec<i64>),
    AllExcept(Vec<i64>),
}

impl Tenants {
    /// Returns an SQL expression that is true if the partition has a run of these tenants. Each part of the expression
    /// reads one row by the index on the tenant.
    pub(super) fn have_run_in(&self, partition: &str) -> String {
        let exists = |condition: String| format!("exists (select from reveille.{partition} where {condition})");
        match self {
            Tenants::These(tenants) if tenants.is_empty() => "false".to_owned(),
            Tenants::These(tenants) => {
                let tenants: Vec<String> = tenants.iter().map(i64::to_string).collect();
                exists(format!("tenant = any('{{{}}}'::bigint[])", tenants.join(",")))
            }
            Tenants::AllExcept(tenants) => {
                let mut parts = Vec::new();
                let mut above = String::new();
                for tenant in tenants {
                    parts.push(exists(format!("{above}tenant < {tenant}")));
                    above = format!("tenant > {tenant} and ");
                }
                parts.push(exists(format!("{above}true")));
                format!("({})", parts.join(" or "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Quota, SigningSecret, TenantId};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn tenant(number: u32, days: Option<u32>) -> Tenant {
        let mut tenant = Tenant::new(TenantId(number), "a", 1, SigningSecret::first(vec![0; 24], Timestamp::MIN));
        tenant.quotas.set(Quota::RetentionDays, days);
        tenant
    }

    #[test]
    fn store_deletes_history_by_the_clock_with_the_earlier_time() {
        let (database, month) = (Timestamp::from_millis(1_800_000_000_000), Duration::from_secs(30 * 86_400));
        let default = |now, before| Limits::new(&[], now, before, database).default;
        let year_ahead = database + Duration::from_secs(365 * 86_400);
        assert_eq!(default(year_ahead, year_ahead - month), database - month);
        let second_behind = database - Duration::from_secs(1);
        assert_eq!(default(second_behind, second_behind - month), second_behind - month);
        let ahead = Limits::new(&[tenant(1, Some(1))], year_ahead, year_ahead - month, database);
        assert!(ahead.of(1) <= database - DAY, "the clock of the database bounds the limits of the classes");
    }

    #[test]
    fn limits_split_the_tenants_of_a_day_by_their_classes() {
        let now = Timestamp::from_millis(20_000 * 86_400_000);
        let tenants = [tenant(1, Some(1)), tenant(2, None), tenant(3, Some(90)), tenant(4, Some(7))];
        let limits = Limits::new(&tenants, now, now - DAY * 30, now);
        let split = |days| limits.split(now - DAY * days);
        assert_eq!(split(1), Split { before: now - DAY, kept: Tenants::AllExcept(vec![1]) });
        assert_eq!(split(7), Split { before: now - DAY * 7, kept: Tenants::AllExcept(vec![1, 4]) });
        assert_eq!(split(30), Split { before: now - DAY * 30, kept: Tenants::These(vec![3]) });
        assert_eq!(split(90), Split { before: now - DAY * 90, kept: Tenants::These(Vec::new()) });
        assert_eq!(limits.latest_first(), [1, 7, 30, 90].map(|days| now - DAY * days));
        let capped = limits.capped(now - DAY * 8);
        assert_eq!([1, 2, 3, 4].map(|tenant| capped.of(tenant)), [8, 30, 90, 8].map(|days| now - DAY * days));
        assert_eq!(limits.after_default().map(|(tenant, _)| tenant).collect::<Vec<_>>(), [1, 4]);
        let unreadable = limits.without(&[5]);
        assert_eq!(unreadable.split(now - DAY * 90).kept, Tenants::These(vec![5]), "no limit applies to the tenant");
    }
}

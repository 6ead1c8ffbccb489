//! Turns of the tenants, in the order of the processor time that their attempts have used.
//!
//! Each tenant has an account: the processor time of its attempts, divided by its weight. The tenant with the lowest
//! account gets the next turn (start-time fair queueing; Goyal, Vin and Cheng 1996). While the processors are
//! saturated, each tenant that has keys therefore gets processor time in proportion to its weight, and a tenant that
//! needs less than its share gets the next turn at once. If all attempts cost the same and all weights are equal, the
//! tenants alternate.
//!
//! Invariants: a tenant has at most one turn. A tenant gains nothing from a time without keys: its account then rises
//! to the account of the tenant that had the last turn.
//!
//! docs/decisions/0246-queue-starts-before-the-processors.md gives the reasons for the design.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::TenantId;
use runtime::Monotonic;

/// Smallest weight of a tenant, in callbacks per minute. It is the quota of a new tenant. Each tenant with a lower
/// quota or without a quota has this weight.
pub(super) const WEIGHT_MIN: u32 = 50_000;
/// Processor time for an attempt outside the measured code: the owner, the outcome writer and the store.
const FIXED_COST: Duration = Duration::from_micros(100);
/// Part of a new measurement in the mean cost of a tenant's attempts: one in this number.
const MEASUREMENTS: u32 = 16;
/// Time after the start of a key during which its tenant counts as a user of the processors.
const SHARED_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Tenants that have a turn, with their accounts. Of two tenants with equal accounts, the tenant that got its turn
    /// first is first.
    order: BTreeSet<(Duration, u64, TenantId)>,
    /// Number of turns that tenants got so far.
    given: u64,
    /// Account of the tenant that had the last turn.
    account: Duration,
    /// Tenant of the last started key.
    last: Option<TenantId>,
    /// End of the period in which several tenants share the processors.
    shared_until: Option<Monotonic>,
}

/// Turn and account of one tenant.
#[derive(Debug, Default)]
pub(super) struct TenantTurn {
    has_turn: bool,
    account: Duration,
    /// Mean of the measured processor time of the tenant's attempts.
    cost: Duration,
}

impl Turns {
    /// Removes the next turn, and returns its tenant. The caller calls [`TenantTurn::end`].
    pub(super) fn next(&mut self) -> Option<TenantId> {
        let (account, _, tenant) = self.order.pop_first()?;
        self.account = account;
        Some(tenant)
    }

    /// Gives the tenant a turn, unless it has one.
    pub(super) fn offer(&mut self, tenant: TenantId, turn: &mut TenantTurn) {
        if std::mem::replace(&mut turn.has_turn, true) {
            return;
        }
        turn.account = turn.account.max(self.account);
        self.order.insert((turn.account, self.given, tenant));
        self.given += 1;
    }

    /// Adds the expected cost of a key that the tenant starts now to the tenant's account. The tenant has no turn.
    pub(super) fn record_start(&mut self, tenant: TenantId, turn: &mut TenantTurn, weight: u32, now: Monotonic) {
        assert!(!turn.has_turn, "the account of a tenant with a turn does not change");
        let cost = (FIXED_COST + turn.cost).saturating_mul(WEIGHT_MIN) / weight.max(WEIGHT_MIN);
        turn.account = turn.account.saturating_add(cost);
        if self.last.replace(tenant).is_some_and(|last| last != tenant) {
            self.shared_until = Some(now + SHARED_FOR);
        }
    }

    /// Returns true if several tenants have turns, or have started keys in the last minute.
    pub(super) fn is_shared(&self, now: Monotonic) -> bool {
        self.order.len() > 1 || self.shared_until.is_some_and(|until| now < until)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Removes all turns. The caller calls [`TenantTurn::end`] for each tenant.
    pub(super) fn clear(&mut self) {
        self.order.clear();
    }
}

impl TenantTurn {
    pub(super) fn end(&mut self) {
        self.has_turn = false;
    }

    /// Records the processor time of one attempt.
    pub(super) fn record_cost(&mut self, cost: Duration) {
        self.cost = (self.cost.saturating_mul(MEASUREMENTS - 1).saturating_add(cost)) / MEASUREMENTS;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NOW: Monotonic = Monotonic::from_start(Duration::from_secs(1_000));

    /// Tenants that always have keys, each with its weight.
    struct Bench {
        turns: Turns,
        tenants: BTreeMap<TenantId, (TenantTurn, u32)>,
    }

    impl Bench {
        fn new(tenants: &[(u32, u32, Duration)]) -> Self {
            let mut bench = Bench { turns: Turns::default(), tenants: BTreeMap::new() };
            for (tenant, weight, cost) in tenants {
                let mut turn = TenantTurn { cost: *cost, ..TenantTurn::default() };
                bench.turns.offer(TenantId(*tenant), &mut turn);
                bench.tenants.insert(TenantId(*tenant), (turn, *weight));
            }
            bench
        }

        /// Gives turns until the attempts have used `time`. Returns the number of keys that each tenant started.
        fn run(&mut self, time: Duration) -> BTreeMap<u32, u32> {
            let (mut used, mut started) = (Duration::ZERO, BTreeMap::new());
            while used < time {
                let tenant = self.turns.next().unwrap();
                let (turn, weight) = self.tenants.get_mut(&tenant).unwrap();
                turn.end();
                self.turns.record_start(tenant, turn, *weight, NOW);
                self.turns.offer(tenant, turn);
                used += FIXED_COST + turn.cost;
                *started.entry(tenant.0).or_default() += 1;
            }
            started
        }
    }

    #[test]
    fn tenants_with_costly_attempts_start_fewer_keys() {
        let mut bench =
            Bench::new(&[(1, WEIGHT_MIN, Duration::from_micros(100)), (2, WEIGHT_MIN, Duration::from_micros(300))]);
        let started = bench.run(Duration::from_secs(1));
        assert_eq!(started, BTreeMap::from([(1, 2_500), (2, 1_250)]));
    }

    #[test]
    fn tenants_share_processor_time_in_proportion_to_their_weights() {
        let mut bench = Bench::new(&[(1, 4 * WEIGHT_MIN, Duration::ZERO), (2, 0, Duration::ZERO)]);
        let started = bench.run(Duration::from_secs(1));
        assert_eq!(started, BTreeMap::from([(1, 8_000), (2, 2_000)]));
    }

    #[test]
    fn tenant_without_keys_saves_no_processor_time_for_later() {
        let mut bench = Bench::new(&[(1, 0, Duration::ZERO)]);
        bench.run(Duration::from_secs(1));
        let mut late = TenantTurn::default();
        bench.turns.offer(TenantId(2), &mut late);
        bench.tenants.insert(TenantId(2), (late, 0));
        let started = bench.run(Duration::from_millis(10));
        assert_eq!(started, BTreeMap::from([(1, 50), (2, 50)]));
    }

    #[test]
    fn processors_are_shared_only_while_several_tenants_start_keys() {
        let mut bench = Bench::new(&[(1, 0, Duration::ZERO)]);
        bench.run(Duration::from_secs(1));
        assert!(!bench.turns.is_shared(NOW), "a single tenant shares the processors with no tenant");
        let mut other = TenantTurn::default();
        bench.turns.record_start(TenantId(2), &mut other, 0, NOW);
        assert!(bench.turns.is_shared(NOW + Duration::from_secs(59)));
        assert!(!bench.turns.is_shared(NOW + Duration::from_secs(61)));
    }

    #[test]
    fn mean_cost_follows_the_measurements() {
        let mut turn = TenantTurn::default();
        (0..100).for_each(|_| turn.record_cost(Duration::from_micros(160)));
        assert!(turn.cost > Duration::from_micros(150) && turn.cost <= Duration::from_micros(160), "{:?}", turn.cost);
    }
}

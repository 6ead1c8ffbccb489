use super::*;

/// Queues `count` keys of each tenant. The keys of tenant 1 are below `count`.
fn two_tenants(dispatch: &mut Dispatch, count: u32) {
    for entry in 0..count {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
        assert!(dispatch.push(lane(2, 1), count + entry, NOW));
    }
}

fn started_of_first(dispatch: &mut Dispatch, keys: usize) -> usize {
    (0..keys).filter(|_| dispatch.pop(AT).unwrap() < 100).count()
}

#[test]
fn tenant_with_twice_the_smallest_weight_gets_twice_the_turns() {
    let mut dispatch = dispatch(200, 400, 200);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 100_000)));
    dispatch.limit(TenantId(2), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 10_000)));
    two_tenants(&mut dispatch, 100);
    assert_eq!(started_of_first(&mut dispatch, 90), 60);
}

#[test]
fn tenant_whose_attempts_cost_more_gets_fewer_turns() {
    let mut dispatch = dispatch(200, 400, 200);
    two_tenants(&mut dispatch, 100);
    assert_eq!(started_of_first(&mut dispatch, 10), 5);
    (0..200).for_each(|_| dispatch.record_cost(TenantId(2), Duration::from_micros(300)));
    let started = started_of_first(&mut dispatch, 50);
    assert!((39..=41).contains(&started), "{started} of 50 keys started for the tenant with a quarter of the cost");
}

#[test]
fn processors_are_shared_while_two_tenants_have_keys() {
    let mut dispatch = dispatch(200, 400, 200);
    assert!(dispatch.push(lane(1, 1), 0, NOW));
    assert!(!dispatch.is_shared(AT.monotonic));
    assert!(dispatch.push(lane(2, 1), 1, NOW));
    assert!(dispatch.is_shared(AT.monotonic));
}

#[test]
fn high_quota_allows_more_outcomes_that_wait_for_the_disk() {
    let mut dispatch = dispatch(1_000, 100, 1_000);
    let quotas = Quotas::NONE.with(Quota::CallbacksPerMinute, 1_000_000);
    dispatch.limit(TenantId(1), limits(quotas));
    for entry in 0..200 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    while dispatch.pop(AT).is_some() {
        dispatch.ended(lane(1, 1), AT, AVAILABLE);
    }
    assert_eq!(dispatch.unresolved(), 188, "16 of 17 unresolved keys instead of 4 of 5");
    assert!(dispatch.push(lane(2, 1), 200, NOW));
    assert_eq!(dispatch.pop(AT), Some(200));
    dispatch.limit(TenantId(1), limits(Quotas::NONE));
    (0..20).for_each(|_| dispatch.resolved(TenantId(1)));
    assert_eq!(dispatch.pop(AT), None, "without the quota, the tenant has reached its share");
    (0..20).for_each(|_| dispatch.resolved(TenantId(1)));
    assert!(dispatch.pop(AT).is_some());
}

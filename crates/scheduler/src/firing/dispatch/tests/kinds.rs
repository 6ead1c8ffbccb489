//! Limits and turns of the kinds of targets.

use super::*;

fn bus_lane(tenant: u32, topic: u32) -> Lane {
    lane(tenant, 0xffff_0000 | topic)
}

#[test]
fn limit_of_one_kind_of_targets_delays_only_that_kind() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::BusInFlightMax, 2)));
    for entry in 0..5 {
        assert!(dispatch.push(bus_lane(1, entry % 3), entry, NOW));
        assert!(dispatch.push(lane(1, entry % 3), 10 + entry, NOW));
        assert!(dispatch.push(bus_lane(2, 0), 20 + entry, NOW));
    }
    let mut first = popped(&mut dispatch, AT);
    first.sort_unstable();
    assert_eq!(first, [0, 1, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24]);
    end(&mut dispatch, bus_lane(1, 0), AT, AVAILABLE);
    assert_eq!(popped(&mut dispatch, AT), [2]);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::BusInFlightMax, 4)));
    assert_eq!(popped(&mut dispatch, AT), [3, 4], "a higher quota takes effect at once");
}

#[test]
fn rate_of_one_kind_of_targets_delays_only_that_kind() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    let quotas = |rate| limits(Quotas::NONE.with(Quota::BusCallbacksPerSecond, rate));
    dispatch.limit(TenantId(1), quotas(2));
    for entry in 0..6 {
        assert!(dispatch.push(bus_lane(1, entry % 2), entry, NOW));
        assert!(dispatch.push(lane(1, 1), 10 + entry, NOW));
    }
    let mut first = popped(&mut dispatch, AT);
    first.sort_unstable();
    assert_eq!(first, [0, 1, 10, 11, 12, 13, 14, 15]);
    assert_eq!(dispatch.next_wait(), Some(later(500).monotonic));
    assert_eq!(popped(&mut dispatch, later(499)), NONE);
    assert_eq!(popped(&mut dispatch, later(500)), [2]);
    // A key without an attempt returns its token, which another key uses after the wait.
    dispatch.ended(bus_lane(1, 0), later(500), None);
    assert_eq!(popped(&mut dispatch, later(1_000)), [3, 4]);
    dispatch.limit(TenantId(1), quotas(0));
    assert_eq!(popped(&mut dispatch, later(10_000)), NONE);
    dispatch.limit(TenantId(1), limits(Quotas::NONE));
    assert_eq!(popped(&mut dispatch, later(10_000)), [5]);
}

#[test]
fn kinds_of_targets_of_one_tenant_take_turns() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    for entry in 0..4 {
        assert!(dispatch.push(lane(1, entry), entry, NOW));
    }
    for entry in 10..12 {
        assert!(dispatch.push(bus_lane(1, 0), entry, NOW));
    }
    assert_eq!(popped(&mut dispatch, AT), [0, 10, 1, 11, 2, 3]);
}

#[test]
fn released_keys_keep_the_limit_of_their_kind() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::BusInFlightMax, 1)));
    for entry in 0..4 {
        assert!(dispatch.push(bus_lane(1, 0), entry, NOW));
    }
    assert_eq!(popped(&mut dispatch, AT), [0]);
    assert_eq!(dispatch.remove_released(|entry| entry == 1), [1]);
    assert_eq!(popped(&mut dispatch, AT), NONE);
    end(&mut dispatch, bus_lane(1, 0), AT, AVAILABLE);
    assert_eq!(popped(&mut dispatch, AT), [2]);
}

#[test]
fn keys_of_a_blocked_kind_are_deferred() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::BusCallbacksPerSecond, 1)));
    for entry in 0..6 {
        assert!(dispatch.push(bus_lane(1, entry % 2), entry, NOW));
        assert!(dispatch.push(lane(1, 1), 10 + entry, NOW));
    }
    let mut first = popped(&mut dispatch, AT);
    first.sort_unstable();
    assert_eq!(first, [0, 10, 11, 12, 13, 14, 15]);
    assert_eq!(dispatch.take_overdue(1, PERIOD, 100, AT), NONE);
    let mut deferred = dispatch.take_overdue(1, PERIOD, 100, AT);
    deferred.sort_unstable();
    assert_eq!((deferred, dispatch.parked()), (vec![1, 2, 3, 4, 5], 0));
    // The lanes without keys have no turn when the rate permits a key again.
    assert_eq!(popped(&mut dispatch, later(1_000)), NONE);
    assert!(dispatch.push(bus_lane(1, 0), 20, NOW));
    assert_eq!(popped(&mut dispatch, later(1_000)), [20]);
}

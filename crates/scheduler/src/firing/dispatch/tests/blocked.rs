//! Reasons for which keys waited.

use domain::Delay;

use super::*;

/// Returns the reason for which keys of the lane wait at `now`, if they were due at [`NOW`].
fn reason(dispatch: &Dispatch, lane: Lane, now: Now) -> Option<Delay> {
    dispatch.wait_since(lane, NOW, now).map(|wait| wait.delay)
}

#[test]
fn key_behind_a_limit_of_attempts_in_flight_names_the_limit() {
    let by_quota = |quota| {
        let delay = Delay::Quota { quota, since: later(7_000).wall };
        (10, Quotas::NONE.with(quota, 1), delay)
    };
    for (in_flight_per_target, quotas, expected) in [
        (1, Quotas::NONE, Delay::Slot),
        by_quota(Quota::InFlightPerTargetMax),
        by_quota(Quota::InFlightMax),
        by_quota(Quota::HttpInFlightMax),
    ] {
        let options = Options { in_flight_per_target, ..Options::default() };
        let mut dispatch = Dispatch::new(&options);
        dispatch.limit(TenantId(1), Limits::of(&quotas, &options, 1, 1));
        for entry in 0..2 {
            assert!(dispatch.push(lane(1, 1), entry, NOW));
        }
        assert_eq!(popped(&mut dispatch, AT), [0]);
        assert_eq!(reason(&dispatch, lane(1, 1), AT), None, "nothing is known yet");
        end(&mut dispatch, lane(1, 1), later(7_000), AVAILABLE);
        assert_eq!(popped(&mut dispatch, later(7_000)), [1]);
        assert_eq!(reason(&dispatch, lane(1, 1), later(7_000)), Some(expected), "{quotas:?}");
        assert_eq!(reason(&dispatch, lane(2, 1), later(7_000)), None, "another tenant did not wait");
        let long_after = reason(&dispatch, lane(1, 1), later(14_001));
        assert_eq!(long_after, None, "the limit caused less than half of the lateness");
    }
}

#[test]
fn key_behind_a_rate_names_the_quota_and_the_start() {
    for quota in [Quota::CallbacksPerMinute, Quota::CallbacksPerSecondPerTarget, Quota::HttpCallbacksPerSecond] {
        let mut dispatch = dispatch(1_000, 1_000, 1_000);
        dispatch.limit(TenantId(1), limits(Quotas::NONE.with(quota, 1)));
        for entry in 0..4 {
            assert!(dispatch.push(lane(1, 1), entry, NOW));
        }
        let mut millis = 0;
        while dispatch.parked() > 0 {
            popped(&mut dispatch, later(millis));
            millis += 250;
        }
        let found = reason(&dispatch, lane(1, 1), later(millis));
        assert_eq!(found, Some(Delay::Quota { quota, since: NOW }), "one period has several waits");
    }
}

#[test]
fn key_behind_an_open_circuit_names_the_circuit() {
    let mut dispatch = dispatch(100, 1_000, 1_000);
    for entry in 0..52 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    assert!(popped(&mut dispatch, AT).len() >= 50);
    for _ in 0..52 {
        dispatch.ended(lane(1, 1), AT, Some(TargetHealth::Unavailable));
    }
    assert!(dispatch.push(lane(1, 1), 60, NOW));
    assert_eq!(popped(&mut dispatch, AT), NONE);
    let until = Some(later(1_000).wall);
    assert_eq!(reason(&dispatch, lane(1, 1), later(10)), Some(Delay::Circuit { until }));
    assert_eq!(popped(&mut dispatch, later(1_000)), [60]);
    assert_eq!(reason(&dispatch, lane(1, 1), later(1_000)), Some(Delay::Circuit { until: None }));
}

#[test]
fn service_without_a_free_slot_delays_keys_of_all_tenants() {
    let mut dispatch = dispatch(10, 2, 100);
    for tenant in 1..4 {
        assert!(dispatch.push(lane(tenant, 1), tenant, NOW));
    }
    assert_eq!(popped(&mut dispatch, AT), [1, 2]);
    assert_eq!(reason(&dispatch, lane(3, 1), later(500)), Some(Delay::Slot));
    let earlier = Now { wall: later(1).wall, ..AT };
    assert_eq!(dispatch.wait_since(lane(3, 1), earlier.wall, later(500)), None, "the key was due after the wait");
}

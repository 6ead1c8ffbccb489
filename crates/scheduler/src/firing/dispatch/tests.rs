mod blocked;
mod kinds;
mod turns;

use domain::{DueKey, Incarnation, Occurrence, Quota, Quotas, Revision};

use super::deferred::EARLY_KEYS;
use super::*;
use crate::options::Options;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const AT: Now = Now { wall: NOW, monotonic: Monotonic::from_start(Duration::from_secs(1_000)) };
const PERIOD: Duration = Duration::from_millis(100);
const NONE: [u32; 0] = [];
const AVAILABLE: Option<TargetHealth> = Some(TargetHealth::Available);

fn lane(tenant: u32, target: u32) -> Lane {
    (TenantId(tenant), TargetKey(target))
}

fn dispatch(in_flight_per_target: usize, in_flight_max: usize, parked_per_target: usize) -> Dispatch {
    Dispatch::new(&Options { in_flight_per_target, in_flight_max, parked_per_target, ..Options::default() })
}

/// Ends the attempt of a key, and resolves the key.
fn end(dispatch: &mut Dispatch, lane: Lane, now: Now, health: Option<TargetHealth>) {
    dispatch.ended(lane, now, health);
    dispatch.resolved(lane.0);
}

#[test]
fn tenants_take_turns_no_matter_how_many_keys_they_have() {
    let mut dispatch = dispatch(10, 100, 100);
    for entry in 0..6 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    assert!(dispatch.push(lane(2, 1), 10, NOW));
    assert!(dispatch.push(lane(2, 2), 11, NOW));
    let order: Vec<u32> = std::iter::from_fn(|| dispatch.pop(AT)).collect();
    assert_eq!(order, [0, 10, 1, 11, 2, 3, 4, 5]);
}

#[test]
fn target_at_its_in_flight_limit_delays_only_its_own_keys() {
    let mut dispatch = dispatch(1, 100, 100);
    for entry in 0..3 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    assert!(dispatch.push(lane(1, 2), 10, NOW));
    let order: Vec<u32> = std::iter::from_fn(|| dispatch.pop(AT)).collect();
    assert_eq!(order, [0, 10]);
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    assert_eq!(dispatch.pop(AT), Some(1));
    assert_eq!(dispatch.pop(AT), None);
    assert_eq!((dispatch.unresolved(), dispatch.parked()), (2, 1));
}

#[test]
fn total_in_flight_limit_counts_the_attempts_of_all_targets() {
    let mut dispatch = dispatch(10, 2, 100);
    for target in 0..4 {
        assert!(dispatch.push(lane(1 + target, target), target, NOW));
    }
    assert_eq!(std::iter::from_fn(|| dispatch.pop(AT)).count(), 2);
    end(&mut dispatch, lane(1, 0), AT, AVAILABLE);
    assert_eq!(dispatch.pop(AT), Some(2));
}

#[test]
fn tenants_with_slow_targets_leave_a_free_slot_for_another_tenant() {
    // The last case has the number of tenants for which docs/limits.md promises a free slot, and the default number of
    // slots.
    for (slots, tenants, left_over) in [(100, 1, 20), (100, 2, 11), (100, 20, 1), (4_096, 500, 2)] {
        let mut dispatch = dispatch(10_000, slots, 10_000);
        let keys = u32::try_from(slots).unwrap() * tenants.min(4);
        for entry in 0..keys {
            assert!(dispatch.push(lane(entry % tenants, 1), entry, NOW));
        }
        while dispatch.pop(AT).is_some() {}
        assert_eq!(slots - dispatch.unresolved(), left_over, "{tenants} tenants");
        assert!(dispatch.push(lane(1_000, 1), keys, NOW));
        assert_eq!(dispatch.pop(AT), Some(keys), "another tenant starts its key at once");
        assert_eq!(dispatch.catch_up(NOW), CatchUp::Latest);
    }
}

#[test]
fn tenant_at_its_share_starts_more_keys_after_slots_become_free() {
    let mut dispatch = dispatch(1_000, 100, 1_000);
    for entry in 0..200 {
        assert!(dispatch.push(lane(1 + entry % 2, 1), entry, NOW));
    }
    while dispatch.pop(AT).is_some() {}
    assert_eq!(dispatch.pop(AT), None);
    for _ in 0..44 {
        end(&mut dispatch, lane(2, 1), AT, AVAILABLE);
    }
    while dispatch.pop(AT).is_some() {}
    assert!((80..100).contains(&dispatch.unresolved()), "{} of 100 slots are in use", dispatch.unresolved());
}

#[test]
fn tenant_with_unwritten_outcomes_leaves_slots_for_other_tenants() {
    let mut dispatch = dispatch(1_000, 100, 1_000);
    for entry in 0..200 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    while dispatch.pop(AT).is_some() {
        dispatch.ended(lane(1, 1), AT, AVAILABLE);
    }
    assert_eq!(dispatch.unresolved(), 160);
    assert!(dispatch.push(lane(2, 1), 200, NOW));
    assert_eq!(dispatch.pop(AT), Some(200));
    (0..50).for_each(|_| dispatch.resolved(TenantId(1)));
    assert!(dispatch.may_start(), "the tenant may use the free slots");
}

#[test]
fn unwritten_outcomes_do_not_occupy_slots_of_slow_targets() {
    let mut dispatch = dispatch(1_000, 100, 1_000);
    for entry in 0..100 {
        assert!(dispatch.push(lane(1, 1), entry, NOW));
    }
    while dispatch.pop(AT).is_some() {}
    assert_eq!(dispatch.unresolved(), 80, "the attempts to slow targets");
    // The store is slow, so no outcome becomes durable.
    for entry in 100..160 {
        assert!(dispatch.push(lane(2, 1), entry, NOW));
        assert_eq!(dispatch.pop(AT), Some(entry));
        dispatch.ended(lane(2, 1), AT, AVAILABLE);
    }
    assert_eq!(dispatch.unresolved(), 140);
}

#[test]
fn service_skips_no_occurrence_that_waits_for_a_free_slot() {
    let mut dispatch = dispatch(1_000, 1, 1_000);
    assert!(dispatch.push(lane(1, 1), 0, NOW));
    assert!(dispatch.push(lane(2, 1), 1, NOW));
    assert_eq!(dispatch.pop(AT), Some(0));
    for millis in (0..=3_000).step_by(500) {
        assert_eq!(dispatch.pop(later(millis)), None);
    }
    end(&mut dispatch, lane(1, 1), later(3_000), AVAILABLE);
    assert_eq!(dispatch.pop(later(3_000)), Some(1));
    for (nominal, catch_up) in [(0, CatchUp::Every), (3_000, CatchUp::Every), (3_001, CatchUp::Latest)] {
        assert_eq!(dispatch.catch_up(later(nominal).wall), catch_up, "{nominal}");
    }
}

#[test]
fn full_queue_rejects_a_new_key_and_returns_its_overdue_keys() {
    let mut dispatch = dispatch(1, 100, 2);
    assert!(dispatch.push(lane(1, 1), 0, NOW));
    assert_eq!(dispatch.pop(AT), Some(0));
    assert!(dispatch.push(lane(1, 1), 1, NOW));
    assert!(dispatch.push(lane(1, 1), 2, NOW));
    assert!(!dispatch.push(lane(1, 1), 3, NOW));
    assert_eq!(dispatch.take_overdue(1, PERIOD, 1, AT), NONE);
    assert_eq!(dispatch.take_overdue(1, PERIOD, 1, AT), [2]);
    assert_eq!(dispatch.take_overdue(1, PERIOD, 1, AT), [1]);
    assert_eq!(dispatch.parked(), 0);
}

#[test]
fn overdue_keys_of_a_fast_target_stay_in_memory_after_an_outage() {
    let mut dispatch = dispatch(10, 10_000, 10_000);
    let an_hour_ago = AT.wall - Duration::from_secs(3_600);
    for entry in 0..5_000 {
        dispatch.push(lane(1, 1), entry, an_hour_ago);
    }
    // The target ends 100 attempts per second. In each period of 100 ms, the lane is at its limit.
    let mut started = popped(&mut dispatch, AT);
    for period in 1..=300 {
        let now = later(period * 100);
        for _ in 0..dispatch.unresolved() {
            end(&mut dispatch, lane(1, 1), now, AVAILABLE);
        }
        started.extend(popped(&mut dispatch, now));
        let deferred = dispatch.take_overdue(100, PERIOD, 10_000, now);
        let expected = if period == 101 { Vec::from_iter(2_020..5_000) } else { Vec::new() };
        assert_eq!(deferred, expected, "period {period}");
    }
    assert_eq!(started, Vec::from_iter(0..2_020), "the oldest keys start first");
}

#[test]
fn lane_starts_its_oldest_keys_first_in_any_order_of_arrival() {
    let mut dispatch = dispatch(1, 100, 100);
    let position = |millis| NOW - Duration::from_millis(millis);
    for (entry, age) in [(0, 10), (1, 30), (2, 20), (3, 30), (4, 40)] {
        assert!(dispatch.push(lane(1, 1), entry, position(age)));
        assert!(dispatch.push(lane(1, 2), 10 + entry, position(age)));
    }
    let mut started = Vec::new();
    while let [first, second] = popped(&mut dispatch, AT)[..] {
        started.extend([first, second]);
        end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
        end(&mut dispatch, lane(1, 2), AT, AVAILABLE);
    }
    assert_eq!(started, [4, 14, 1, 11, 3, 13, 2, 12, 0, 10], "the lanes take turns");
}

#[test]
fn queue_defers_the_latest_keys_even_if_older_keys_arrived_later() {
    let mut dispatch = dispatch(1, 100, 100);
    let position = |millis| NOW + Duration::from_millis(millis);
    dispatch.push(lane(1, 1), 0, position(0));
    assert_eq!(dispatch.pop(AT), Some(0));
    dispatch.push(lane(1, 1), 1, position(30));
    dispatch.push(lane(1, 1), 2, position(20));
    for period in 0..2 {
        assert_eq!(dispatch.take_overdue(2, PERIOD, 2, AT), NONE);
        // The arrival of an older key does not shorten the wait of the other keys.
        dispatch.push(lane(1, 1), 3 + period, position(10));
    }
    assert_eq!(dispatch.take_overdue(2, PERIOD, 2, AT), [2, 1]);
    assert_eq!(dispatch.take_overdue(2, PERIOD, 2, AT), [3, 4]);
}

#[test]
fn pause_of_the_process_does_not_count_as_a_wait() {
    let mut dispatch = dispatch(1, 100, 100);
    dispatch.push(lane(1, 1), 0, NOW);
    dispatch.push(lane(1, 1), 1, NOW);
    assert_eq!(dispatch.pop(AT), Some(0));
    assert_eq!(dispatch.take_overdue(2, PERIOD, 100, AT), NONE);
    assert_eq!(dispatch.take_overdue(2, PERIOD, 100, later(3_600_000)), NONE);
    assert_eq!(dispatch.take_overdue(2, PERIOD, 100, later(3_600_100)), [1]);
}

#[test]
fn queue_gives_no_turn_to_a_lane_that_has_no_keys_left() {
    let mut dispatch = dispatch(1, 100, 100);
    for entry in 0..4 {
        assert!(dispatch.push(lane(1, entry / 2), entry, NOW));
    }
    assert_eq!(dispatch.pop(AT), Some(0));
    assert_eq!(dispatch.remove_released(|entry| entry == 1 || entry == 2), [1, 2]);
    assert_eq!(std::iter::from_fn(|| dispatch.pop(AT)).collect::<Vec<_>>(), [3]);
    assert_eq!((dispatch.unresolved(), dispatch.parked()), (2, 0));
    end(&mut dispatch, lane(1, 0), AT, AVAILABLE);
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    assert_eq!(dispatch.pop(AT), None);
}

#[test]
fn slow_targets_leave_space_in_the_key_window_for_other_targets() {
    let options =
        Options { in_flight_per_target: 1, window_keys_max: 120, parked_per_target: 120, ..Options::default() };
    let mut dispatch = Dispatch::new(&options);
    let mut parked = |target| (0..120).filter(|entry| dispatch.push(lane(1, target), *entry, NOW)).count();
    assert_eq!((parked(1), parked(2), parked(3)), (60, 30, 15));
}

#[test]
fn queue_spreads_deferred_keys_over_at_most_one_minute() {
    let mut dispatch = dispatch(1, 100, 2);
    let positions: Vec<Timestamp> = (0..200).map(|_| dispatch.defer_to(lane(1, 1), NOW)).collect();
    assert_eq!(positions[0], NOW + Duration::from_secs(1));
    assert_eq!(positions[1], NOW + Duration::from_secs(2), "a target of unknown rate gets one key per second");
    assert!(positions.iter().all(|position| *position <= NOW + Duration::from_secs(60)));
    assert!(positions.iter().filter(|position| **position == positions[0]).count() <= 4);
}

/// Returns a deferred key at the position `after_millis` after `NOW`.
fn deferred(after_millis: u64) -> DeferredKey {
    let position = NOW + Duration::from_millis(after_millis);
    let (incarnation, revision) = (Incarnation(after_millis.into()), Revision(0));
    let occurrence = Occurrence { incarnation, nominal: NOW, revision, replay: 0 };
    DeferredKey { poller: 3, key: DueKey { position, occurrence, attempt: 1, target: TargetKey(1) } }
}

#[test]
fn deferred_keys_start_early_when_their_lane_has_a_free_slot() {
    let mut dispatch = dispatch(1, 100, 100);
    dispatch.push(lane(1, 1), 0, NOW);
    assert_eq!(popped(&mut dispatch, AT), [0]);
    let all: Vec<DeferredKey> = (1..=3_000).map(|number| deferred(number * 10)).collect();
    all.iter().for_each(|key| dispatch.remember(lane(1, 1), *key));
    assert_eq!(dispatch.take_early(AT), [], "the lane has no free slot");
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    let at = later(55);
    assert_eq!(dispatch.take_early(at), all[5..5 + EARLY_KEYS], "keys whose positions have passed are due anyway");
    assert_eq!(dispatch.take_early(at), all[5 + EARLY_KEYS..]);
    assert_eq!(dispatch.take_early(at), []);
}

#[test]
fn deferred_keys_wait_while_the_circuit_of_their_target_is_open() {
    let mut dispatch = dispatch(100, 100, 100);
    for entry in 0..50 {
        dispatch.push(lane(1, 1), entry, NOW);
    }
    popped(&mut dispatch, AT);
    dispatch.remember(lane(1, 1), deferred(60_000));
    for _ in 0..50 {
        end(&mut dispatch, lane(1, 1), AT, Some(TargetHealth::Unavailable));
    }
    assert_eq!(dispatch.take_early(later(1_500)), []);
    dispatch.push(lane(1, 1), 50, NOW);
    assert_eq!(popped(&mut dispatch, later(1_500)), [50], "one probe starts");
    end(&mut dispatch, lane(1, 1), later(1_500), AVAILABLE);
    assert_eq!(dispatch.take_early(later(1_500)), [deferred(60_000)]);
}

#[test]
fn queue_spreads_deferred_keys_by_the_measured_rate_of_a_target() {
    let mut dispatch = dispatch(10_000, 10_000, 10_000);
    // One attempt stays in flight, so that the queue does not remove the lane.
    dispatch.push(lane(1, 1), 0, NOW);
    dispatch.pop(AT);
    for entry in 0..10_000 {
        dispatch.push(lane(1, 1), entry, NOW);
        dispatch.pop(AT);
        end(
            &mut dispatch,
            lane(1, 1),
            Now { wall: NOW + Duration::from_millis(u64::from(entry) / 3), ..AT },
            AVAILABLE,
        );
    }
    let now = NOW + Duration::from_secs(4);
    dispatch.push(lane(1, 1), 1, NOW);
    let positions: Vec<Timestamp> = (0..2_000).map(|_| dispatch.defer_to(lane(1, 1), now)).collect();
    let span = positions[1_999].since(positions[0]);
    assert!(span < Duration::from_secs(2), "2,000 keys span {span:?} at thousands per second");
}

fn limits(quotas: Quotas) -> Limits {
    Limits::of(&quotas, &Options::default(), 1, 1)
}

fn later(millis: u64) -> Now {
    let by = Duration::from_millis(millis);
    Now { wall: AT.wall + by, monotonic: AT.monotonic + by }
}

/// Returns all keys that may start now.
fn popped(dispatch: &mut Dispatch, now: Now) -> Vec<u32> {
    std::iter::from_fn(|| dispatch.pop(now)).collect()
}

#[test]
fn tenant_above_its_rate_limit_delays_only_its_own_keys() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 60)));
    for entry in 0..70 {
        assert!(dispatch.push(lane(1, entry % 3), entry, NOW));
        assert!(dispatch.push(lane(2, 1), 100 + entry, NOW));
    }
    let first = popped(&mut dispatch, AT);
    assert_eq!(first.iter().filter(|entry| **entry < 100).count(), 60, "one minute of tokens after an idle time");
    assert_eq!(first.len(), 130);
    assert_eq!(dispatch.take_throttled(), 0);
    assert_eq!(dispatch.next_wait(), Some(later(1_000).monotonic));
    assert_eq!(popped(&mut dispatch, later(999)), Vec::<u32>::new());
    assert_eq!(popped(&mut dispatch, later(1_000)), [60]);
    assert_eq!(popped(&mut dispatch, later(3_000)), [61, 62]);
    assert_eq!((dispatch.take_throttled(), dispatch.parked()), (3, 7));
    for _ in 0..3 {
        let deferred = dispatch.take_overdue(1, PERIOD, 100, later(3_000));
        assert_eq!(deferred, NONE, "keys that wait for a rate stay in memory");
    }
    dispatch.limit(TenantId(1), limits(Quotas::NONE));
    assert_eq!(popped(&mut dispatch, later(3_000)).len(), 7, "lifting a limit takes effect at once");
}

#[test]
fn dispatch_queue_requests_few_keys_for_a_tenant_at_its_rate_limit() {
    let mut dispatch = dispatch(1_000, 1_000, 1_000);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 600)));
    assert_eq!(dispatch.demand(TenantId(1)), usize::MAX);
    for entry in 0..650 {
        dispatch.push(lane(1, entry / 100), entry, NOW);
    }
    assert_eq!(popped(&mut dispatch, AT).len(), 600);
    assert_eq!(dispatch.demand(TenantId(1)), 100 - 50, "ten seconds of tokens less the waiting keys");
    assert_eq!(dispatch.demand(TenantId(2)), usize::MAX);
}

#[test]
fn tenant_with_zero_rate_starts_no_key_until_its_rate_is_raised() {
    let mut dispatch = dispatch(10, 10, 10);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 0)));
    dispatch.push(lane(1, 1), 0, NOW);
    assert_eq!(dispatch.pop(AT), None);
    assert_eq!(dispatch.pop(later(86_400_000)), None);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 1)));
    assert_eq!(dispatch.pop(AT), Some(0));
}

#[test]
fn key_that_starts_no_attempt_consumes_no_rate_token() {
    let mut dispatch = dispatch(10, 10, 10);
    let quotas = Quotas::NONE.with(Quota::CallbacksPerMinute, 1).with(Quota::CallbacksPerSecondPerTarget, 1);
    dispatch.limit(TenantId(1), limits(quotas));
    for entry in 0..3 {
        dispatch.push(lane(1, 1), entry, NOW);
        assert_eq!(dispatch.pop(AT), Some(entry));
        end(&mut dispatch, lane(1, 1), AT, None);
    }
    dispatch.push(lane(1, 1), 3, NOW);
    assert_eq!(dispatch.pop(AT), Some(3));
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    dispatch.push(lane(1, 1), 4, NOW);
    assert_eq!(dispatch.pop(AT), None);
}

#[test]
fn rate_limit_of_a_target_applies_even_after_the_target_was_idle() {
    let mut dispatch = dispatch(10, 10, 10);
    dispatch.limit(TenantId(1), limits(Quotas::NONE.with(Quota::CallbacksPerSecondPerTarget, 2)));
    for entry in 0..4 {
        dispatch.push(lane(1, 1), entry, NOW);
        if dispatch.pop(AT).is_some() {
            end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
        }
    }
    dispatch.push(lane(1, 2), 10, NOW);
    assert_eq!(dispatch.pop(AT), Some(10), "another target of the tenant is not delayed");
    assert_eq!(dispatch.pop(AT), None);
    assert_eq!(popped(&mut dispatch, later(500)), [2]);
    assert_eq!(popped(&mut dispatch, later(1_000)), [3]);
}

#[test]
fn in_flight_limits_apply_per_tenant_and_per_target() {
    let mut dispatch = dispatch(10, 100, 100);
    let quotas = |all, each| limits(Quotas::NONE.with(Quota::InFlightMax, all).with(Quota::InFlightPerTargetMax, each));
    dispatch.limit(TenantId(1), quotas(3, 2));
    for entry in 0..12 {
        dispatch.push(lane(1, entry / 4), entry, NOW);
    }
    assert_eq!(popped(&mut dispatch, AT), [0, 4, 8]);
    end(&mut dispatch, lane(1, 0), AT, AVAILABLE);
    assert_eq!(popped(&mut dispatch, AT), [1]);
    dispatch.limit(TenantId(1), quotas(6, 2));
    assert_eq!(popped(&mut dispatch, AT), [5, 9, 2], "a raised limit takes effect without a restart");
    dispatch.limit(TenantId(1), quotas(6, 1));
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    end(&mut dispatch, lane(1, 0), AT, AVAILABLE);
    assert_eq!(popped(&mut dispatch, AT), Vec::<u32>::new(), "a lowered limit waits for attempts to end");
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    assert_eq!(popped(&mut dispatch, AT), [6]);
}

#[test]
fn in_flight_quota_may_exceed_the_default_limit_per_target() {
    let options = Options { in_flight_per_target: 256, in_flight_max: 4_096, ..Options::default() };
    let per_target = |quotas: Quotas| Limits::of(&quotas, &options, 1, 1).in_flight_per_target;
    assert_eq!(per_target(Quotas::NONE), 256);
    assert_eq!(per_target(Quotas::NONE.with(Quota::InFlightPerTargetMax, 1_024)), 1_024);
    assert_eq!(per_target(Quotas::NONE.with(Quota::InFlightPerTargetMax, 100_000)), 4_096);
}

#[test]
fn member_gets_the_part_of_a_tenants_rate_for_its_pollers() {
    let quotas = Quotas::NONE.with(Quota::CallbacksPerMinute, 60).with(Quota::InFlightMax, 10);
    let mut dispatch = dispatch(100, 100, 100);
    dispatch.limit(TenantId(1), Limits::of(&quotas, &Options::default(), 16, 64));
    for entry in 0..30 {
        dispatch.push(lane(1, 1), entry, NOW);
    }
    assert_eq!(popped(&mut dispatch, AT).len(), 3, "a quarter of 10, rounded up");
    let mut taken = 3;
    while dispatch.next_wait().is_none() {
        end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
        taken += popped(&mut dispatch, AT).len();
    }
    assert_eq!(taken, 15, "a quarter of 60");
}

#[test]
fn queued_key_may_start_after_another_attempt_frees_its_slot() {
    let mut dispatch = dispatch(100, 1, 100);
    dispatch.push(lane(1, 1), 1, NOW);
    dispatch.push(lane(1, 1), 2, NOW);
    assert_eq!(popped(&mut dispatch, AT), [1]);
    assert!(!dispatch.may_start(), "all slots are in use");
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    assert!(dispatch.may_start());
    assert_eq!(popped(&mut dispatch, AT), [2]);
    end(&mut dispatch, lane(1, 1), AT, AVAILABLE);
    assert!(!dispatch.may_start(), "no key is left");
}

#[test]
fn dispatch_queue_requests_no_wakeup_while_all_slots_are_in_use() {
    let mut dispatch = dispatch(100, 1, 100);
    dispatch.limit(TenantId(2), limits(Quotas::NONE.with(Quota::CallbacksPerMinute, 60)));
    for entry in 0..62 {
        dispatch.push(lane(2, 1), entry, NOW);
    }
    for _ in 0..60 {
        assert_eq!(popped(&mut dispatch, AT).len(), 1);
        end(&mut dispatch, lane(2, 1), AT, AVAILABLE);
    }
    assert_eq!(popped(&mut dispatch, AT), Vec::<u32>::new());
    assert_eq!(dispatch.next_wait(), Some(later(1_000).monotonic));
    dispatch.push(lane(3, 1), 100, NOW);
    assert_eq!(popped(&mut dispatch, AT), [100]);
    assert_eq!(dispatch.next_wait(), None);
    end(&mut dispatch, lane(3, 1), later(2_000), AVAILABLE);
    assert_eq!(popped(&mut dispatch, later(2_000)), [60], "the ended wait gives the tenant a turn");
}

#[test]
fn unavailable_target_gets_probes_and_delays_no_other_target() {
    let unavailable = Some(TargetHealth::Unavailable);
    let mut dispatch = dispatch(60, 100, 100);
    for entry in 0..70 {
        dispatch.push(lane(1, 1), entry, NOW);
    }
    assert_eq!(popped(&mut dispatch, AT).len(), 60);
    for _ in 0..60 {
        end(&mut dispatch, lane(1, 1), AT, unavailable);
    }
    dispatch.push(lane(1, 2), 100, NOW);
    assert_eq!(popped(&mut dispatch, AT), [100]);
    assert_eq!((dispatch.open_circuits(AT.monotonic), dispatch.next_wait()), (1, Some(later(1_000).monotonic)));
    assert_eq!(popped(&mut dispatch, later(1_000)), [60], "one probe starts");
    end(&mut dispatch, lane(1, 1), later(1_000), unavailable);
    assert_eq!(popped(&mut dispatch, later(2_999)), Vec::<u32>::new());
    assert_eq!(dispatch.take_overdue(1, PERIOD, 3, later(2_999)), NONE);
    let deferred = dispatch.take_overdue(1, PERIOD, 3, later(2_999));
    assert_eq!(deferred, [67, 68, 69], "overdue keys of the target can be deferred");
    assert_eq!(popped(&mut dispatch, later(3_000)), [61]);
    end(&mut dispatch, lane(1, 1), later(3_000), AVAILABLE);
    assert_eq!(popped(&mut dispatch, later(3_000)), [62, 63, 64, 65, 66]);
}

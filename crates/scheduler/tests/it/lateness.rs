//! Tests of the reasons for lateness, which the owner records and an explanation contains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::explain::{Cause, Explanation, Verdict};
use domain::{AttemptResult, Quota, Quotas, ScheduleId, Timestamp, When};
use scheduler::Options;

use crate::harness::{Harness, TENANT, ok, simulate};

const OVER_QUOTA: Quota = Quota::CallbacksPerMinute;

impl Harness {
    async fn explain(&self, id: &str, at: Timestamp) -> Explanation {
        let id = ScheduleId::new(id).unwrap();
        let explained = self.scheduler.explain(TENANT, id, at).await.unwrap();
        explained.expect("the schedule exists")
    }

    /// Waits until the run of the occurrence has succeeded, and returns the causes after the lateness.
    async fn causes_of_lateness(&self, id: &str, at: Timestamp) -> (Duration, Vec<Cause>) {
        loop {
            let Explanation { verdict, causes } = self.explain(id, at).await;
            if verdict == Verdict::Fired {
                let late = causes.iter().position(|cause| matches!(cause, Cause::Late { .. }));
                let late = late.unwrap_or_else(|| panic!("{id} is not late: {causes:?}"));
                let Cause::Late { by } = causes[late] else { unreachable!() };
                return (by, causes[late + 1..].to_vec());
            }
            self.runtime.sleep(Duration::from_millis(100)).await;
        }
    }
}

#[test]
fn run_that_waited_for_a_quota_names_the_quota() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        harness.set_quotas(2, Quotas::NONE.with(OVER_QUOTA, 1)).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        let at = harness.in_ms(3_000);
        for id in ["first", "second"] {
            harness.create(id, When::At(at)).await;
        }
        harness.runtime.sleep(Duration::from_secs(10)).await;
        let is_first = harness.explain("first", at).await.verdict == Verdict::Pending;
        let waiting = if is_first { "first" } else { "second" };
        let explained = harness.explain(waiting, at).await;
        let [Cause::Due { since: due }, Cause::OverQuota { quota: OVER_QUOTA, since }] = explained.causes[..] else {
            panic!("{explained:?}")
        };
        assert!(due == at && since >= at && since.since(at) < Duration::from_secs(1), "{explained:?}");
        let (by, causes) = harness.causes_of_lateness(waiting, at).await;
        assert!(by > Duration::from_secs(50), "{by:?}");
        assert_eq!(causes, [Cause::OverQuota { quota: OVER_QUOTA, since }]);
        harness.scheduler.stop().await;
    });
}

#[test]
fn run_that_waited_for_a_slot_names_the_slot() {
    simulate(async |runtime| {
        let slow = |_: &_| (Duration::from_secs(5), AttemptResult::Answered(200));
        let harness = Harness::open(runtime, Options { in_flight_max: 1, ..Options::default() }, slow).await;
        let at = harness.in_ms(3_000);
        harness.create("first", When::At(at)).await;
        let at = at + Duration::from_millis(1);
        harness.create_for(TENANT, "second", When::At(at), "http://other.test/").await;
        assert_eq!(harness.causes_of_lateness("second", at).await.1, [Cause::NoSlot]);
        harness.scheduler.stop().await;
    });
}

#[test]
fn run_that_waited_for_a_circuit_names_the_circuit() {
    simulate(async |runtime| {
        let is_up = Arc::new(AtomicBool::new(false));
        let target_is_up = is_up.clone();
        let target = move |_: &_| match target_is_up.load(Ordering::Relaxed) {
            true => (Duration::from_millis(3), AttemptResult::Answered(200)),
            false => (Duration::from_millis(3), AttemptResult::Unreachable("connection refused".to_owned())),
        };
        let harness = Harness::open(runtime, Options::default(), target).await;
        let first = harness.in_ms(3_000);
        for number in 0..60 {
            harness.create(&format!("first-{number}"), When::At(first)).await;
        }
        let at = first + Duration::from_millis(200);
        harness.create("last", When::At(at)).await;
        harness.wait_for_calls(60).await;
        is_up.store(true, Ordering::Relaxed);
        assert_eq!(harness.causes_of_lateness("last", at).await.1, [Cause::CircuitOpen { until: None }]);
        harness.scheduler.stop().await;
    });
}

#[test]
fn run_that_was_due_while_no_member_ran_names_the_take_over() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let at = harness.in_ms(5_000);
        harness.create("once", When::At(at)).await;
        let every = harness.create("every", When::every(Duration::from_secs(10))).await;
        harness.scheduler.stop().await;
        harness.runtime.sleep(Duration::from_secs(65)).await;
        let Harness { runtime, store, .. } = harness;
        let restarted_at = runtime.now();
        let harness = Harness::reopen(runtime, store, Options::default(), ok).await.unwrap();
        let (by, causes) = harness.causes_of_lateness("once", at).await;
        assert!(by > Duration::from_secs(50), "{by:?}");
        let [Cause::MemberDown { until: taken_at }] = causes[..] else { panic!("{causes:?}") };
        assert!(taken_at >= restarted_at && taken_at.since(restarted_at) < Duration::from_secs(5));

        // The latest overdue occurrence of the recurring schedule fires, and the earlier ones are missed.
        let latest = every.updated_at + Duration::from_secs(60);
        let (_, causes) = harness.causes_of_lateness("every", latest).await;
        assert_eq!(causes, [Cause::CaughtUp { missed: 5 }, Cause::MemberDown { until: taken_at }]);
        let missed = harness.explain("every", every.updated_at + Duration::from_secs(30)).await;
        let [Cause::Missed { replaced_by, count, .. }] = missed.causes[..] else { panic!("{missed:?}") };
        assert_eq!((missed.verdict, replaced_by, count), (Verdict::DidNotFire, Some(latest), 5));
        harness.scheduler.stop().await;
    });
}

#[test]
fn run_that_is_on_time_has_no_delay() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let at = harness.in_ms(3_000);
        harness.create("once", When::At(at)).await;
        harness.wait_for_calls(1).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        let explained = harness.explain("once", at).await;
        assert!(matches!(explained.causes[..], [Cause::Fired { attempt: 1, .. }]), "{explained:?}");
        harness.scheduler.stop().await;
    });
}

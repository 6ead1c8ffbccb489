use std::time::Duration;

use domain::{AttemptResult, RunState, ScheduleId, SigningSecret, Status, Tenant, TenantId, Timestamp, When};
use scheduler::{CancelResponse, Create, Options};
use simulator::Simulation;
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};

use crate::harness::{Harness, TENANT, ok, put_tenant, simulate, spec, tenant};
use std::sync::Arc;

#[test]
fn one_shot_schedule_fires_once_at_its_instant_and_ends() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let at = harness.in_ms(5_000);
        harness.create("once", When::At(at)).await;
        harness.wait_for_calls(1).await;
        let call = harness.calls().pop().unwrap();
        assert!(call.at >= at && call.at.since(at) <= Duration::from_millis(5), "{} for {at}", call.at);
        harness.runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!(harness.calls().len(), 1);
        let schedule = harness.scheduler.get(TENANT, ScheduleId::new("once").unwrap()).await.unwrap().unwrap();
        assert_eq!(schedule.status, Status::Ended);
        let runs = harness.scheduler.runs(TENANT, schedule.id.clone(), None, 10).await.unwrap().unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].state, RunState::Succeeded);
        assert_eq!(runs[0].attempts.len(), 1);
    });
}

#[test]
fn schedule_with_an_instant_in_the_past_fires_at_once() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        harness.runtime.sleep(Duration::from_millis(777)).await;
        let created_at = harness.runtime.now();
        harness.create("now", When::At(created_at - Duration::from_secs(3))).await;
        harness.wait_for_calls(1).await;
        assert!(harness.runtime.now().since(created_at) <= Duration::from_millis(5));
    });
}

#[test]
fn long_page_of_runs_contains_each_run_once_and_in_order() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let created = harness.create("beat", When::every(Duration::from_secs(1))).await;
        harness.runtime.sleep(Duration::from_millis(260_500)).await;
        for limit in [99, 100, 101, 250, 1_000] {
            let runs = harness.scheduler.runs(TENANT, created.id.clone(), None, limit).await.unwrap().unwrap();
            let nominals: Vec<_> = runs.iter().map(|run| run.occurrence.nominal).collect();
            let expected = (1..=260).map(|n| created.updated_at + Duration::from_secs(n));
            assert_eq!(nominals, expected.take(limit).collect::<Vec<_>>(), "a page of {limit} runs");
        }
    });
}

#[test]
fn recurring_schedule_fires_at_each_instant() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let created = harness.create("beat", When::every(Duration::from_secs(2))).await;
        harness.wait_for_calls(5).await;
        for (n, call) in (1..).zip(harness.calls()) {
            let nominal = created.updated_at + Duration::from_secs(2 * n);
            assert_eq!(call.occurrence.nominal, nominal);
            assert!(call.at.since(nominal) <= Duration::from_millis(5));
        }
    });
}

#[test]
fn metric_counts_the_active_schedules_of_all_tenants() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let later = When::At(harness.in_ms(3_600_000));
        harness.create_for(TENANT, "one", later.clone(), "http://receiver.test/a").await;
        harness.create_for(TenantId(2), "two", later.clone(), "http://receiver.test/a").await;
        let cancelled = harness.create_for(TenantId(2), "three", later, "http://receiver.test/a").await;
        harness.scheduler.cancel(TenantId(2), cancelled.id.clone(), None).await.unwrap();
        harness.runtime.sleep(Duration::from_secs(11)).await;
        let metrics = harness.scheduler.metrics_text();
        assert!(metrics.contains("reveille_schedules{state=\"active\"} 2\n"), "{metrics}");
    });
}

#[test]
fn run_whose_attempts_all_fail_becomes_a_dead_letter() {
    simulate(|runtime| async move {
        let behaviour = |delivery: &scheduler::Delivery| match delivery.occurrence.replay {
            0 => (Duration::from_millis(3), AttemptResult::Answered(500)),
            _ => (Duration::from_millis(3), AttemptResult::Answered(204)),
        };
        let harness = Harness::open(runtime, Options::default(), behaviour).await;
        harness.create("fails", When::At(harness.in_ms(100))).await;
        harness.wait_for_calls(3).await;
        harness.runtime.sleep(Duration::from_secs(100)).await;
        assert_eq!(harness.calls().iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
        let dead = harness.scheduler.dead_letters(TENANT, None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!((dead[0].state, dead[0].attempts.len()), (RunState::Failed, 3));
        let metrics = harness.scheduler.metrics_text();
        assert!(metrics.contains("reveille_dead_letters_total{reason=\"status_5xx\"} 1\n"), "{metrics}");

        let redriven = harness.scheduler.redrive(TENANT, dead[0].occurrence).await.unwrap();
        assert!(matches!(redriven, scheduler::RedriveResponse::Redriven(_)));
        harness.wait_for_calls(4).await;
        assert_eq!(harness.calls()[3].occurrence.replay, 1);
        harness.runtime.sleep(Duration::from_secs(1)).await;
        assert!(harness.scheduler.dead_letters(TENANT, None, 10).await.unwrap().is_empty());
        let again = harness.scheduler.redrive(TENANT, dead[0].occurrence).await.unwrap();
        assert_eq!(again, scheduler::RedriveResponse::NotDead);
        let foreign = harness.scheduler.redrive(TenantId(2), dead[0].occurrence).await.unwrap();
        assert_eq!(foreign, scheduler::RedriveResponse::NotFound);
    });
}

#[test]
fn cancellation_prevents_all_attempts_that_are_not_in_flight() {
    simulate(|runtime| async move {
        let slow = |_: &scheduler::Delivery| (Duration::from_secs(2), AttemptResult::Answered(500));
        let harness = Harness::open(runtime, Options::default(), slow).await;
        let id = |text: &str| ScheduleId::new(text).unwrap();
        harness.create("early", When::At(harness.in_ms(1_000))).await;
        harness.create("late", When::At(harness.in_ms(1_000))).await;
        assert_eq!(harness.scheduler.cancel(TENANT, id("early"), None).await.unwrap(), CancelResponse::Cancelled);
        harness.wait_for_calls(1).await;
        assert_eq!(harness.scheduler.cancel(TENANT, id("late"), None).await.unwrap(), CancelResponse::TooLate);
        assert_eq!(harness.scheduler.cancel(TENANT, id("none"), None).await.unwrap(), CancelResponse::NotFound);
        harness.runtime.sleep(Duration::from_secs(60)).await;
        let calls = harness.calls();
        assert_eq!(calls.len(), 1, "no retry after the cancellation: {calls:?}");
        assert_eq!(calls[0].id, "late");
        let runs = harness.store.runs(calls[0].occurrence.incarnation, None, 10).await.unwrap();
        assert_eq!(runs[0].state, RunState::Cancelled);
    });
}

#[test]
fn put_replaces_the_old_instant_of_a_schedule() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        harness.create("moves", When::At(harness.in_ms(1_000))).await;
        let later = harness.in_ms(4_000);
        let put = Create {
            tenant: Arc::new(tenant(TENANT)),
            id: Some(ScheduleId::new("moves").unwrap()),
            incarnation: None,
            spec: spec(When::At(later), "http://receiver.test/b"),
            by: None,
        };
        let response = harness.scheduler.put(put).await.unwrap().unwrap();
        assert!(!response.created);
        harness.runtime.sleep(Duration::from_secs(10)).await;
        let calls = harness.calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].occurrence.nominal, later);
    });
}

#[test]
fn overdue_callbacks_start_oldest_first_after_a_restart() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        const SCHEDULES: u64 = 12_000;
        let options = || Options { in_flight_max: 64, ..Options::default() };
        let runtime = sim.member("a");
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        // The owner reads the rows of the 64 pollers in 8 calls. The responses arrive at different times.
        let owner = Tenant::new(TENANT, "tenant-1", 64, SigningSecret::first(vec![7; 32], Timestamp::MIN));
        put_tenant(&store, owner.clone()).await.unwrap();
        let harness = Harness::reopen(runtime, store, options(), ok).await.unwrap();
        let (first, owner) = (harness.in_ms(60_000), Arc::new(owner));
        let request = |n| Create {
            tenant: owner.clone(),
            id: None,
            incarnation: None,
            spec: spec(
                When::At(first + Duration::from_millis(n)),
                if n % 2 == 0 { "http://a.test/" } else { "http://b.test/" },
            ),
            by: None,
        };
        let created = harness.scheduler.create((0..SCHEDULES).map(request).collect()).await.unwrap();
        assert!(created.iter().all(Result::is_ok));
        sim.crash("a");
        sim.outside().sleep(Duration::from_secs(120)).await;
        let runtime = sim.restart("a");
        let latency = Some(Duration::from_millis(1)..=Duration::from_millis(100));
        let slow = MemoryOptions { latency, ..MemoryOptions::default() };
        let store = harness.store.reopen(runtime.clone()).with_options(slow);
        let harness = Harness::reopen(runtime, store, options(), ok).await.unwrap();
        harness.wait_for_calls(usize::try_from(SCHEDULES).unwrap()).await;
        let mut latest = first;
        let mut disorder = Duration::ZERO;
        for call in harness.calls() {
            latest = latest.max(call.occurrence.nominal);
            disorder = disorder.max(latest.since(call.occurrence.nominal));
        }
        // At most 64 callbacks, one for each millisecond, start while a callback waits up to 200 ms for its schedule.
        assert!(disorder <= Duration::from_millis(250), "{disorder:?}");
    });
}

#[test]
fn target_that_recovers_receives_its_deferred_callbacks_without_delay() {
    simulate(|runtime| async move {
        let options = Options { in_flight_per_target: 4, parked_for: Duration::from_secs(2), ..Options::default() };
        let recovers_at = runtime.now() + Duration::from_secs(15);
        let clock = runtime.clone();
        let behaviour = move |_: &scheduler::Delivery| match clock.now() < recovers_at {
            true => (Duration::from_secs(2), AttemptResult::TimedOut),
            false => (Duration::from_millis(3), AttemptResult::Answered(200)),
        };
        let harness = Harness::open(runtime, options, behaviour).await;
        let due = harness.in_ms(2_000);
        for n in 0..300 {
            harness.create(&format!("once-{n}"), When::At(due)).await;
        }
        harness.runtime.sleep(recovers_at.since(harness.runtime.now()) + Duration::from_secs(4)).await;
        let mut ids: Vec<String> = harness.calls().into_iter().map(|call| call.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 300, "4 s after the recovery, each callback has started");
        harness.runtime.sleep(Duration::from_secs(120)).await;
        let succeeded = harness.calls().into_iter().filter(|call| call.at >= recovers_at).map(|call| call.id);
        let succeeded: Vec<String> = succeeded.collect();
        let once: std::collections::BTreeSet<&String> = succeeded.iter().collect();
        assert_eq!(once.len(), succeeded.len(), "the target receives no callback again after its success");
    });
}

#[test]
fn slow_target_does_not_delay_callbacks_to_other_targets() {
    simulate(|runtime| async move {
        let options = Options {
            in_flight_per_target: 4,
            parked_per_target: 50,
            parked_for: Duration::from_secs(2),
            ..Options::default()
        };
        let behaviour = |delivery: &scheduler::Delivery| match delivery.schedule.id.as_str().starts_with("slow") {
            true => (Duration::from_secs(3), AttemptResult::Answered(200)),
            false => (Duration::from_millis(3), AttemptResult::Answered(200)),
        };
        let harness = Harness::open(runtime, options, behaviour).await;
        let due = harness.in_ms(3_000);
        for n in 0..200 {
            harness.create_for(TENANT, &format!("slow-{n}"), When::At(due), "http://slow.test/").await;
        }
        for n in 0..20 {
            harness.create_for(TENANT, &format!("quick-{n}"), When::At(due), "http://quick.test/").await;
        }
        harness.runtime.sleep(due.since(harness.runtime.now()) + Duration::from_millis(50)).await;
        let quick = |calls: Vec<crate::harness::Call>| calls.into_iter().filter(|call| call.id.starts_with("quick"));
        assert_eq!(quick(harness.calls()).count(), 20);
        // The slow target completes 4 callbacks in 3 s, so 200 callbacks take 150 s. The owner reads the deferred keys
        // again, and these keys also fire.
        harness.wait_for_calls(220).await;
        harness.runtime.sleep(Duration::from_secs(5)).await;
        let mut ids: Vec<String> = harness.calls().into_iter().map(|call| call.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), harness.calls().len()), (220, 220), "each run has one callback");
    });
}

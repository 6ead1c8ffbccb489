use std::time::Duration;

use domain::{AttemptResult, RunState, ScheduleId, Status, TenantId, When};
use scheduler::{CancelAnswer, Create, Options};
use store::Store;

use crate::house::{House, TENANT, ok, simulate, spec, tenant};
use std::sync::Arc;

#[test]
fn a_one_shot_fires_once_at_its_instant_and_ends() {
    simulate(|runtime| async move {
        let house = House::open(runtime, Options::default(), ok).await;
        let at = house.in_ms(5_000);
        house.create("once", When::At(at)).await;
        house.wait_for_calls(1).await;
        let call = house.calls().pop().unwrap();
        assert!(call.at >= at && call.at.since(at) <= Duration::from_millis(5), "{} for {at}", call.at);
        house.runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!(house.calls().len(), 1);
        let schedule = house.scheduler.get(TENANT, ScheduleId::new("once").unwrap()).await.unwrap().unwrap();
        assert_eq!(schedule.status, Status::Ended);
        let runs = house.scheduler.runs(TENANT, schedule.id.clone(), None, 10).await.unwrap().unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].state, RunState::Succeeded);
        assert_eq!(runs[0].attempts.len(), 1);
    });
}

#[test]
fn one_that_is_due_at_once_does_not_wait_for_a_period() {
    simulate(|runtime| async move {
        let house = House::open(runtime, Options::default(), ok).await;
        house.runtime.sleep(Duration::from_millis(777)).await;
        let asked_at = house.runtime.now();
        house.create("now", When::At(asked_at - Duration::from_secs(3))).await;
        house.wait_for_calls(1).await;
        assert!(house.runtime.now().since(asked_at) <= Duration::from_millis(5));
    });
}

#[test]
fn a_repeating_schedule_fires_at_each_instant() {
    simulate(|runtime| async move {
        let house = House::open(runtime, Options::default(), ok).await;
        let made = house.create("beat", When::Every(Duration::from_secs(2))).await;
        house.wait_for_calls(5).await;
        for (n, call) in (1..).zip(house.calls()) {
            let nominal = made.updated_at + Duration::from_secs(2 * n);
            assert_eq!(call.occurrence.nominal, nominal);
            assert!(call.at.since(nominal) <= Duration::from_millis(5));
        }
    });
}

#[test]
fn a_failing_target_is_tried_again_and_then_is_a_dead_letter_that_can_be_redriven() {
    simulate(|runtime| async move {
        let answer = |delivery: &scheduler::Delivery| match delivery.occurrence.replay {
            0 => (Duration::from_millis(3), AttemptResult::Answered(500)),
            _ => (Duration::from_millis(3), AttemptResult::Answered(204)),
        };
        let house = House::open(runtime, Options::default(), answer).await;
        house.create("fails", When::At(house.in_ms(100))).await;
        house.wait_for_calls(3).await;
        house.runtime.sleep(Duration::from_secs(100)).await;
        assert_eq!(house.calls().iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
        let dead = house.scheduler.dead_letters(TENANT, None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!((dead[0].state, dead[0].attempts.len()), (RunState::Failed, 3));

        let redriven = house.scheduler.redrive(TENANT, dead[0].occurrence).await.unwrap();
        assert!(matches!(redriven, scheduler::RedriveAnswer::Redriven(_)));
        house.wait_for_calls(4).await;
        assert_eq!(house.calls()[3].occurrence.replay, 1);
        house.runtime.sleep(Duration::from_secs(1)).await;
        assert!(house.scheduler.dead_letters(TENANT, None, 10).await.unwrap().is_empty());
        let again = house.scheduler.redrive(TENANT, dead[0].occurrence).await.unwrap();
        assert_eq!(again, scheduler::RedriveAnswer::NotDead);
        let foreign = house.scheduler.redrive(TenantId(2), dead[0].occurrence).await.unwrap();
        assert_eq!(foreign, scheduler::RedriveAnswer::NotFound);
    });
}

#[test]
fn a_cancelled_schedule_does_not_fire_and_one_in_flight_is_too_late() {
    simulate(|runtime| async move {
        let slow = |_: &scheduler::Delivery| (Duration::from_secs(2), AttemptResult::Answered(500));
        let house = House::open(runtime, Options::default(), slow).await;
        let id = |text: &str| ScheduleId::new(text).unwrap();
        house.create("early", When::At(house.in_ms(1_000))).await;
        house.create("late", When::At(house.in_ms(1_000))).await;
        assert_eq!(house.scheduler.cancel(TENANT, id("early")).await.unwrap(), CancelAnswer::Cancelled);
        house.wait_for_calls(1).await;
        assert_eq!(house.scheduler.cancel(TENANT, id("late")).await.unwrap(), CancelAnswer::TooLate);
        assert_eq!(house.scheduler.cancel(TENANT, id("none")).await.unwrap(), CancelAnswer::NotFound);
        house.runtime.sleep(Duration::from_secs(60)).await;
        let calls = house.calls();
        assert_eq!(calls.len(), 1, "no retry after the cancellation: {calls:?}");
        assert_eq!(calls[0].id, "late");
        let runs = house.store.runs(calls[0].occurrence.incarnation, None, 10).await.unwrap();
        assert_eq!(runs[0].state, RunState::Cancelled);
    });
}

#[test]
fn a_put_moves_a_schedule_and_the_old_instant_is_void() {
    simulate(|runtime| async move {
        let house = House::open(runtime, Options::default(), ok).await;
        house.create("moves", When::At(house.in_ms(1_000))).await;
        let later = house.in_ms(4_000);
        let put = Create {
            tenant: Arc::new(tenant(TENANT)),
            id: Some(ScheduleId::new("moves").unwrap()),
            incarnation: None,
            spec: spec(When::At(later), "http://receiver.test/b"),
        };
        let answer = house.scheduler.put(put).await.unwrap().unwrap();
        assert!(!answer.created);
        house.runtime.sleep(Duration::from_secs(10)).await;
        let calls = house.calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].occurrence.nominal, later);
    });
}

#[test]
fn a_slow_target_holds_up_no_other_and_memory_stays_bounded() {
    simulate(|runtime| async move {
        let options = Options {
            in_flight_per_target: 4,
            parked_per_target: 50,
            parked_for: Duration::from_secs(2),
            ..Options::default()
        };
        let answer = |delivery: &scheduler::Delivery| match delivery.schedule.id.as_str().starts_with("slow") {
            true => (Duration::from_secs(3), AttemptResult::Answered(200)),
            false => (Duration::from_millis(3), AttemptResult::Answered(200)),
        };
        let house = House::open(runtime, options, answer).await;
        let due = house.in_ms(3_000);
        for n in 0..200 {
            house.create_for(TENANT, &format!("slow-{n}"), When::At(due), "http://slow.test/").await;
        }
        for n in 0..20 {
            house.create_for(TENANT, &format!("quick-{n}"), When::At(due), "http://quick.test/").await;
        }
        house.runtime.sleep(due.since(house.runtime.now()) + Duration::from_millis(50)).await;
        let quick = |calls: Vec<crate::house::Call>| calls.into_iter().filter(|call| call.id.starts_with("quick"));
        assert_eq!(quick(house.calls()).count(), 20);
        // 200 at 4 in 3 s: 150 s; deferred ones come back.
        house.wait_for_calls(220).await;
        house.runtime.sleep(Duration::from_secs(5)).await;
        let mut ids: Vec<String> = house.calls().into_iter().map(|call| call.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), house.calls().len()), (220, 220), "each once");
    });
}

//! Tests with injected failures. After each failure, the next due run still fires.

use std::time::Duration;

use domain::{AttemptResult, RunState, ScheduleId, Status, When};
use scheduler::Options;
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Health, Store};

use crate::harness::{Harness, TENANT, ok, put_tenant, simulate, tenant};

#[test]
fn panicking_attempt_fails_and_the_next_run_fires() {
    simulate(|runtime| async move {
        let behaviour = |delivery: &scheduler::Delivery| {
            assert!(delivery.schedule.id.as_str() != "poison", "a deliberate panic");
            (Duration::from_millis(3), AttemptResult::Answered(200))
        };
        let harness = Harness::open(runtime, Options::default(), behaviour).await;
        harness.create("poison", When::At(harness.in_ms(100))).await;
        harness.create("sound", When::At(harness.in_ms(200))).await;
        harness.wait_for_calls(2).await;
        harness.runtime.sleep(Duration::from_secs(100)).await;
        assert!(harness.calls().iter().any(|call| call.id == "sound"));
        let dead = harness.scheduler.dead_letters(TENANT, None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].attempts[0].result, AttemptResult::Panicked);
    });
}

#[test]
fn scheduler_fires_overdue_runs_after_a_store_outage() {
    simulate(|runtime| async move {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        for n in 0..200 {
            harness.create(&format!("n{n}"), When::At(harness.in_ms(1_500 + 10 * n))).await;
        }
        harness.runtime.sleep(Duration::from_millis(1_000)).await;
        harness.store.set_health(Health::Unreachable);
        harness.runtime.sleep(Duration::from_millis(4_000)).await;
        assert_eq!(harness.calls().len(), 0, "no row can be read");
        harness.store.set_health(Health::Ready);
        let back = harness.runtime.now();
        harness.wait_for_calls(200).await;
        let took = harness.runtime.now().since(back);
        assert!(took < Duration::from_secs(1), "{took:?}");
        harness.runtime.sleep(Duration::from_secs(30)).await;
        assert_eq!(harness.calls().len(), 200, "each run has one callback");
    });
}

#[test]
fn intermittent_store_failures_neither_lose_nor_repeat_runs() {
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let runtime = sim.member("a");
            let sound = MemoryStore::new(runtime.clone(), MemoryOptions::default());
            put_tenant(&sound, tenant(TENANT)).await.unwrap();
            // If the store has no atomic writes, it may also fail between two steps of a write.
            let options = MemoryOptions { fail_one_in: Some(4), atomic: seed % 2 == 0, ..MemoryOptions::default() };
            let harness = loop {
                // The start of the scheduler may also fail. The test then repeats the start, as a supervisor does.
                let failing = sound.reopen(runtime.clone()).with_options(options.clone());
                match Harness::reopen(runtime.clone(), failing, Options::default(), ok).await {
                    Ok(harness) => break harness,
                    Err(_) => continue,
                }
            };
            for n in 0..30 {
                let (id, when) = (format!("n{n}"), When::At(harness.in_ms(100 + 50 * n)));
                while harness.try_create(TENANT, &id, when.clone(), "http://receiver.test/").await.is_err() {}
            }
            harness.runtime.sleep(Duration::from_secs(60)).await;
            for n in 0..30 {
                let calls = harness.calls().into_iter().filter(|call| call.id == format!("n{n}")).count();
                assert_eq!(calls, 1, "n{n}, seed {seed}");
                let name = (TENANT, ScheduleId::new(&format!("n{n}")).unwrap());
                let schedule = sound.get(vec![name]).await.unwrap().pop().flatten().unwrap();
                assert_eq!(schedule.status, Status::Ended, "n{n}, seed {seed}");
            }
        });
    }
}

#[test]
fn only_runs_without_an_outcome_fire_after_a_crash() {
    let sim = Simulation::new(3);
    sim.run_until(async {
        let runtime = sim.member("a");
        let harness = Harness::open(runtime, Options::default(), ok).await;
        for n in 0..100 {
            harness.create(&format!("n{n}"), When::At(harness.in_ms(1_000 + 20 * n))).await;
        }
        let beat = harness.create("beat", When::every(Duration::from_secs(1))).await;
        harness.wait_for_calls(40).await;
        let before = harness.calls();
        sim.crash("a");
        let runtime = sim.restart("a");
        let store = harness.store.reopen(runtime.clone());
        let harness = Harness::reopen(runtime, store, Options::default(), ok).await.unwrap();
        harness.runtime.sleep(Duration::from_secs(10)).await;
        let after = harness.calls();
        for n in 0..100 {
            let id = format!("n{n}");
            let times = before.iter().chain(&after).filter(|call| call.id == id).count();
            assert!((1..=2).contains(&times), "{id} was called {times} times");
        }
        let duplicates: usize = (0..100)
            .filter(|n| {
                let id = format!("n{n}");
                before.iter().any(|call| call.id == id) && after.iter().any(|call| call.id == id)
            })
            .count();
        assert!(duplicates <= 2, "{duplicates} duplicates, more than were in flight");
        let runs = harness.store.runs(beat.incarnation, None, 100).await.unwrap();
        assert!(runs.iter().all(|run| matches!(run.state, RunState::Succeeded)));
        assert!(runs.len() >= 10);
    });
}

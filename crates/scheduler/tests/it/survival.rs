//! A poller never dies unless asked: each injected failure, and the next due run still fires.

use std::time::Duration;

use domain::{AttemptResult, RunState, ScheduleId, Status, When};
use scheduler::Options;
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Health, Store};

use crate::house::{House, TENANT, ok, put_tenant, simulate, tenant};

#[test]
fn an_attempt_that_panics_counts_as_failed_and_the_next_run_fires() {
    simulate(|runtime| async move {
        let answer = |delivery: &scheduler::Delivery| {
            assert!(delivery.schedule.id.as_str() != "poison", "a bug, on purpose");
            (Duration::from_millis(3), AttemptResult::Answered(200))
        };
        let house = House::open(runtime, Options::default(), answer).await;
        house.create("poison", When::At(house.in_ms(100))).await;
        house.create("sound", When::At(house.in_ms(200))).await;
        house.wait_for_calls(2).await;
        house.runtime.sleep(Duration::from_secs(100)).await;
        assert!(house.calls().iter().any(|call| call.id == "sound"));
        let dead = house.scheduler.dead_letters(TENANT, None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].attempts[0].result, AttemptResult::Panicked);
    });
}

#[test]
fn what_was_due_while_the_store_was_away_fires_as_soon_as_it_is_back() {
    simulate(|runtime| async move {
        let house = House::open(runtime, Options::default(), ok).await;
        for n in 0..200 {
            house.create(&format!("n{n}"), When::At(house.in_ms(1_500 + 10 * n))).await;
        }
        house.runtime.sleep(Duration::from_millis(1_000)).await;
        house.store.set_health(Health::Unreachable);
        house.runtime.sleep(Duration::from_millis(4_000)).await;
        assert_eq!(house.calls().len(), 0, "nothing can be read");
        house.store.set_health(Health::Ready);
        let back = house.runtime.now();
        house.wait_for_calls(200).await;
        let took = house.runtime.now().since(back);
        assert!(took < Duration::from_secs(1), "{took:?}");
        house.runtime.sleep(Duration::from_secs(30)).await;
        assert_eq!(house.calls().len(), 200, "each once");
    });
}

#[test]
fn a_store_that_fails_now_and_then_loses_and_doubles_nothing() {
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let runtime = sim.member("a");
            let sound = MemoryStore::new(runtime.clone(), MemoryOptions::default());
            put_tenant(&sound, tenant(TENANT)).await.unwrap();
            // The weak one fails between two steps, too.
            let options = MemoryOptions { fail_one_in: Some(4), atomic: seed % 2 == 0, ..MemoryOptions::default() };
            let house = loop {
                // Starting may fail, too; a process would be started again.
                let failing = sound.reopen(runtime.clone()).with_options(options.clone());
                match House::reopen(runtime.clone(), failing, Options::default(), ok).await {
                    Ok(house) => break house,
                    Err(_) => continue,
                }
            };
            for n in 0..30 {
                let (id, when) = (format!("n{n}"), When::At(house.in_ms(100 + 50 * n)));
                while house.try_create(TENANT, &id, when.clone(), "http://receiver.test/").await.is_err() {}
            }
            house.runtime.sleep(Duration::from_secs(60)).await;
            for n in 0..30 {
                let calls = house.calls().into_iter().filter(|call| call.id == format!("n{n}")).count();
                assert_eq!(calls, 1, "n{n}, seed {seed}");
                let name = (TENANT, ScheduleId::new(&format!("n{n}")).unwrap());
                let schedule = sound.get(vec![name]).await.unwrap().pop().flatten().unwrap();
                assert_eq!(schedule.status, Status::Ended, "n{n}, seed {seed}");
            }
        });
    }
}

#[test]
fn after_a_crash_everything_without_an_outcome_fires_and_nothing_else() {
    let sim = Simulation::new(3);
    sim.run_until(async {
        let runtime = sim.member("a");
        let house = House::open(runtime, Options::default(), ok).await;
        for n in 0..100 {
            house.create(&format!("n{n}"), When::At(house.in_ms(1_000 + 20 * n))).await;
        }
        let beat = house.create("beat", When::Every(Duration::from_secs(1))).await;
        house.wait_for_calls(40).await;
        let before = house.calls();
        sim.crash("a");
        let runtime = sim.restart("a");
        let store = house.store.reopen(runtime.clone());
        let house = House::reopen(runtime, store, Options::default(), ok).await.unwrap();
        house.runtime.sleep(Duration::from_secs(10)).await;
        let after = house.calls();
        for n in 0..100 {
            let id = format!("n{n}");
            let times = before.iter().chain(&after).filter(|call| call.id == id).count();
            assert!((1..=2).contains(&times), "{id} was called {times} times");
        }
        let doubles: usize = (0..100)
            .filter(|n| {
                let id = format!("n{n}");
                before.iter().any(|call| call.id == id) && after.iter().any(|call| call.id == id)
            })
            .count();
        assert!(doubles <= 2, "only what was in flight is called again, not {doubles}");
        let runs = house.store.runs(beat.incarnation, None, 100).await.unwrap();
        assert!(runs.iter().all(|run| matches!(run.state, RunState::Succeeded)));
        assert!(runs.len() >= 10);
    });
}

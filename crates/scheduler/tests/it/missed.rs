//! Tests of missed runs: a missed run has the mark `attempt_possible` if and only if its callback may have arrived.

use std::sync::Arc;
use std::time::Duration;

use domain::{Occurrence, RunState, Schedule, Timestamp, When};
use scheduler::Options;
use simulator::Simulation;
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};

use crate::harness::{Harness, TENANT, ok, put_tenant, tenant};

const SECOND: Duration = Duration::from_secs(1);
/// Time between the start of a call of the store and its effect, and again until its response.
const LATENCY: Duration = Duration::from_millis(50);

/// Store with the same data, but without latency.
fn fast(sim: &Simulation, store: &MemoryStore) -> MemoryStore {
    store.reopen(sim.outside()).with_options(MemoryOptions::default())
}

async fn open(sim: &Simulation) -> Harness {
    let runtime = sim.member("a");
    let options = MemoryOptions { latency: Some(LATENCY..=LATENCY), ..MemoryOptions::default() };
    let store = MemoryStore::new(runtime.clone(), options);
    put_tenant(&fast(sim, &store), tenant(TENANT)).await.unwrap();
    Harness::reopen(runtime, store, Options::default(), ok).await.unwrap()
}

/// Crashes the member, and starts it again after `down`.
async fn crash(sim: &Simulation, harness: Harness, down: Duration) -> Harness {
    sim.crash("a");
    sim.outside().sleep(down).await;
    let runtime = sim.restart("a");
    let store = harness.store.reopen(runtime.clone());
    Harness::reopen(runtime, store, Options::default(), ok).await.unwrap()
}

async fn every(harness: &Harness, interval: Duration) -> Arc<Schedule> {
    harness.create("beat", When::every(interval)).await
}

/// Returns the first occurrence of each missed run of the schedule, and true if the run has the mark.
async fn missed(sim: &Simulation, harness: &Harness, schedule: &Schedule) -> Vec<(Occurrence, bool)> {
    let runs = fast(sim, &harness.store).runs(schedule.incarnation, None, 1_000).await.unwrap();
    let marked = runs.into_iter().filter_map(|run| match run.state {
        RunState::Missed { attempt_possible, .. } => Some((run.occurrence, attempt_possible)),
        RunState::Retrying | RunState::Succeeded | RunState::Failed | RunState::Cancelled => None,
    });
    marked.collect()
}

async fn next(sim: &Simulation, harness: &Harness, schedule: &Schedule) -> Option<Timestamp> {
    let found = fast(sim, &harness.store).load(vec![schedule.incarnation]).await.unwrap().remove(0);
    found.expect("the store contains the schedule").next
}

#[test]
fn missed_run_has_a_mark_if_its_callback_arrived_before_a_crash() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let harness = open(&sim).await;
        let beat = every(&harness, SECOND).await;
        harness.wait_for_calls(5).await;
        let called = harness.calls().pop().unwrap().occurrence;
        assert_eq!(next(&sim, &harness, &beat).await, Some(called.nominal), "the next row is not durable yet");
        let harness = crash(&sim, harness, 10 * SECOND).await;
        harness.wait_for_calls(1).await;
        sim.outside().sleep(SECOND).await;
        assert_eq!(missed(&sim, &harness, &beat).await, [(called, true)]);
    });
}

#[test]
fn missed_run_has_no_mark_if_it_was_due_while_the_server_was_down() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let harness = open(&sim).await;
        let beat = every(&harness, 10 * SECOND).await;
        harness.wait_for_calls(2).await;
        let called = harness.calls().pop().unwrap().occurrence;
        sim.outside().sleep(3 * SECOND).await;
        let harness = crash(&sim, harness, 60 * SECOND).await;
        harness.wait_for_calls(1).await;
        sim.outside().sleep(SECOND).await;
        let first = Occurrence { nominal: called.nominal + 10 * SECOND, ..called };
        assert_eq!(missed(&sim, &harness, &beat).await, [(first, false)]);
    });
}

#[test]
fn missed_run_has_no_mark_after_a_pause_without_a_crash() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let harness = open(&sim).await;
        let beat = every(&harness, SECOND).await;
        harness.wait_for_calls(5).await;
        let harness = crash(&sim, harness, Duration::from_millis(10)).await;
        harness.wait_for_calls(5).await;
        let paused_at = sim.outside().now();
        sim.pause("a", 10 * SECOND);
        sim.outside().sleep(13 * SECOND).await;
        let missed = missed(&sim, &harness, &beat).await;
        let mut after_pause = missed.iter().filter(|(occurrence, _)| occurrence.nominal > paused_at).peekable();
        assert!(after_pause.peek().is_some(), "{missed:?}");
        assert!(after_pause.all(|(_, is_marked)| !is_marked), "{missed:?}");
    });
}

#[test]
fn first_callback_after_an_outage_waits_for_the_next_row() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let harness = open(&sim).await;
        let beat = every(&harness, 30 * SECOND).await;
        harness.wait_for_calls(1).await;
        sim.outside().sleep(20 * SECOND).await;
        let harness = crash(&sim, harness, 15 * SECOND).await;
        harness.wait_for_calls(1).await;
        let called = harness.calls().pop().unwrap().occurrence;
        assert_eq!(next(&sim, &harness, &beat).await, Some(called.nominal + 30 * SECOND), "the next row is durable");
    });
}

#[test]
fn callback_does_not_wait_for_the_next_row_without_an_outage() {
    for interval in [SECOND, 30 * SECOND] {
        let sim = Simulation::new(1);
        sim.run_until(async {
            let harness = open(&sim).await;
            let beat = every(&harness, interval).await;
            for calls in 1..=5 {
                harness.wait_for_calls(calls).await;
                let called = harness.calls().pop().unwrap().occurrence;
                assert_eq!(next(&sim, &harness, &beat).await, Some(called.nominal), "the next row is not durable yet");
            }
        });
    }
}

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use simulator::{Incident, Order, Simulation, Suite, Text, assert_caught, run_seed, run_seeds, try_seeds};

/// Runs two tasks. Each task adds one to a number. In some orders of their steps, one addition is lost.
fn race(sim: &Simulation) {
    let number = std::sync::Arc::new(AtomicU64::new(0));
    sim.run_until(async {
        let a = sim.member("a");
        let ends = [(); 2].map(|()| {
            let (a, number) = (a.clone(), number.clone());
            sim.member("a").spawn("adds", async move {
                a.sleep(Duration::from_micros(a.random() % 4)).await;
                let seen = number.load(Ordering::Relaxed);
                a.sleep(Duration::from_micros(1)).await;
                number.store(seen + 1, Ordering::Relaxed);
            })
        });
        for end in ends {
            end.end.await;
        }
    });
    assert_eq!(number.load(Ordering::Relaxed), 2, "an addition was lost");
}

#[test]
fn failure_prints_its_replay_command_and_the_last_events() {
    let failure = try_seeds("race", 0..100, race).expect_err("some order loses an addition");
    assert!(failure.repeatable);
    let text = failure.to_string();
    let command = format!("replay: cargo xtask simulate --scenario race --seed {} --trace", failure.seed);
    assert!(text.contains("an addition was lost") && text.ends_with(&command), "{text}");
    assert!(text.contains("a: spawns adds#1"), "{text}");
    assert!(run_seed(failure.seed, Text::Off, race).result.is_err(), "the seed fails each time");
}

#[test]
fn assert_caught_requires_a_failure_with_the_expected_symptom() {
    let caught = assert_caught("LosesAddition", &["an addition was lost"], 0..100, race);
    assert!(caught.runs <= 100);
    let unnoticed = std::panic::catch_unwind(|| assert_caught("Nothing", &[""], 0..10, |_| {}));
    assert!(unnoticed.is_err());
    let other_reason = std::panic::catch_unwind(|| assert_caught("LosesAddition", &["disk"], 0..100, race));
    assert!(other_reason.is_err());
}

#[test]
fn runner_reports_difference_between_two_runs_of_a_seed() {
    let runs = AtomicU64::new(0);
    let failure =
        try_seeds("leaks", 0..1, |sim| sim.run_for(Duration::from_secs(runs.fetch_add(1, Ordering::Relaxed))));
    assert!(failure.expect_err("each run is longer").to_string().contains("different traces"));
}

#[test]
fn coverage_counts_the_runs_that_contain_each_kind_of_incident() {
    let coverage = run_seeds("some", 0..10, |sim| {
        let _a = sim.member("a");
        if sim.seed() % 2 == 0 {
            sim.crash("a");
        }
    });
    assert_eq!((coverage.seeds, coverage.seeds_with(Incident::Crash)), (10, 5));
    coverage.assert_happened(&[Incident::Crash]);
    assert!(std::panic::catch_unwind(|| coverage.assert_happened(&[Incident::Pause])).is_err());
}

#[test]
fn suite_runs_the_selected_scenarios() {
    let suite = Suite::new().with("good", |sim| sim.run_for(Duration::from_secs(1))).with("race", race);
    let run = |order: Order| {
        let mut reported = Vec::new();
        let result = suite.run(&order, |name, coverage| reported.push((name.to_owned(), coverage.seeds)));
        (result.map_err(|error| error.to_string()), reported)
    };
    let good = Order { scenario: Some("good".to_owned()), seeds: 3, ..Order::default() };
    assert_eq!(run(good), (Ok(()), vec![("good".to_owned(), 3)]));
    let (failed, reported) = run(Order { seeds: 100, ..Order::default() });
    assert!(failed.is_err_and(|text| text.contains("scenario race fails")));
    assert_eq!(reported.len(), 1);
    let unknown = Order { scenario: Some("bad".to_owned()), seed: Some(1), ..Order::default() };
    assert_eq!(run(unknown).0, Err("unknown scenario bad; use one of: good, race".to_owned()));
}

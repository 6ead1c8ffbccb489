//! Tests of pauses, positions, bounds and metrics of a processor, in simulations.

use std::time::Duration;

use bus::processor::{HandlerError, ProcessorMetrics, ProcessorOptions, Retry};
use bus::{BusError, Offset, Partition};
use prometheus_client::registry::Registry;

use crate::processor::{Scene, simulate, succeeds};

const SECOND: Duration = Duration::from_secs(1);

fn partition(scene: &Scene) -> Partition {
    Partition { topic: scene.topic.clone(), index: 0 }
}

#[test]
fn paused_processor_keeps_its_partitions_and_handles_no_records() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let handler = scene.handler(SECOND / 100, succeeds);
        let options = ProcessorOptions { starts_paused: true, ..scene.options() };
        let processor = scene.start(options, handler.clone()).await;
        scene.send(&["a", "b"], 0..5).await;
        // A second member receives no partition, because the first one owns the only partition.
        let second = scene.start(scene.options(), handler).await;
        scene.runtime.sleep(SECOND * 10).await;
        assert_eq!(scene.calls(), 0);
        processor.resume();
        scene.until("the records are handled", |log| Scene::count(log) == 10).await;
        processor.pause();
        scene.send(&["a", "b"], 5..10).await;
        scene.runtime.sleep(SECOND * 10).await;
        assert_eq!(scene.calls(), 10);
        processor.resume();
        scene.until("the other records are handled", |log| Scene::count(log) == 20).await;
        assert!(scene.log.lock().unwrap().values().all(|numbers| *numbers == (0..10).collect::<Vec<_>>()));
        processor.stop().await.unwrap();
        second.stop().await.unwrap();
    });
}

#[test]
fn seek_backward_handles_finished_records_again() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..10).await;
        let processor = scene.start(scene.options(), scene.handler(Duration::ZERO, succeeds)).await;
        scene.until("the records are handled", |log| Scene::count(log) == 10).await;
        processor.seek(&partition(&scene), Offset(6)).await.unwrap();
        scene.until("the last records are handled again", |log| Scene::count(log) == 14).await;
        assert_eq!(scene.log.lock().unwrap()["a"], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 6, 7, 8, 9]);
        processor.stop().await.unwrap();
    });
}

#[test]
fn seek_forward_stops_running_calls_and_skips_records() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..10).await;
        let wait = SECOND * 5;
        let processor = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.runtime.sleep(SECOND).await;
        assert_eq!(scene.calls(), 2);
        processor.seek(&partition(&scene), Offset(16)).await.unwrap();
        scene.until("the last records are handled", |log| Scene::count(log) == 4).await;
        assert!(scene.log.lock().unwrap().values().all(|numbers| *numbers == [8, 9]));
        processor.stop().await.unwrap();
    });
}

#[test]
fn position_of_a_seek_survives_the_processor() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..10).await;
        let options = ProcessorOptions { starts_paused: true, commit_interval: SECOND * 3_600, ..scene.options() };
        let processor = scene.start(options, scene.handler(Duration::ZERO, succeeds)).await;
        while processor.seek(&partition(&scene), Offset(7)).await == Err(BusError::Fenced) {
            // The processor does not own the partition yet.
            scene.runtime.sleep(SECOND / 10).await;
        }
        // The process ends without a last commit.
        drop(processor);
        let next = scene.start(scene.options(), scene.handler(Duration::ZERO, succeeds)).await;
        scene.until("the last records are handled", |log| Scene::count(log) == 3).await;
        assert_eq!(scene.log.lock().unwrap()["a"], [7, 8, 9]);
        next.stop().await.unwrap();
    });
}

#[test]
fn seek_in_a_partition_of_another_member_is_rejected() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let processor = scene.start(scene.options(), scene.handler(Duration::ZERO, succeeds)).await;
        let other = Partition { index: 1, ..partition(&scene) };
        assert_eq!(processor.seek(&other, Offset(0)).await, Err(BusError::Fenced));
        processor.stop().await.unwrap();
    });
}

#[test]
fn record_that_is_larger_than_the_bound_is_handled() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "a-key-of-a-record-with-more-bytes-than-the-bound"], 0..10).await;
        let options = ProcessorOptions { bytes_max: 10, ..scene.options() };
        let processor = scene.start(options, scene.handler(SECOND / 100, succeeds)).await;
        scene.until("all records are handled", |log| Scene::count(log) == 20).await;
        assert!(scene.log.lock().unwrap().values().all(|numbers| *numbers == (0..10).collect::<Vec<_>>()));
        processor.stop().await.unwrap();
    });
}

#[test]
fn number_of_calls_starts_again_with_the_next_owner() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..1).await;
        let retry = Retry::Blocking { first_wait: SECOND, wait_max: SECOND, calls_max: None };
        let options = ProcessorOptions { retry, ..scene.options() };
        let fails = |_: &str, _: u64, call: u32| (call < 100).then(|| HandlerError::retriable("not yet"));
        let first = scene.start(options.clone(), scene.handler(Duration::ZERO, fails)).await;
        scene.runtime.sleep(SECOND * 10).await;
        assert!(scene.calls() > 5, "{} calls", scene.calls());
        first.stop().await.unwrap();
        let fails_once_more = |_: &str, _: u64, call: u32| (call == 1).then(|| HandlerError::retriable("not yet"));
        let calls = scene.calls();
        let second = scene.start(options, scene.handler(Duration::ZERO, fails_once_more)).await;
        scene.until("the record is handled", |log| Scene::count(log) == 1).await;
        assert_eq!(scene.calls(), calls + 2);
        second.stop().await.unwrap();
    });
}

/// Returns the value of a metric in a scrape.
fn value(registry: &Registry, series: &str) -> f64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in:\n{text}")).parse().unwrap()
}

#[test]
fn metrics_show_the_backlog_and_the_failures() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..5).await;
        let fails = |key: &str, number: u64, call: u32| {
            (key == "a" && number == 2 && call < 3).then(|| HandlerError::retriable("not yet"))
        };
        let retry = Retry::Blocking { first_wait: SECOND * 10, wait_max: SECOND * 10, calls_max: None };
        let options = ProcessorOptions { retry, ..scene.options() };
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        let (metrics, mut registry) = (ProcessorMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        processor.add_to(&metrics);
        scene.until("the other records are handled", |log| Scene::count(log) == 7).await;
        scene.runtime.sleep(SECOND * 3).await;
        let group = r#"{group="billing"}"#;
        let partition = r#"{group="billing",topic="orders",partition="0"}"#;
        let of = |name: &str, labels: &str| value(&registry, &format!("reveille_bus_{name}{labels}"));
        assert_eq!(of("lag_records", partition), 3.0);
        assert!((3.0..4.0).contains(&of("lag_seconds", partition)), "{}", of("lag_seconds", partition));
        assert_eq!(of("oldest_record_seconds", group), of("lag_seconds", partition));
        assert_eq!(of("records_in_hand", group), 3.0);
        assert_eq!(of("keys_blocked", group), 1.0);
        assert_eq!(of("lanes_busy", group), 0.0);
        assert_eq!(of("records_handled_total", group), 7.0);
        assert_eq!(of("records_failed_total", r#"{group="billing",next="same_topic"}"#), 1.0);
        assert_eq!(of("commits_failed_total", group), 0.0);
        scene.until("all records are handled", |log| Scene::count(log) == 10).await;
        assert_eq!(of("lag_records", partition), 0.0);
        assert_eq!(of("lag_seconds", partition), 0.0);
        assert_eq!(of("records_failed_total", r#"{group="billing",next="same_topic"}"#), 2.0);
        processor.stop().await.unwrap();
    });
}

#[test]
fn metrics_show_rebalances() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "b", "c", "d"], 0..1).await;
        let first = scene.start(scene.options(), scene.handler(SECOND * 3, succeeds)).await;
        let (metrics, mut registry) = (ProcessorMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        first.add_to(&metrics);
        scene.runtime.sleep(SECOND).await;
        let second = scene.start(scene.options(), scene.handler(Duration::ZERO, succeeds)).await;
        scene.runtime.sleep(SECOND * 10).await;
        let sum = value(&registry, r#"reveille_bus_rebalance_seconds_sum{group="billing"}"#);
        assert_eq!(value(&registry, r#"reveille_bus_rebalance_seconds_count{group="billing"}"#), 1.0);
        assert!((1.0..3.5).contains(&sum), "the first member released its partition after {sum} s");
        first.stop().await.unwrap();
        second.stop().await.unwrap();
    });
}

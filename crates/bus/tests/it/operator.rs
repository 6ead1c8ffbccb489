//! Tests of the commands of an operator and of the list of blocked records, in simulations.

use std::sync::Arc;
use std::time::Duration;

use bus::processor::{Blocked, HandlerError, Operator, ProcessorOptions, Retry};
use bus::{Bus as _, BusError, ConsumerOptions, Event, NewRecord, Position, TopicName};
use bytes::Bytes;

use crate::processor::{Scene, simulate, succeeds};

const SECOND: Duration = Duration::from_secs(1);

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn position(text: &str) -> Position {
    text.parse().unwrap()
}

/// Options with a control topic, and with waits of an hour between two calls.
fn options(scene: &Scene) -> ProcessorOptions {
    let wait = Duration::from_secs(3_600);
    let retry = Retry::Blocking { first_wait: wait, wait_max: wait, calls_max: None };
    ProcessorOptions { retry, control: Some(topic("control")), ..scene.options() }
}

async fn operator(scene: &Scene) -> Operator {
    let bus = Arc::new(scene.bus.reopen(scene.runtime.clone()));
    Operator::open(&scene.runtime, bus, &topic("control")).await.unwrap()
}

/// Returns the blocked records when the list has this length.
async fn blocked(scene: &Scene, operator: &mut Operator, count: usize) -> Vec<Blocked> {
    for _ in 0..100 {
        let blocked = operator.blocked().await.unwrap();
        if blocked.len() == count {
            return blocked;
        }
        scene.runtime.sleep(SECOND / 10).await;
    }
    panic!("the list of blocked records does not reach the length {count}");
}

fn fails_on_two(_: &str, number: u64, _: u32) -> Option<HandlerError> {
    (number == 2).then(|| HandlerError::retriable("no route"))
}

#[test]
fn operator_skips_one_blocked_record() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..5).await;
        let processor = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        let list = blocked(&scene, &mut operator, 2).await;
        assert_eq!(list[0].position, position("orders/0/4"));
        assert_eq!((list[0].key.as_deref(), list[0].calls), (Some(&b"a"[..]), 1));
        assert_eq!(list[0].reason, "no route");
        operator.skip(&list[0].position).await.unwrap();
        scene.until("the key continues", |log| log["a"] == [0, 1, 3, 4]).await;
        assert_eq!(scene.log.lock().unwrap()["b"], [0, 1]);
        let list = blocked(&scene, &mut operator, 1).await;
        assert_eq!(list[0].position, position("orders/0/5"));
        processor.stop().await.unwrap();
    });
}

#[test]
fn time_of_the_first_failure_remains_when_the_partition_moves() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..4).await;
        let first = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        let before = blocked(&scene, &mut operator, 1).await.remove(0);
        assert_eq!(before.blocked_since, before.failed_at);
        first.stop().await.unwrap();
        scene.runtime.sleep(SECOND).await;
        let second = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        scene.runtime.sleep(SECOND).await;
        let after = blocked(&scene, &mut operator, 1).await.remove(0);
        assert!(after.failed_at > before.failed_at, "{after:?}");
        assert_eq!(after.blocked_since, before.blocked_since);
        assert_eq!(after.next_call_at, Some(after.failed_at + 3_600 * SECOND));
        second.stop().await.unwrap();
    });
}

#[test]
fn operator_skips_a_record_before_its_first_call() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let processor = scene.start(options(&scene), scene.handler(Duration::ZERO, succeeds)).await;
        operator(&scene).await.skip(&position("orders/0/1")).await.unwrap();
        scene.runtime.sleep(SECOND).await;
        scene.send(&["a"], 0..3).await;
        scene.until("the other records are handled", |log| Scene::count(log) == 2).await;
        assert_eq!((&scene.log.lock().unwrap()["a"][..], scene.calls()), (&[0, 2][..], 2));
        processor.stop().await.unwrap();
    });
}

#[test]
fn operator_skips_all_failing_records_until_it_resumes() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b", "c"], 0..4).await;
        let processor = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        blocked(&scene, &mut operator, 3).await;
        operator.skip_all(&scene.topic).await.unwrap();
        scene.until("all keys continue", |log| log.values().all(|numbers| *numbers == [0, 1, 3])).await;
        assert_eq!(operator.skipped_topics().await.unwrap(), vec![scene.topic.clone()]);
        scene.send(&["d"], 0..4).await;
        scene.until("a later key does not wait", |log| log.get("d").is_some_and(|numbers| *numbers == [0, 1, 3])).await;
        operator.resume(&scene.topic).await.unwrap();
        scene.runtime.sleep(SECOND).await;
        scene.send(&["e"], 0..4).await;
        let list = blocked(&scene, &mut operator, 1).await;
        assert_eq!(list[0].key.as_deref(), Some(&b"e"[..]));
        assert_eq!(scene.log.lock().unwrap()["e"], [0, 1]);
        processor.stop().await.unwrap();
    });
}

#[test]
fn skipped_record_becomes_a_dead_letter() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..4).await;
        let options =
            ProcessorOptions { dead_letters: Some(topic("dead")), retry_waits: vec![SECOND], ..options(&scene) };
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        let list = blocked(&scene, &mut operator, 1).await;
        operator.skip(&list[0].position).await.unwrap();
        let reader = scene.bus.consumer(ConsumerOptions::new("reader", vec![topic("dead")])).await.unwrap();
        let letter = loop {
            if let Event::Records(mut batch) = reader.next().await.unwrap() {
                break batch.records.remove(0);
            }
        };
        assert_eq!(letter.value, Some(Bytes::from_static(b"2")));
        assert_eq!(scene.calls(), 3 + 1, "the skipped record was called again");
        processor.stop().await.unwrap();
    });
}

#[test]
fn next_owner_knows_the_commands_and_removes_finished_records_from_the_list() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..4).await;
        let first = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        blocked(&scene, &mut operator, 2).await;
        first.stop().await.unwrap();
        // The group has no member while the operator sends the command.
        operator.skip(&position("orders/0/4")).await.unwrap();
        assert_eq!(operator.blocked().await.unwrap().len(), 2);
        let calls = scene.calls();
        let fails = |key: &str, number: u64, _: u32| {
            (key == "a" && number == 2).then(|| HandlerError::retriable("must not be called"))
        };
        let second = scene.start(options(&scene), scene.handler(Duration::ZERO, fails)).await;
        scene.until("both keys continue", |log| log["a"] == [0, 1, 3] && log["b"] == [0, 1, 2, 3]).await;
        assert_eq!(scene.calls(), calls + 3, "the skipped record was called");
        blocked(&scene, &mut operator, 0).await;
        second.stop().await.unwrap();
    });
}

#[test]
fn damaged_entries_of_the_control_topic_are_ignored() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let first = scene.start(options(&scene), scene.handler(Duration::ZERO, succeeds)).await;
        let entries = [("skip/orders", "{}"), ("blocked/orders/0/1", "damaged"), ("skip-all/", "{}"), ("x", "")];
        let damaged = entries.map(|(key, value)| NewRecord::new(&topic("control"), key, value)).to_vec();
        assert!(scene.producer.send(damaged).await.iter().all(Result::is_ok));
        first.stop().await.unwrap();
        let second = scene.start(options(&scene), scene.handler(Duration::ZERO, fails_on_two)).await;
        scene.send(&["a"], 0..4).await;
        let mut operator = operator(&scene).await;
        let list = blocked(&scene, &mut operator, 1).await;
        operator.skip(&list[0].position).await.unwrap();
        scene.until("the key continues", |log| log["a"] == [0, 1, 3]).await;
        second.stop().await.unwrap();
    });
}

#[test]
fn entry_of_a_record_with_long_waits_names_the_next_call() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..4).await;
        let wait = 10 * SECOND;
        let retry = Retry::Blocking { first_wait: wait, wait_max: wait, calls_max: None };
        let options = ProcessorOptions { retry, ..options(&scene) };
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails_on_two)).await;
        let mut operator = operator(&scene).await;
        blocked(&scene, &mut operator, 1).await;
        // Seven calls fail within 65 s.
        scene.runtime.sleep(65 * SECOND).await;
        let blocked = blocked(&scene, &mut operator, 1).await.remove(0);
        assert_eq!(blocked.calls, 7);
        assert!(blocked.next_call_at.is_some_and(|at| at > scene.runtime.now()), "{blocked:?}");
        processor.stop().await.unwrap();
    });
}

#[test]
fn operator_rejects_a_topic_that_contains_other_records() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        let bus = Arc::new(scene.bus.reopen(scene.runtime.clone()));
        scene.send(&["a"], 0..1).await;
        for _ in 0..2 {
            let opened = Operator::open(&scene.runtime, bus.clone(), &scene.topic).await;
            let error = opened.err().expect("the topic is not a control topic").to_string();
            assert!(
                error.contains("the topic orders contains records") && error.contains("name the control"),
                "{error}"
            );
            // The operator reads only a part of a large topic.
            scene.send(&["a"], 1..2_000).await;
        }
    });
}

#[test]
fn operator_of_a_group_without_members_learns_that_its_topic_is_missing() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let bus = Arc::new(scene.bus.reopen(scene.runtime.clone()));
        let opened = Operator::open(&scene.runtime, bus, &topic("control")).await;
        assert_eq!(opened.err(), Some(BusError::UnknownTopic(topic("control"))));
    });
}

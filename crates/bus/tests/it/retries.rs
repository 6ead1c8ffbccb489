//! Tests of retry topics and dead letters, in simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::MemoryOptions;
use bus::processor::{
    CALLS_HEADER, Delivery, ERROR_HEADER, Handler, HandlerError, NOT_BEFORE_HEADER, ORIGIN_HEADER, ProcessorOptions,
    Retry, TIME_HEADER, VALUE_OMITTED_HEADER,
};
use bus::{
    Bus as _, BusError, Capabilities, ConsumerOptions, Event, Header, NewRecord, Offset, Record, TopicName,
    TopicOptions,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use instants::Timestamp;

use crate::processor::{Scene, simulate, succeeds};

const SECOND: Duration = Duration::from_secs(1);

fn dead_letters() -> TopicName {
    TopicName::new("dead").unwrap()
}

fn options(scene: &Scene, waits: &[Duration], retry: Retry) -> ProcessorOptions {
    let (retry_waits, dead_letters) = (waits.to_vec(), Some(dead_letters()));
    ProcessorOptions { retry, retry_waits, dead_letters, ..scene.options() }
}

/// Returns the first `count` records of the topic for dead letters.
async fn read_dead_letters(scene: &Scene, count: usize) -> Vec<Record> {
    let consumer = scene.bus.consumer(ConsumerOptions::new("reader", vec![dead_letters()])).await.unwrap();
    let mut records = Vec::new();
    while records.len() < count {
        if let Event::Records(batch) = consumer.next().await.unwrap() {
            records.extend(batch.records);
        }
    }
    records
}

/// Returns the headers of a record as text.
fn headers(record: &Record) -> BTreeMap<&str, String> {
    let text = |header: &Header| String::from_utf8(header.value.clone().unwrap_or_default().to_vec()).unwrap();
    record.headers.iter().map(|header| (header.name.as_str(), text(header))).collect()
}

#[test]
fn failed_record_waits_in_retry_topics_while_its_key_continues() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "b"], 0..5).await;
        let fails = |key: &str, number: u64, call: u32| {
            (key == "a" && number == 2 && call < 3).then(|| HandlerError::retriable("not yet"))
        };
        let began = scene.runtime.monotonic();
        let options = options(&scene, &[SECOND, 2 * SECOND], Retry::None);
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        scene.until("the other records are handled", |log| Scene::count(log) == 9).await;
        assert!(scene.runtime.monotonic().since(began) < SECOND, "the other records waited");
        scene.until("the record is handled", |log| Scene::count(log) == 10).await;
        let took = scene.runtime.monotonic().since(began);
        assert!(took >= 3 * SECOND && took < 4 * SECOND, "the waits of 1 and 2 s took {took:?}");
        assert_eq!(scene.log.lock().unwrap()["a"], [0, 1, 3, 4, 2]);
        assert_eq!(scene.calls(), 12);
        processor.stop().await.unwrap();
        // All records are finished, so another processor handles none of them.
        let other = scene.start(scene.options(), scene.handler(Duration::ZERO, succeeds)).await;
        scene.runtime.sleep(10 * SECOND).await;
        assert_eq!(scene.calls(), 12);
        other.stop().await.unwrap();
    });
}

#[test]
fn retry_topics_have_the_partitions_of_their_source() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 3).await;
        let options = options(&scene, &[SECOND, SECOND], Retry::None);
        let processor = scene.start(options, scene.handler(Duration::ZERO, succeeds)).await;
        for name in ["orders-billing-retry-0", "orders-billing-retry-1", "dead"] {
            let topic = scene.bus.describe_topic(&TopicName::new(name).unwrap()).await.unwrap();
            assert_eq!(topic.offsets.len(), 3, "{name}");
        }
        processor.stop().await.unwrap();
    });
}

#[test]
fn record_that_fails_in_each_topic_becomes_a_dead_letter_with_its_history() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let header = Header { name: "trace".to_owned(), value: Some(Bytes::from_static(b"x")) };
        let records = vec![
            NewRecord::new(&scene.topic, "a", "0"),
            NewRecord { headers: vec![header], ..NewRecord::new(&scene.topic, "b", "1") },
        ];
        scene.producer.send(records).await;
        let fails =
            |key: &str, _: u64, call: u32| (key == "b").then(|| HandlerError::retriable(format!("call {call}")));
        let blocking = Retry::Blocking { first_wait: SECOND, wait_max: SECOND, calls_max: Some(2) };
        let options = options(&scene, &[SECOND, SECOND], blocking);
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        let letter = read_dead_letters(&scene, 1).await.remove(0);
        // Two calls in the topic, and one in each retry topic.
        assert_eq!(scene.calls(), 1 + 4);
        assert_eq!((letter.key.as_deref(), letter.value.as_deref()), (Some(&b"b"[..]), Some(&b"1"[..])));
        let expected = [("trace", "x"), (ORIGIN_HEADER, "orders/0/1"), (CALLS_HEADER, "4"), (ERROR_HEADER, "call 4")];
        let mut headers = headers(&letter);
        assert!(headers.remove(TIME_HEADER).is_some());
        assert_eq!(headers, expected.map(|(name, value)| (name, value.to_owned())).into());
        processor.stop().await.unwrap();
    });
}

/// Handler that fails, and logs the times of the records.
struct Failing {
    times: Arc<Mutex<Vec<Timestamp>>>,
}

impl Handler for Failing {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        self.times.lock().unwrap().push(delivery.record.timestamp);
        async { Err(HandlerError::retriable("not yet")) }.boxed()
    }
}

/// A bus deletes records by their times, so it would delete a copy with the time of an old record at once.
#[test]
fn copies_have_new_times_and_handlers_receive_the_original_time() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let began = scene.runtime.now();
        let old = began - 10 * 86_400 * SECOND;
        let record = NewRecord { timestamp: Some(old), ..NewRecord::new(&scene.topic, "a", "1") };
        scene.producer.send(vec![record]).await.remove(0).unwrap();
        let times = Arc::<Mutex<Vec<Timestamp>>>::default();
        let options = options(&scene, &[SECOND, SECOND], Retry::None);
        let processor = scene.start(options, Arc::new(Failing { times: times.clone() })).await;
        let letter = read_dead_letters(&scene, 1).await.remove(0);
        assert_eq!(*times.lock().unwrap(), [old; 3]);
        assert_eq!(headers(&letter)[TIME_HEADER], old.as_millis().to_string());
        assert!(letter.timestamp >= began + 2 * SECOND, "{:?}", letter.timestamp);
        let retry = TopicName::new("orders-billing-retry-0").unwrap();
        let consumer = scene.bus.consumer(ConsumerOptions::new("other", vec![retry])).await.unwrap();
        let copy = loop {
            if let Event::Records(mut batch) = consumer.next().await.unwrap() {
                break batch.records.remove(0);
            }
        };
        assert!(copy.timestamp >= began, "{:?}", copy.timestamp);
        processor.stop().await.unwrap();
    });
}

#[test]
fn failure_that_is_not_retriable_makes_a_dead_letter_at_once() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..3).await;
        let fails =
            |_: &str, number: u64, _: u32| (number == 1).then(|| HandlerError::not_retriable("\u{e9}".repeat(2_000)));
        let blocking = Retry::Blocking { first_wait: SECOND, wait_max: SECOND, calls_max: None };
        let options = options(&scene, &[SECOND], blocking);
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        let letter = read_dead_letters(&scene, 1).await.remove(0);
        scene.until("the other records are handled", |log| Scene::count(log) == 2).await;
        assert_eq!(scene.calls(), 3);
        let headers = headers(&letter);
        assert_eq!((headers[CALLS_HEADER].as_str(), headers[ERROR_HEADER].len()), ("1", 1_024));
        processor.stop().await.unwrap();
    });
}

#[test]
fn record_with_damaged_retry_headers_is_handled_at_once() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let hour = 3_600 * SECOND;
        let options = options(&scene, &[hour], Retry::None);
        let processor = scene.start(options, scene.handler(Duration::ZERO, succeeds)).await;
        let topic = TopicName::new("orders-billing-retry-0").unwrap();
        let with = |number: &str, texts: &[(&str, &'static [u8])]| {
            let header = |(name, value): &(&str, &'static [u8])| Header {
                name: (*name).to_owned(),
                value: Some(Bytes::from_static(value)),
            };
            NewRecord { headers: texts.iter().map(header).collect(), ..NewRecord::new(&topic, "a", number.to_owned()) }
        };
        let records = vec![
            with("0", &[]),
            with("1", &[(ORIGIN_HEADER, b"orders/0"), (CALLS_HEADER, b"2"), (NOT_BEFORE_HEADER, b"soon")]),
            with("4", &[(ORIGIN_HEADER, b"orders/0/1"), (CALLS_HEADER, b"4294967295"), (NOT_BEFORE_HEADER, b"-1")]),
            with("2", &[(ORIGIN_HEADER, b"orders/0/1/2"), (CALLS_HEADER, b"-1"), (NOT_BEFORE_HEADER, b"\xff")]),
        ];
        assert!(scene.producer.send(records).await.iter().all(Result::is_ok));
        scene
            .until("the records are handled", |log| log.get("a").is_some_and(|numbers| *numbers == [0, 1, 4, 2]))
            .await;
        // A time in the far future delays a record only by the wait of the topic.
        let began = scene.runtime.monotonic();
        let late =
            [(ORIGIN_HEADER, &b"orders/0/7"[..]), (CALLS_HEADER, b"1"), (NOT_BEFORE_HEADER, b"9000000000000000")];
        assert!(scene.producer.send(vec![with("3", &late)]).await[0].is_ok());
        scene.runtime.sleep(hour - SECOND).await;
        assert_eq!(scene.calls(), 4);
        scene.until("the last record is handled", |log| log["a"].len() == 5).await;
        assert!(scene.runtime.monotonic().since(began) < hour + SECOND);
        processor.stop().await.unwrap();
    });
}

#[test]
fn waiting_records_do_not_stop_other_records() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let bad: Vec<String> = (0..150).map(|key| format!("bad{key}")).collect();
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        scene.send(&bad, 0..1).await;
        scene.send(&["good"], 0..100).await;
        let fails = |key: &str, _: u64, call: u32| {
            (key.starts_with("bad") && call == 1).then(|| HandlerError::retriable("not yet"))
        };
        let mut options = options(&scene, &[600 * SECOND], Retry::None);
        options.records_max = 40;
        options.consumer.batch_records_max = 30;
        let began = scene.runtime.monotonic();
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        scene.until("the good records are handled", |log| log.get("good").is_some_and(|all| all.len() == 100)).await;
        assert!(scene.runtime.monotonic().since(began) < 60 * SECOND, "the good records waited");
        assert!(processor.records_in_hand() <= 40 + 30, "{} records are in hand", processor.records_in_hand());
        scene.runtime.sleep(600 * SECOND).await;
        scene.until("all records are handled", |log| Scene::count(log) == 250).await;
        processor.stop().await.unwrap();
    });
}

#[test]
fn record_that_is_too_large_for_its_copy_becomes_a_dead_letter_without_its_value() {
    simulate(async |sim| {
        let limit = 300;
        let capabilities = Capabilities { record_bytes_max: limit, ..MemoryOptions::default().capabilities };
        let scene = Scene::with_options(sim, 1, MemoryOptions { capabilities, ..MemoryOptions::default() }).await;
        let value = format!("{:0>1$}", 7, limit - 1);
        let sent = scene.producer.send(vec![NewRecord::new(&scene.topic, "a", value)]).await.remove(0);
        assert_eq!(sent.unwrap().offset, Offset(0));
        scene.send(&["a"], 1..3).await;
        let fails = |_: &str, number: u64, _: u32| (number == 7).then(|| HandlerError::retriable("not yet"));
        let options = options(&scene, &[SECOND], Retry::None);
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        let letter = read_dead_letters(&scene, 1).await.remove(0);
        assert_eq!((letter.key.as_deref(), letter.value.as_deref()), (Some(&b"a"[..]), None));
        let headers = headers(&letter);
        assert_eq!((headers[ORIGIN_HEADER].as_str(), headers[VALUE_OMITTED_HEADER].as_str()), ("orders/0/0", "true"));
        scene.until("the other records are handled", |log| log.get("a").is_some_and(|all| *all == [1, 2])).await;
        processor.stop().await.unwrap();
    });
}

#[test]
fn group_name_that_no_topic_can_contain_is_rejected() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let mut options = options(&scene, &[SECOND], Retry::None);
        options.consumer.group = "billing service".to_owned();
        let handler = scene.handler(Duration::ZERO, succeeds);
        let started = bus::processor::Processor::start(&scene.runtime, &scene.bus, options, handler).await;
        let error = started.err().expect("the group is invalid");
        assert!(matches!(&error, BusError::Invalid(text) if text.contains("group whose name")), "{error}");
        // A topic for dead letters that exists is used as it is.
        scene.bus.create_topic(&dead_letters(), TopicOptions::with_partitions(1)).await.unwrap();
        let options = ProcessorOptions { dead_letters: Some(dead_letters()), ..scene.options() };
        scene.start(options, scene.handler(Duration::ZERO, succeeds)).await.stop().await.unwrap();
    });
}

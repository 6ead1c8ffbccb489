//! Tests of the processor on the bus in memory, in simulations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{Bus as _, ConsumerOptions, NewRecord, Producer, ProducerOptions, TopicName, TopicOptions};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use simulator::Simulation;

/// Longest time that a test waits for a condition.
const LIMIT: Duration = Duration::from_secs(120);

/// Log of the calls of all handlers: for each key, the numbers of the handled records.
pub(crate) type Log = Arc<Mutex<BTreeMap<String, Vec<u64>>>>;

/// Handler that waits, and then logs the record.
pub(crate) struct Logging {
    runtime: Runtime,
    wait: Duration,
    log: Log,
    /// Number of calls of all handlers.
    calls: Arc<AtomicUsize>,
    /// Decides whether the call fails, from the key, the number and the number of the call.
    fails: fn(&str, u64, u32) -> Option<HandlerError>,
}

impl Handler for Logging {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let key = delivery.record.key.as_ref().map_or(String::new(), |key| text(key));
            let number = text(delivery.record.value.as_ref().unwrap()).parse().unwrap();
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.runtime.sleep(self.wait).await;
            if let Some(error) = (self.fails)(&key, number, delivery.call) {
                return Err(error);
            }
            self.log.lock().unwrap().entry(key).or_default().push(number);
            Ok(())
        }
        .boxed()
    }
}

pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) bus: MemoryBus,
    pub(crate) producer: Arc<dyn Producer>,
    pub(crate) topic: TopicName,
    pub(crate) log: Log,
    calls: Arc<AtomicUsize>,
}

impl Scene {
    pub(crate) async fn new(sim: &Simulation, partitions: u32) -> Self {
        Scene::with_options(sim, partitions, MemoryOptions::default()).await
    }

    pub(crate) async fn with_options(sim: &Simulation, partitions: u32, options: MemoryOptions) -> Self {
        let runtime = sim.outside();
        let latency = Some(Duration::ZERO..=Duration::from_millis(3));
        let bus = MemoryBus::new(runtime.clone(), MemoryOptions { latency, ..options });
        let topic = TopicName::new("orders").unwrap();
        bus.create_topic(&topic, TopicOptions::with_partitions(partitions)).await.unwrap();
        let producer = bus.producer(ProducerOptions::default()).await.unwrap();
        Scene { runtime, bus, producer, topic, log: Log::default(), calls: Arc::default() }
    }

    /// Sends the numbers for each of the keys.
    pub(crate) async fn send(&self, keys: &[&str], numbers: Range<u64>) {
        for number in numbers {
            let record = |key: &&str| NewRecord::new(&self.topic, (*key).to_owned(), number.to_string());
            let outcomes = self.producer.send(keys.iter().map(record).collect()).await;
            assert!(outcomes.iter().all(Result::is_ok));
        }
    }

    pub(crate) fn options(&self) -> ProcessorOptions {
        let consumer = ConsumerOptions {
            session_timeout: Duration::from_secs(2),
            ..ConsumerOptions::new("billing", vec![self.topic.clone()])
        };
        ProcessorOptions { commit_interval: Duration::from_millis(100), ..ProcessorOptions::new(consumer) }
    }

    pub(crate) fn handler(&self, wait: Duration, fails: fn(&str, u64, u32) -> Option<HandlerError>) -> Arc<Logging> {
        Arc::new(Logging {
            runtime: self.runtime.clone(),
            wait,
            log: self.log.clone(),
            calls: self.calls.clone(),
            fails,
        })
    }

    pub(crate) async fn start(&self, options: ProcessorOptions, handler: Arc<impl Handler>) -> Processor {
        self.start_on(&self.bus.reopen(self.runtime.clone()), options, handler).await
    }

    async fn start_on(&self, bus: &MemoryBus, options: ProcessorOptions, handler: Arc<impl Handler>) -> Processor {
        Processor::start(&self.runtime, bus, options, handler).await.unwrap()
    }

    pub(crate) async fn until(&self, event: &str, mut holds: impl FnMut(&BTreeMap<String, Vec<u64>>) -> bool) {
        let looking = async {
            while !holds(&self.log.lock().unwrap()) {
                self.runtime.sleep(Duration::from_millis(5)).await;
            }
        };
        let done = self.runtime.timeout(LIMIT, looking).await;
        assert!(done.is_some(), "timed out waiting until {event}: {:?}", self.log.lock().unwrap());
    }

    /// Returns the number of records of a topic with one partition.
    pub(crate) async fn record_count(&self, topic: &str) -> u64 {
        let description = self.bus.describe_topic(&TopicName::new(topic).unwrap()).await.unwrap();
        description.offsets[0].1.0
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn count(log: &BTreeMap<String, Vec<u64>>) -> usize {
        log.values().map(Vec::len).sum()
    }
}

pub(crate) fn succeeds(_: &str, _: u64, _: u32) -> Option<HandlerError> {
    None
}

/// Runs the test with several seeds.
pub(crate) fn simulate(test: impl AsyncFn(&Simulation)) {
    for seed in 0..8 {
        let sim = Simulation::new(seed);
        sim.run_until(test(&sim));
    }
}

/// Asserts that the first calls of each key are in order: an earlier record is handled before a later record for the
/// first time.
fn assert_order(log: &BTreeMap<String, Vec<u64>>) {
    for (key, numbers) in log {
        let mut first_calls: Vec<u64> = Vec::new();
        numbers.iter().for_each(|number| {
            if !first_calls.contains(number) {
                first_calls.push(*number)
            }
        });
        assert!(first_calls.is_sorted(), "{key}: {numbers:?}");
    }
}

#[test]
fn records_of_a_key_are_handled_in_order_and_keys_in_parallel() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "b", "c", "d"], 0..25).await;
        let began = scene.runtime.monotonic();
        let wait = Duration::from_millis(100);
        let processor = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.until("all records are handled", |log| Scene::count(log) == 100).await;
        let took = scene.runtime.monotonic().since(began);
        assert!(took >= wait * 25 && took < wait * 35, "four keys in parallel took {took:?}");
        assert!(scene.log.lock().unwrap().values().all(|numbers| *numbers == (0..25).collect::<Vec<_>>()));
        processor.stop().await.unwrap();
    });
}

#[test]
fn next_processor_handles_only_records_that_are_not_finished() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b", "c"], 0..10).await;
        // The first record of `a` fails for ever, so the lane of `a` waits. The other keys finish.
        let fails = |key: &str, _: u64, _: u32| (key == "a").then(|| HandlerError::retriable("not yet"));
        let wait = Duration::from_millis(50);
        let retry = Retry::Blocking { first_wait: wait, wait_max: wait * 4, calls_max: None };
        let options = ProcessorOptions { retry, ..scene.options() };
        let processor = scene.start(options.clone(), scene.handler(Duration::ZERO, fails)).await;
        scene.until("the other keys are finished", |log| Scene::count(log) == 20).await;
        processor.stop().await.unwrap();
        scene.log.lock().unwrap().clear();
        let processor = scene.start(options, scene.handler(Duration::ZERO, succeeds)).await;
        scene.until("the key is finished", |log| Scene::count(log) == 10).await;
        scene.runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(*scene.log.lock().unwrap(), BTreeMap::from([("a".to_owned(), (0..10).collect())]));
        processor.stop().await.unwrap();
    });
}

#[test]
fn blocking_retry_calls_the_handler_until_it_succeeds() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..5).await;
        let fails = |key: &str, number: u64, call: u32| {
            (key == "a" && number == 2 && call < 4).then(|| HandlerError::retriable("not yet"))
        };
        let first_wait = Duration::from_secs(1);
        let retry = Retry::Blocking { first_wait, wait_max: first_wait * 2, calls_max: None };
        let began = scene.runtime.monotonic();
        let options = ProcessorOptions { retry, ..scene.options() };
        let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
        scene.until("the other key is finished", |log| log.get("b").is_some_and(|numbers| numbers.len() == 5)).await;
        assert!(scene.runtime.monotonic().since(began) < first_wait, "the other key waited");
        scene.until("the key is finished", |log| Scene::count(log) == 10).await;
        let took = scene.runtime.monotonic().since(began);
        assert!(took >= first_wait * 5 && took < first_wait * 6, "the waits of 1, 2 and 2 s took {took:?}");
        assert_order(&scene.log.lock().unwrap());
        processor.stop().await.unwrap();
    });
}

#[test]
fn failed_record_is_finished_if_no_further_call_is_allowed() {
    simulate(async |sim| {
        for retry in
            [Retry::None, Retry::Blocking { first_wait: Duration::ZERO, wait_max: Duration::ZERO, calls_max: Some(3) }]
        {
            let scene = Scene::new(sim, 1).await;
            scene.send(&["a"], 0..5).await;
            let fails = |_: &str, number: u64, _: u32| match number {
                1 => Some(HandlerError::retriable("a failure of each call")),
                3 => Some(HandlerError::not_retriable("a damaged record")),
                _ => None,
            };
            let options = ProcessorOptions { retry, ..scene.options() };
            let processor = scene.start(options, scene.handler(Duration::ZERO, fails)).await;
            scene.until("the other records are handled", |log| Scene::count(log) == 3).await;
            processor.stop().await.unwrap();
            assert_eq!(scene.log.lock().unwrap()["a"], [0, 2, 4]);
        }
    });
}

#[test]
fn panic_of_a_handler_makes_only_its_record_fail() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..5).await;
        let panics = |key: &str, number: u64, _: u32| {
            assert!(key != "a" || number != 2, "a deliberate panic");
            None
        };
        let processor = scene.start(scene.options(), scene.handler(Duration::ZERO, panics)).await;
        scene.until("the other records are handled", |log| Scene::count(log) == 9).await;
        processor.stop().await.unwrap();
        assert_eq!(scene.log.lock().unwrap()["a"], [0, 1, 3, 4]);
    });
}

/// Handler that panics for one record before it returns a future.
struct PanicsAtOnce(Arc<Logging>);

impl Handler for PanicsAtOnce {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        let record = &delivery.record;
        assert!(record.key.as_deref() != Some(b"a") || record.value.as_deref() != Some(b"2"), "a deliberate panic");
        self.0.handle(delivery)
    }
}

#[test]
fn panic_of_a_handler_before_its_future_makes_only_its_record_fail() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..5).await;
        let handler = Arc::new(PanicsAtOnce(scene.handler(Duration::ZERO, succeeds)));
        let processor = scene.start(scene.options(), handler).await;
        scene.until("the other records are handled", |log| Scene::count(log) == 9).await;
        processor.stop().await.unwrap();
        assert_eq!(scene.log.lock().unwrap()["a"], [0, 1, 3, 4]);
    });
}

#[test]
fn records_in_hand_are_bounded() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        scene.send(&keys, 0..50).await;
        let mut options = ProcessorOptions { records_max: 100, concurrency: 10, ..scene.options() };
        options.consumer.batch_records_max = 20;
        let processor = scene.start(options, scene.handler(Duration::from_millis(20), succeeds)).await;
        let most = Mutex::new(0);
        scene
            .until("all records are handled", |log| {
                let mut most = most.lock().unwrap();
                *most = processor.records_in_hand().max(*most);
                Scene::count(log) == 1_000
            })
            .await;
        let most = most.into_inner().unwrap();
        assert!((50..=140).contains(&most), "{most} records were in hand");
        assert_order(&scene.log.lock().unwrap());
        processor.stop().await.unwrap();
    });
}

#[test]
fn revoked_partition_moves_after_its_running_handlers() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "b", "c", "d"], 0..2).await;
        let wait = Duration::from_secs(3);
        let first = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.calls(), 4);
        let second = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.until("all records are handled", |log| Scene::count(log) == 8).await;
        scene.runtime.sleep(wait * 2).await;
        assert_eq!(scene.calls(), 8, "no record is handled twice");
        assert_order(&scene.log.lock().unwrap());
        first.stop().await.unwrap();
        second.stop().await.unwrap();
    });
}

#[test]
fn handler_that_exceeds_the_drain_timeout_is_dropped() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 2).await;
        scene.send(&["a", "b", "c", "d"], 0..1).await;
        let drain_timeout = Duration::from_millis(500);
        let options = ProcessorOptions { drain_timeout, ..scene.options() };
        let first = scene.start(options.clone(), scene.handler(Duration::from_secs(3), succeeds)).await;
        scene.runtime.sleep(Duration::from_secs(1)).await;
        let second = scene.start(options, scene.handler(Duration::ZERO, succeeds)).await;
        scene.until("all records are handled", |log| Scene::count(log) == 4).await;
        scene.runtime.sleep(Duration::from_secs(10)).await;
        // The first processor keeps a partition. The records of the other partition are handled only once to their end.
        assert!(scene.log.lock().unwrap().values().all(|numbers| *numbers == [0]), "{:?}", scene.log);
        assert!(scene.calls() > 4, "a dropped handler is called again by the next owner");
        first.stop().await.unwrap();
        second.stop().await.unwrap();
    });
}

#[test]
fn lost_partition_stops_its_handlers_at_once() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a", "b"], 0..1).await;
        let wait = Duration::from_secs(10);
        let cut = scene.bus.reopen(scene.runtime.clone());
        let first = scene.start_on(&cut, scene.options(), scene.handler(wait, succeeds)).await;
        scene.runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.calls(), 2);
        cut.cut(true);
        let second = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.until("the next owner has handled the records", |log| Scene::count(log) == 2).await;
        assert_eq!(scene.calls(), 4);
        scene.runtime.sleep(wait).await;
        assert_eq!(Scene::count(&scene.log.lock().unwrap()), 2, "the earlier owner continued its handlers");
        cut.cut(false);
        second.stop().await.unwrap();
        drop(first);
    });
}

/// Members join and stop, and one loses its session, while records arrive.
#[test]
fn rebalances_neither_lose_a_record_nor_invert_a_key() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 4).await;
        let keys: Vec<String> = (0..12).map(|key| format!("k{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let wait = Duration::from_millis(7);
        let cut = scene.bus.reopen(scene.runtime.clone());
        let first = scene.start_on(&cut, scene.options(), scene.handler(wait, succeeds)).await;
        scene.send(&keys, 0..20).await;
        let second = scene.start(scene.options(), scene.handler(wait, succeeds)).await;
        scene.send(&keys, 20..40).await;
        cut.cut(true);
        scene.send(&keys, 40..60).await;
        scene.runtime.sleep(Duration::from_secs(5)).await;
        cut.cut(false);
        scene.send(&keys, 60..80).await;
        second.stop().await.unwrap();
        scene.send(&keys, 80..100).await;
        let distinct = |numbers: &Vec<u64>| numbers.iter().collect::<BTreeSet<_>>().len();
        scene.until("all records are handled", |log| log.values().map(distinct).sum::<usize>() == 12 * 100).await;
        first.stop().await.unwrap();
        let log = scene.log.lock().unwrap();
        assert_order(&log);
        for (key, numbers) in &*log {
            assert!(numbers.len() < 140, "{key}: {} calls for 100 records", numbers.len());
        }
    });
}

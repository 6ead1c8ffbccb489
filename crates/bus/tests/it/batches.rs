//! Tests of handlers that receive several records in one call, in simulations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::TopicName;
use bus::processor::{BatchHandler, Delivery, HandlerError, Processor, ProcessorOptions, Retry};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::processor::{Scene, simulate};

const WAIT: Duration = Duration::from_millis(50);

/// Handler that logs the records of each call. As the trait requires, it handles no record of a key after a failed one.
struct Batches {
    runtime: Runtime,
    /// Keys and numbers of the records of each call.
    calls: Mutex<Vec<Vec<(String, u64)>>>,
    handled: Mutex<BTreeMap<String, Vec<u64>>>,
    /// Returns true if the record fails. The arguments are its key, its number, and the number of the call.
    fails: fn(&str, u64, u32) -> bool,
}

fn name(delivery: &Delivery) -> (String, u64) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let number = text(delivery.record.value.as_ref().unwrap()).parse().unwrap();
    (text(delivery.record.key.as_ref().unwrap()), number)
}

impl BatchHandler for Batches {
    fn handle(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Result<(), HandlerError>>> {
        async move {
            self.calls.lock().unwrap().push(deliveries.iter().map(name).collect());
            let partition = &deliveries[0].partition;
            assert!(deliveries.iter().all(|one| one.partition == *partition), "records of two partitions in one call");
            self.runtime.sleep(WAIT).await;
            let mut failed = BTreeSet::new();
            let mut outcomes = Vec::new();
            for delivery in deliveries {
                let (key, number) = name(&delivery);
                if failed.contains(&key) || (self.fails)(&key, number, delivery.call) {
                    failed.insert(key);
                    outcomes.push(Err(HandlerError::retriable("a deliberate failure")));
                } else {
                    self.handled.lock().unwrap().entry(key).or_default().push(number);
                    outcomes.push(Ok(()));
                }
            }
            outcomes
        }
        .boxed()
    }
}

async fn start(
    scene: &Scene,
    options: ProcessorOptions,
    fails: fn(&str, u64, u32) -> bool,
) -> (Processor, Arc<Batches>) {
    let (calls, handled) = (Mutex::default(), Mutex::default());
    let handler = Arc::new(Batches { runtime: scene.runtime.clone(), calls, handled, fails });
    let options = ProcessorOptions { concurrency: 2, ..options };
    let bus = scene.bus.reopen(scene.runtime.clone());
    (Processor::start_batches(&scene.runtime, &bus, options, 10, handler.clone()).await.unwrap(), handler)
}

async fn until_handled(scene: &Scene, handler: &Batches, expected: &BTreeMap<String, Vec<u64>>) {
    for _ in 0..2_000 {
        if *handler.handled.lock().unwrap() == *expected {
            return;
        }
        scene.runtime.sleep(WAIT / 10).await;
    }
    panic!("the handled records are {:?}", handler.handled.lock().unwrap());
}

fn expected(keys: &[&str], numbers: &[u64]) -> BTreeMap<String, Vec<u64>> {
    keys.iter().map(|key| ((*key).to_owned(), numbers.to_vec())).collect()
}

#[test]
fn batch_contains_records_of_several_keys_in_their_order() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let keys = ["a", "b", "c", "d"];
        scene.send(&keys, 0..25).await;
        let began = scene.runtime.monotonic();
        let (processor, handler) = start(&scene, scene.options(), |_, _, _| false).await;
        let numbers: Vec<u64> = (0..25).collect();
        until_handled(&scene, &handler, &expected(&keys, &numbers)).await;
        let took = scene.runtime.monotonic().since(began);
        assert!(took < WAIT * 25, "100 records in batches of up to 10 took {took:?}");
        let calls = handler.calls.lock().unwrap().clone();
        assert!(calls.iter().all(|call| call.len() <= 10), "{calls:?}");
        let distinct = |call: &Vec<(String, u64)>| call.iter().map(|(key, _)| key).collect::<BTreeSet<_>>().len();
        assert!(calls.iter().any(|call| distinct(call) > 1), "no call has records of several keys: {calls:?}");
        processor.stop().await.unwrap();
    });
}

#[test]
fn failed_record_of_a_batch_holds_back_only_its_key() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let keys = ["a", "b", "c"];
        scene.send(&keys, 0..6).await;
        let retry = Retry::Blocking { first_wait: WAIT * 20, wait_max: WAIT * 20, calls_max: None };
        let options = ProcessorOptions { retry, ..scene.options() };
        let (processor, handler) =
            start(&scene, options, |key, number, call| key == "b" && number == 2 && call < 3).await;
        scene.runtime.sleep(WAIT * 19).await;
        let mut others = expected(&["a", "c"], &[0, 1, 2, 3, 4, 5]);
        others.insert("b".to_owned(), vec![0, 1]);
        until_handled(&scene, &handler, &others).await;
        until_handled(&scene, &handler, &expected(&keys, &[0, 1, 2, 3, 4, 5])).await;
        processor.stop().await.unwrap();
    });
}

#[test]
fn records_after_a_dead_letter_of_a_batch_are_handled_again() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        scene.send(&["a"], 0..6).await;
        let options = ProcessorOptions { dead_letters: Some(TopicName::new("dead").unwrap()), ..scene.options() };
        let (processor, handler) = start(&scene, options, |_, number, _| number == 2).await;
        until_handled(&scene, &handler, &expected(&["a"], &[0, 1, 3, 4, 5])).await;
        processor.stop().await.unwrap();
        let dead = scene.record_count("dead").await;
        assert_eq!(dead, 1, "one record is a dead letter");
    });
}

#[test]
fn panic_of_a_batch_makes_only_its_record_fail() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let keys = ["a", "b", "c"];
        scene.send(&keys, 0..6).await;
        let panics = |key: &str, number: u64, _: u32| {
            assert!(key != "b" || number != 2, "a deliberate panic");
            false
        };
        let (processor, handler) = start(&scene, scene.options(), panics).await;
        let mut all = expected(&["a", "c"], &[0, 1, 2, 3, 4, 5]);
        all.insert("b".to_owned(), vec![0, 1, 3, 4, 5]);
        // Records of the call that panicked are handled again.
        let distinct = || -> BTreeMap<String, Vec<u64>> {
            let handled = handler.handled.lock().unwrap().clone();
            let distinct = |numbers: Vec<u64>| numbers.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
            handled.into_iter().map(|(key, numbers)| (key, distinct(numbers))).collect()
        };
        for _ in 0..2_000 {
            if distinct() == all {
                break;
            }
            scene.runtime.sleep(WAIT / 10).await;
        }
        assert_eq!(distinct(), all);
        processor.stop().await.unwrap();
    });
}

use std::sync::atomic::{AtomicUsize, Ordering};

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Answer, Bus as _, BusError, Header, TopicOptions};
use domain::Timestamp;
use futures_util::future::FutureExt as _;

use super::*;

/// Bus with the topics `orders`, `other` and `orders-dead`.
struct Scene {
    runtime: Runtime,
    bus: Arc<MemoryBus>,
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn new_header(name: &str, value: &str) -> Header {
    Header { name: name.to_owned(), value: Some(Bytes::copy_from_slice(value.as_bytes())) }
}

impl Scene {
    async fn new() -> Self {
        let runtime = Runtime::real();
        let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
        for name in ["orders", "other", "orders-dead"] {
            bus.create_topic(&topic(name), TopicOptions::with_partitions(2)).await.unwrap();
        }
        Scene { runtime, bus }
    }

    /// Adds a dead letter with these headers.
    async fn add(&self, key: &str, value: &str, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| new_header(name, value)).collect();
        let record = NewRecord { headers, ..NewRecord::new(&topic("orders-dead"), key.to_owned(), value.to_owned()) };
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        producer.send(vec![record]).await.remove(0).unwrap();
    }

    /// Adds a dead letter of the topic `orders`.
    async fn add_letter(&self, key: &str, value: &str) {
        let headers =
            [("color", "red"), (ORIGIN_HEADER, "orders/0/7"), (CALLS_HEADER, "3"), (ERROR_HEADER, "no route")];
        self.add(key, value, &headers).await;
    }

    async fn redrive(&self, choice: Choice) -> (Counts, Result<(), String>) {
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        self.redrive_with(producer, choice).await.unwrap()
    }

    async fn redrive_with(
        &self,
        producer: Arc<dyn Producer>,
        choice: Choice,
    ) -> Result<(Counts, Result<(), String>), String> {
        let (bus, stop) = (self.bus.clone(), std::future::pending().boxed());
        let redriven = redrive(&self.runtime, bus, producer, &topic("orders-dead"), choice, stop).await;
        let text = |error: anyhow::Error| format!("{error:#}");
        redriven.map(|(counts, done)| (counts, done.map_err(text))).map_err(text)
    }

    /// Returns the texts `KEY VALUE` of the records of a topic, ordered by their keys. Checks their headers.
    async fn records(&self, name: &str) -> Vec<String> {
        let bus = self.bus.clone();
        let stop = std::future::pending().boxed();
        let mut feed = Feed::read(&self.runtime, bus, &topic(name), true, stop).await.unwrap();
        let mut found = Vec::new();
        while let Next::Records(batch) = feed.next().await.unwrap() {
            for record in batch.records {
                let is_known = |header: &Header| ["color", TIME_HEADER].contains(&header.name.as_str());
                assert!(record.headers.iter().all(is_known), "{record:?}");
                found.push((record.key.unwrap(), record.value.unwrap()));
            }
        }
        // The sort is stable, so the records of a key keep their order.
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        found.iter().map(|(key, value)| format!("{} {}", text(key), text(value))).collect()
    }
}

/// Chooses the dead letters of the topic `orders`.
fn from_orders() -> Choice {
    Choice { from: vec![topic("orders")], ..Choice::default() }
}

fn of_key(key: &'static str) -> Choice {
    Choice { key: Some(Bytes::from(key)), ..from_orders() }
}

fn to(name: &str) -> Choice {
    Choice { to: Some(topic(name)), ..Choice::default() }
}

fn skip(position: &str) -> Choice {
    Choice { skip: vec![position.parse().unwrap()], ..from_orders() }
}

fn redriven(redriven: u64) -> Counts {
    Counts { redriven, ..Counts::default() }
}

#[tokio::test]
async fn each_dead_letter_is_redriven_once_in_the_order_of_its_key() {
    let scene = Scene::new().await;
    for number in ["1", "2", "3"] {
        scene.add_letter("ann", number).await;
        scene.add_letter("bob", number).await;
    }
    assert_eq!(scene.redrive(from_orders()).await, (redriven(6), Ok(())));
    let expected = ["ann 1", "ann 2", "ann 3", "bob 1", "bob 2", "bob 3"];
    assert_eq!(scene.records("orders").await, expected);
    assert_eq!(scene.redrive(from_orders()).await, (redriven(0), Ok(())));
    scene.add_letter("ann", "4").await;
    assert_eq!(scene.redrive(to("other")).await, (redriven(1), Ok(())));
    assert_eq!(scene.records("orders").await, expected);
    assert_eq!(scene.records("other").await, ["ann 4"]);
}

#[tokio::test]
async fn redrive_of_one_key_leaves_the_others_for_a_later_command() {
    let scene = Scene::new().await;
    for (key, number) in [("ann", "1"), ("bob", "1"), ("ann", "2"), ("cat", "1")] {
        scene.add_letter(key, number).await;
    }
    assert_eq!(scene.redrive(of_key("ann")).await, (redriven(2), Ok(())));
    assert_eq!(scene.redrive(of_key("cat")).await, (redriven(1), Ok(())));
    assert_eq!(scene.redrive(of_key("ann")).await, (Counts { earlier: 2, ..redriven(0) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 2", "cat 1"]);
    scene.add_letter("ann", "3").await;
    assert_eq!(scene.redrive(from_orders()).await, (Counts { earlier: 3, ..redriven(2) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 2", "ann 3", "bob 1", "cat 1"]);
    assert_eq!(scene.redrive(from_orders()).await, (redriven(0), Ok(())));
}

#[tokio::test]
async fn dead_letter_without_a_value_is_skipped() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("ann", "", &[(ORIGIN_HEADER, "orders/0/8"), (VALUE_OMITTED_HEADER, "true")]).await;
    scene.add_letter("ann", "3").await;
    assert_eq!(scene.redrive(from_orders()).await, (Counts { without_value: 1, ..redriven(2) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 3"]);
    assert_eq!(scene.redrive(from_orders()).await, (redriven(0), Ok(())));
}

#[tokio::test]
async fn dead_letter_without_an_origin_requires_a_topic() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("ann", "2", &[(ORIGIN_HEADER, "orders/zero")]).await;
    scene.add("ann", "3", &[]).await;
    for redriven_now in [1, 0] {
        let (counts, done) = scene.redrive(from_orders()).await;
        assert_eq!(counts, redriven(redriven_now));
        let error = done.unwrap_err();
        assert!(error.contains("orders-dead/") && error.contains("--to TOPIC"), "{error}");
    }
    assert_eq!(scene.redrive(to("other")).await, (redriven(2), Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1"]);
    assert_eq!(scene.records("other").await, ["ann 2", "ann 3"]);
}

#[tokio::test]
async fn dead_letter_of_another_topic_is_not_sent() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("skip-all/orders", "{}", &[(ORIGIN_HEADER, "other/0/0")]).await;
    let error = scene.redrive(from_orders()).await.1.unwrap_err();
    assert!(error.contains("it is a record of the topic other; permit this topic with --from other"), "{error}");
    assert_eq!(scene.records("other").await, Vec::<String>::new());
    let position = error.split(' ').find(|word| word.starts_with("orders-dead/")).unwrap();
    let (counts, done) = scene.redrive(skip(position)).await;
    assert_eq!((counts.skipped, done), (1, Ok(())));
    assert_eq!(scene.redrive(from_orders()).await, (redriven(0), Ok(())));
    assert_eq!((scene.records("orders").await, scene.records("other").await), (vec!["ann 1".to_owned()], vec![]));
}

#[tokio::test]
async fn wrong_topic_or_position_is_rejected_before_the_first_letter() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    let dead = || vec![topic("orders-dead")];
    for (choice, expected) in [
        (to("orders-dead"), "orders-dead is the topic of the dead letters"),
        (Choice { from: dead(), ..Choice::default() }, "orders-dead is the topic of the dead letters"),
        (to("missing"), "unknown topic missing"),
        (Choice { from: vec![topic("orders"), topic("missing")], ..Choice::default() }, "unknown topic missing"),
        (skip("orders/0/1"), "is not in the topic orders-dead"),
        (skip("orders-dead/99/1"), "so it has no dead letter orders-dead/99/1"),
    ] {
        let producer = scene.bus.producer(ProducerOptions::default()).await.unwrap();
        let error = scene.redrive_with(producer, choice).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(scene.redrive(from_orders()).await, (redriven(1), Ok(())));
}

#[tokio::test]
async fn copy_of_an_old_record_has_a_new_time() {
    let scene = Scene::new().await;
    let (began, old) = (scene.runtime.now(), Timestamp::from_millis(1_700_000_000_000));
    let older = new_header(TIME_HEADER, "1600000000000");
    let headers = vec![new_header(ORIGIN_HEADER, "orders/0/7")];
    let letter = NewRecord { timestamp: Some(old), headers, ..NewRecord::new(&topic("orders-dead"), "ann", "1") };
    let mut copy_of_copy = letter.clone();
    copy_of_copy.headers.push(older);
    let producer = scene.bus.producer(ProducerOptions::default()).await.unwrap();
    assert!(producer.send(vec![letter, copy_of_copy]).await.iter().all(Result::is_ok));
    assert_eq!(scene.redrive(from_orders()).await, (redriven(2), Ok(())));
    let reader = scene.bus.reader(&topic("orders")).await.unwrap();
    let mut copies = Vec::new();
    while copies.len() < 2 {
        copies.extend(reader.next().await.unwrap().records);
    }
    assert!(copies.iter().all(|copy| copy.timestamp >= began), "{copies:?}");
    let times: Vec<_> = copies.iter().map(|copy| header(copy, TIME_HEADER).unwrap()).collect();
    assert_eq!(times, ["1700000000000", "1600000000000"]);
}

/// Producer that rejects the records with a value.
struct Rejecting {
    inner: Arc<dyn Producer>,
    value: &'static [u8],
    /// Largest number of records in a call.
    records_max: Arc<AtomicUsize>,
}

impl Producer for Rejecting {
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>> {
        self.records_max.fetch_max(records.len(), Ordering::Relaxed);
        let is_rejected = |record: &NewRecord| record.value.as_deref() == Some(self.value);
        let rejected: Vec<bool> = records.iter().map(is_rejected).collect();
        let sending = self.inner.send(records.into_iter().filter(|record| !is_rejected(record)).collect());
        async move {
            let mut outcomes = sending.await.into_iter();
            let reject = || Err(BusError::Invalid("the timestamp is too old".to_owned()));
            let outcome = |is_rejected| if is_rejected { reject() } else { outcomes.next().unwrap() };
            rejected.into_iter().map(outcome).collect()
        }
        .boxed()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

impl Scene {
    /// Returns a producer that rejects the records with a value.
    async fn rejecting(&self, value: &'static str) -> Arc<Rejecting> {
        let inner = self.bus.producer(ProducerOptions::default()).await.unwrap();
        Arc::new(Rejecting { inner, value: value.as_bytes(), records_max: Arc::default() })
    }

    /// Adds a dead letter of the topic `orders` to the partition 0.
    async fn add_to_partition_0(&self, key: Option<String>, value: &str) {
        let headers = vec![new_header(ORIGIN_HEADER, "orders/0/7")];
        let record = NewRecord::new(&topic("orders-dead"), "", value.to_owned());
        let record = NewRecord { partition: Some(0), key: key.map(Bytes::from), headers, ..record };
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        producer.send(vec![record]).await.remove(0).unwrap();
    }

    async fn values(&self, name: &str, count: usize) -> Vec<String> {
        let reader = self.bus.reader(&topic(name)).await.unwrap();
        let mut values = Vec::new();
        while values.len() < count {
            let records = reader.next().await.unwrap().records;
            values.extend(records.into_iter().map(|record| String::from_utf8(record.value.unwrap().to_vec()).unwrap()));
        }
        values.sort();
        values
    }
}

#[tokio::test]
async fn rejected_letter_does_not_repeat_the_others() {
    let scene = Scene::new().await;
    let keys = [Some("ann"), Some("bob"), Some("cat"), None, Some("dan"), None];
    for (key, value) in keys.into_iter().zip(["1", "rejected", "3", "4", "5", "6"]) {
        scene.add_to_partition_0(key.map(str::to_owned), value).await;
    }
    for expected in [redriven(5), Counts { earlier: 4, ..redriven(0) }] {
        let (counts, done) = scene.redrive_with(scene.rejecting("rejected").await, from_orders()).await.unwrap();
        assert_eq!(counts, expected);
        let error = done.unwrap_err();
        assert!(error.contains("orders-dead/0/1 is not redriven; to pass it, use --skip orders-dead/0/1"), "{error}");
        assert!(error.contains("the timestamp is too old"), "{error}");
    }
    let producer = scene.rejecting("rejected").await;
    let passed = scene.redrive_with(producer, skip("orders-dead/0/1")).await.unwrap();
    assert_eq!(passed, (Counts { earlier: 4, skipped: 1, ..redriven(0) }, Ok(())));
    assert_eq!(scene.redrive(from_orders()).await, (redriven(0), Ok(())));
    assert_eq!(scene.values("orders", 5).await, ["1", "3", "4", "5", "6"]);
}

/// The metadata of a commit must have room for the letters after a rejected one.
#[tokio::test]
async fn number_of_letters_at_once_is_bounded_by_the_metadata() {
    let scene = Scene::new().await;
    for number in 0..1_000 {
        let value = if number == 0 { "rejected".to_owned() } else { number.to_string() };
        scene.add_to_partition_0(Some(format!("customer-{number}")), &value).await;
    }
    let producer = scene.rejecting("rejected").await;
    let (counts, done) = scene.redrive_with(producer.clone(), from_orders()).await.unwrap();
    assert!(done.is_err());
    let records_max = producer.records_max.load(Ordering::Relaxed);
    assert!((50..300).contains(&records_max), "{records_max} letters were sent at once");
    assert_eq!(usize::try_from(counts.redriven).unwrap(), records_max - 1);
    let (counts, done) = scene.redrive(from_orders()).await;
    assert_eq!((counts.redriven + counts.earlier, done), (1_000, Ok(())));
    let values = scene.values("orders", 1_000).await;
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), 1_000);
}

#[tokio::test]
async fn letter_that_is_too_large_stops_the_command_before_the_later_ones() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add_letter("ann", &"x".repeat(1_000)).await;
    scene.add_letter("ann", "3").await;
    let producer = scene.bus.producer(ProducerOptions::default()).await.unwrap();
    let choice = from_orders();
    let mut redrive =
        Redrive { producer, record_bytes_max: 1_000, metadata_bytes_max: 4_096, choice, counts: Counts::default() };
    let options = ConsumerOptions::new("orders-dead-redrive", vec![topic("orders-dead")]);
    let stop = std::future::pending().boxed();
    let mut feed =
        Feed::join(&scene.runtime, scene.bus.clone(), &topic("orders-dead"), options, true, stop).await.unwrap();
    let error = redrive.run(&mut feed, Progress::new(&scene.runtime)).await.unwrap_err().to_string();
    feed.close().await;
    assert!(error.contains("the bus accepts at most 1000 bytes"), "{error}");
    assert_eq!(redrive.counts, redriven(1));
}

#[tokio::test]
async fn redrive_of_a_key_fails_without_all_partitions() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    let options = ConsumerOptions::new("orders-dead-redrive", vec![topic("orders-dead")]);
    let other = scene.bus.consumer(options).await.unwrap();
    let redriving = scene.redrive(of_key("ann"));
    let serving = async {
        loop {
            // The drop of a revocation releases its partitions.
            drop(other.next().await.unwrap());
        }
    };
    let (counts, done) = tokio::select! {
        redriven = redriving => redriven,
        () = serving => unreachable!("the other member never stops"),
    };
    assert!(counts.redriven <= 1);
    let error = done.unwrap_err();
    assert!(error.contains("run the command again after the other one has ended"), "{error}");
}

/// Commits contain this text, so it must never change.
#[test]
fn marks_have_a_stable_form_and_forget_old_keys() {
    let keys = [("YW5u".to_owned(), 17), ("Ym9i".to_owned(), 12)].into();
    let marks = Marks { version: VERSION, keys, offsets: BTreeSet::new() };
    let committed = marks.commit(Offset(12));
    assert_eq!((committed.offset, committed.metadata.as_str()), (Offset(12), r#"{"version":1,"keys":{"YW5u":17}}"#));
    let decoded = Marks::decode(&committed.metadata).unwrap();
    assert_eq!(decoded, Marks { keys: [("YW5u".to_owned(), 17)].into(), ..marks.clone() });
    let marks = Marks { offsets: [11, 12, 15].into(), ..marks };
    let with_offsets = r#"{"version":1,"keys":{"YW5u":17},"offsets":[12,15]}"#;
    assert_eq!(marks.commit(Offset(12)).metadata, with_offsets);
    assert_eq!(Marks::decode(with_offsets).unwrap().offsets, [12, 15].into());
    assert_eq!(decoded.commit(Offset(17)).metadata, "");
    assert_eq!(Marks::decode(""), Some(Marks::default()));
    for foreign in ["f1:AAA", r#"{"version":2,"keys":{}}"#, "{}"] {
        assert_eq!(Marks::decode(foreign), None);
    }
}

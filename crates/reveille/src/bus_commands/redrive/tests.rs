use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, Header, TopicOptions};

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

    async fn redrive(&self, to: Option<&str>, key: Option<&'static str>) -> (Counts, Result<(), String>) {
        let (bus, key) = (self.bus.clone(), key.map(Bytes::from));
        let (counts, done) = redrive(&self.runtime, bus, &topic("orders-dead"), to.map(topic), key).await.unwrap();
        (counts, done.map_err(|error| format!("{error:#}")))
    }

    /// Returns the texts `KEY VALUE` of the records of a topic, ordered by their keys. Checks their headers.
    async fn records(&self, name: &str) -> Vec<String> {
        let bus = self.bus.clone();
        let mut feed = Feed::read(&self.runtime, bus, &topic(name), true).await.unwrap();
        let mut found = Vec::new();
        while let Next::Records(batch) = feed.next().await.unwrap() {
            for record in batch.records {
                assert!(record.headers.iter().all(|header| header.name == "color"), "{record:?}");
                found.push((record.key.unwrap(), record.value.unwrap()));
            }
        }
        // The sort is stable, so the records of a key keep their order.
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        found.iter().map(|(key, value)| format!("{} {}", text(key), text(value))).collect()
    }
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
    assert_eq!(scene.redrive(None, None).await, (redriven(6), Ok(())));
    let expected = ["ann 1", "ann 2", "ann 3", "bob 1", "bob 2", "bob 3"];
    assert_eq!(scene.records("orders").await, expected);
    assert_eq!(scene.redrive(None, None).await, (redriven(0), Ok(())));
    scene.add_letter("ann", "4").await;
    assert_eq!(scene.redrive(Some("other"), None).await, (redriven(1), Ok(())));
    assert_eq!(scene.records("orders").await, expected);
    assert_eq!(scene.records("other").await, ["ann 4"]);
}

#[tokio::test]
async fn redrive_of_one_key_leaves_the_others_for_a_later_command() {
    let scene = Scene::new().await;
    for (key, number) in [("ann", "1"), ("bob", "1"), ("ann", "2"), ("cat", "1")] {
        scene.add_letter(key, number).await;
    }
    assert_eq!(scene.redrive(None, Some("ann")).await, (redriven(2), Ok(())));
    assert_eq!(scene.redrive(None, Some("cat")).await, (redriven(1), Ok(())));
    assert_eq!(scene.redrive(None, Some("ann")).await, (Counts { earlier: 2, ..redriven(0) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 2", "cat 1"]);
    scene.add_letter("ann", "3").await;
    assert_eq!(scene.redrive(None, None).await, (Counts { earlier: 3, ..redriven(2) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 2", "ann 3", "bob 1", "cat 1"]);
    assert_eq!(scene.redrive(None, None).await, (redriven(0), Ok(())));
}

#[tokio::test]
async fn dead_letter_without_a_value_is_skipped() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("ann", "", &[(ORIGIN_HEADER, "orders/0/8"), (VALUE_OMITTED_HEADER, "true")]).await;
    scene.add_letter("ann", "3").await;
    assert_eq!(scene.redrive(None, None).await, (Counts { without_value: 1, ..redriven(2) }, Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 3"]);
    assert_eq!(scene.redrive(None, None).await, (redriven(0), Ok(())));
}

#[tokio::test]
async fn dead_letter_without_an_origin_requires_a_topic() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("ann", "2", &[(ORIGIN_HEADER, "orders/zero")]).await;
    scene.add("ann", "3", &[]).await;
    for redriven_now in [1, 0] {
        let (counts, done) = scene.redrive(None, None).await;
        assert_eq!(counts, redriven(redriven_now));
        let error = done.unwrap_err();
        assert!(error.contains("orders-dead/") && error.contains("--to TOPIC"), "{error}");
    }
    assert_eq!(scene.redrive(Some("other"), None).await, (redriven(2), Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1"]);
    assert_eq!(scene.records("other").await, ["ann 2", "ann 3"]);
}

#[tokio::test]
async fn failure_leaves_the_dead_letter_for_the_next_command() {
    let scene = Scene::new().await;
    scene.add_letter("ann", "1").await;
    scene.add("ann", "2", &[(ORIGIN_HEADER, "missing/0/1")]).await;
    scene.add_letter("ann", "3").await;
    let (counts, done) = scene.redrive(None, None).await;
    assert_eq!(counts, redriven(1));
    let error = done.unwrap_err();
    assert!(error.contains("is not redriven: unknown topic missing"), "{error}");
    scene.bus.create_topic(&topic("missing"), TopicOptions::with_partitions(1)).await.unwrap();
    assert_eq!(scene.redrive(None, None).await, (redriven(2), Ok(())));
    assert_eq!(scene.records("orders").await, ["ann 1", "ann 3"]);
    assert_eq!(scene.records("missing").await, ["ann 2"]);
}

/// Commits contain this text, so it must never change.
#[test]
fn marks_have_a_stable_form_and_forget_old_keys() {
    let keys = [("YW5u".to_owned(), 17), ("Ym9i".to_owned(), 12)].into();
    let marks = Marks { version: VERSION, keys };
    let committed = marks.commit(Offset(12));
    assert_eq!((committed.offset, committed.metadata.as_str()), (Offset(12), r#"{"version":1,"keys":{"YW5u":17}}"#));
    let decoded = Marks::decode(&committed.metadata).unwrap();
    assert_eq!(decoded, Marks { version: VERSION, keys: [("YW5u".to_owned(), 17)].into() });
    assert_eq!(decoded.commit(Offset(17)).metadata, "");
    assert_eq!(Marks::decode(""), Some(Marks::default()));
    for foreign in ["f1:AAA", r#"{"version":2,"keys":{}}"#, "{}"] {
        assert_eq!(Marks::decode(foreign), None);
    }
}

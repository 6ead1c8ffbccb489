//! Records of bus targets, with the engine in memory.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus, Header, Offset, Record, TopicName, TopicOptions};
use callback::{BusDeliver, BusOptions, HttpDeliver, Options, Route};
use domain::{
    AttemptResult, BUS_NOT_CONFIGURED, BUS_REJECTED, BusTarget, CloudEvent, CloudEventMode, EGRESS_REJECTED, Egress,
    Target, Tenant,
};
use futures_util::future::join_all;
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support;

fn target(topic: &str) -> BusTarget {
    let timeout = Duration::from_secs(10);
    BusTarget { topic: topic.to_owned(), key: None, headers: Vec::new(), cloud_event: None, timeout }
}

/// Returns the first attempt of a run, of a tenant that may write to the topics that start with `orders`.
fn delivery(target: BusTarget, payload: &[u8]) -> Delivery {
    let mut delivery = support::delivery(support::target("http://unused".to_owned()), payload);
    Arc::make_mut(&mut delivery.schedule).spec.target = Target::Bus(target);
    let egress = Egress { allow_topics: vec!["orders*".parse().unwrap()], ..Egress::default() };
    delivery.tenant = Arc::new(Tenant { egress, ..(*delivery.tenant).clone() });
    delivery
}

struct Scene {
    bus: Arc<MemoryBus>,
    deliver: BusDeliver,
}

impl Scene {
    async fn new(memory: MemoryOptions) -> Self {
        let runtime = Runtime::real();
        let bus = Arc::new(MemoryBus::new(runtime.clone(), memory));
        for topic in ["orders", "orders-eu", "payments", "orders-dead"] {
            let topic = TopicName::new(topic).unwrap();
            while bus.create_topic(&topic, TopicOptions::with_partitions(1)).await.is_err_and(|it| it.is_retryable()) {}
        }
        let deliver = BusDeliver::new(&runtime, bus.clone(), BusOptions::default());
        Scene { bus, deliver }
    }

    async fn send(&self, delivery: Delivery) -> AttemptResult {
        let Delivered { result, retry_after, excerpt } =
            self.deliver.deliver(delivery).await.expect("the deadline is far away");
        assert_eq!((retry_after, excerpt), (None, None));
        result
    }

    /// Returns the first `count` records of a topic.
    async fn records(&self, topic: &str, count: usize) -> Vec<Record> {
        let topic = TopicName::new(topic).unwrap();
        let reader = self.bus.reader(&topic).await.unwrap();
        let mut records = Vec::new();
        while records.len() < count {
            records.extend(reader.next().await.unwrap().records);
        }
        records
    }
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let mut found = record.headers.iter().filter(|header| header.name == name);
    let value = found.next().map(|Header { value, .. }| std::str::from_utf8(value.as_ref().unwrap()).unwrap());
    assert!(found.next().is_none(), "the header {name} is repeated");
    value
}

#[tokio::test]
async fn record_has_the_payload_the_key_and_the_headers_of_a_callback() {
    let scene = Scene::new(MemoryOptions::default()).await;
    let mut target = target("orders");
    target.key = Some("customer-7".to_owned());
    target.headers = vec![("x-team".to_owned(), "payments".into())];
    let delivery = delivery(target, br#"{"order": 17}"#);
    let run_id = delivery.occurrence.run_id();
    let result = scene.send(delivery.clone()).await;
    assert_eq!(result, AttemptResult::Stored { partition: 0, offset: 0 });
    assert!(result.is_success());
    let [record] = &scene.records("orders", 1).await[..] else { panic!("the topic has one record") };
    assert_eq!(record.value.as_deref(), Some(&br#"{"order": 17}"#[..]));
    assert_eq!(record.key.as_deref(), Some(&b"customer-7"[..]));
    for (name, value) in [
        ("x-team", "payments"),
        ("content-type", "application/json"),
        ("webhook-id", run_id.as_str()),
        ("reveille-run-id", run_id.as_str()),
        ("reveille-schedule-id", "nightly_report"),
        ("reveille-attempt", "1"),
        ("reveille-term", "42"),
    ] {
        assert_eq!(header(record, name), Some(value), "{name}");
    }
    let headers: http::HeaderMap = (record.headers.iter())
        .map(|header| {
            (header.name.parse().unwrap(), http::HeaderValue::from_bytes(header.value.as_ref().unwrap()).unwrap())
        })
        .collect::<Vec<(http::HeaderName, _)>>()
        .into_iter()
        .collect();
    Webhook::from_bytes(support::secret()).unwrap().verify(record.value.as_ref().unwrap(), &headers).unwrap();
}

#[tokio::test]
async fn record_without_a_payload_has_no_value() {
    let scene = Scene::new(MemoryOptions::default()).await;
    scene.send(delivery(target("orders"), b"")).await;
    let [record] = &scene.records("orders", 1).await[..] else { panic!("the topic has one record") };
    assert_eq!((&record.value, &record.key, header(record, "content-type")), (&None, &None, None));
}

#[tokio::test]
async fn cloud_event_has_its_attributes_in_both_modes() {
    let scene = Scene::new(MemoryOptions::default()).await;
    let event = |mode, source: Option<&str>| {
        let mut target = target("orders");
        let (kind, source) = ("com.example.due".to_owned(), source.map(str::to_owned));
        target.cloud_event = Some(CloudEvent { mode, kind, source });
        target
    };
    let binary = delivery(event(CloudEventMode::Binary, None), b"[1]");
    let (id, time) = (binary.occurrence.run_id(), binary.occurrence.nominal.to_string());
    scene.send(binary).await;
    scene.send(delivery(event(CloudEventMode::Structured, Some("/shop")), br#"{"a":1e0}"#)).await;
    scene.send(delivery(event(CloudEventMode::Structured, None), b"")).await;
    let [binary, structured, empty] = &scene.records("orders", 3).await[..] else { panic!("three records") };
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", id.as_str()),
        ("ce_source", "/v1/schedules/nightly_report"),
        ("ce_type", "com.example.due"),
        ("ce_time", &time),
        ("ce_subject", "nightly_report"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(header(binary, name), Some(value), "{name}");
    }
    assert_eq!(binary.value.as_deref(), Some(&b"[1]"[..]));
    assert_eq!(header(structured, "content-type"), Some("application/cloudevents+json; charset=UTF-8"));
    assert_eq!(header(structured, "ce_id"), None);
    let text = std::str::from_utf8(structured.value.as_ref().unwrap()).unwrap();
    assert!(text.contains(r#""data":{"a":1e0}"#), "the payload is unchanged: {text}");
    let mut value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["id"].as_str(), header(structured, "webhook-id"));
    for name in ["id", "time"] {
        value.as_object_mut().unwrap().remove(name).unwrap();
    }
    let expected = json!({
        "specversion": "1.0",
        "source": "/shop",
        "type": "com.example.due",
        "subject": "nightly_report",
        "datacontenttype": "application/json",
        "data": {"a": 1.0},
    });
    assert_eq!(value, expected);
    let value: Value = serde_json::from_slice(empty.value.as_ref().unwrap()).unwrap();
    assert!(value.get("data").is_none() && value.get("datacontenttype").is_none());
}

#[tokio::test]
async fn topic_outside_the_policy_gets_no_record() {
    let scene = Scene::new(MemoryOptions::default()).await;
    for topic in ["payments", "orders-dead", "__consumer_offsets", "Orders"] {
        let AttemptResult::Unreachable(reason) = scene.send(delivery(target(topic), b"1")).await else {
            panic!("{topic}: the attempt was not rejected");
        };
        assert!(reason.starts_with(EGRESS_REJECTED), "{topic}: {reason}");
    }
    for topic in ["payments", "orders-dead"] {
        let described = scene.bus.describe_topic(&TopicName::new(topic).unwrap()).await.unwrap();
        assert_eq!(described.offsets, [(Offset(0), Offset(0))], "{topic}");
    }
}

#[tokio::test]
async fn rejected_record_has_an_error_without_details_of_the_bus() {
    let scene = Scene::new(MemoryOptions::default()).await;
    let large = vec![b'1'; 2 << 20];
    let AttemptResult::Unreachable(reason) = scene.send(delivery(target("orders"), &large)).await else {
        panic!("the bus accepted a record of 2 MiB");
    };
    assert!(reason.starts_with(BUS_REJECTED) && reason.contains("1048576 bytes"), "{reason}");
    let missing = scene.send(delivery(target("orders-us"), b"1")).await;
    let text = "the topic orders-us does not exist; ask an operator to create it";
    assert_eq!(missing, AttemptResult::Unreachable(text.to_owned()));
}

#[tokio::test]
async fn attempt_fails_while_the_bus_is_away_and_stores_no_record_later() {
    let scene = Scene::new(MemoryOptions::default()).await;
    let short = || BusTarget { timeout: Duration::from_secs(1), ..target("orders") };
    scene.send(delivery(short(), b"1")).await;
    scene.bus.cut(true);
    let result = scene.send(delivery(short(), b"2")).await;
    let text = "the bus did not acknowledge the record in time, and may have stored it";
    assert_eq!(result, AttemptResult::Unreachable(text.to_owned()));
    scene.bus.cut(false);
    assert!(scene.send(delivery(target("orders"), b"3")).await.is_success());
    let values: Vec<_> = scene.records("orders", 2).await.into_iter().map(|record| record.value.unwrap()).collect();
    assert_eq!(values, [&b"1"[..], b"3"]);
}

#[tokio::test]
async fn producer_that_opens_late_gets_no_record_of_an_ended_attempt() {
    let scene = Scene::new(MemoryOptions::default()).await;
    scene.bus.cut(true);
    let short = |topic: &str| BusTarget { timeout: Duration::from_secs(1), ..target(topic) };
    let attempts = ["orders", "orders-eu"].map(|topic| scene.send(delivery(short(topic), b"1")));
    let not_sent = AttemptResult::Unreachable("the bus did not respond; the record was not sent".to_owned());
    assert_eq!(join_all(attempts).await, [not_sent.clone(), not_sent]);
    scene.bus.cut(false);
    for topic in ["orders", "orders-eu"] {
        let result = scene.send(delivery(short(topic), b"2")).await;
        assert_eq!(result, AttemptResult::Stored { partition: 0, offset: 0 }, "{topic}");
    }
}

#[tokio::test]
async fn attempt_after_its_deadline_sends_no_record() {
    let scene = Scene::new(MemoryOptions::default()).await;
    let late = Delivery { deadline: Runtime::real().monotonic(), ..delivery(target("orders"), b"1") };
    assert_eq!(scene.deliver.deliver(late).await, None);
    let described = scene.bus.describe_topic(&TopicName::new("orders").unwrap()).await.unwrap();
    assert_eq!(described.offsets, [(Offset(0), Offset(0))]);
}

#[tokio::test]
async fn records_of_a_busy_topic_are_sent_in_batches() {
    const LATENCY: Duration = Duration::from_millis(20);
    let memory = MemoryOptions { latency: Some(LATENCY..=LATENCY), ..MemoryOptions::default() };
    let scene = Scene::new(memory).await;
    let runtime = Runtime::real();
    let elapsed = |began| runtime.monotonic().since(began);
    let began = runtime.monotonic();
    let first = scene.send(delivery(target("orders"), b"1")).await;
    // A lone record waits for two delays of one request, and for no other record.
    assert!(first.is_success() && elapsed(began) < Duration::from_millis(150), "{:?}", elapsed(began));
    let began = runtime.monotonic();
    let sent = join_all((0..900).map(|number| scene.send(delivery(target("orders"), number.to_string().as_bytes()))));
    assert!(sent.await.iter().all(AttemptResult::is_success));
    // One request after another would take 36 s.
    assert!(elapsed(began) < Duration::from_secs(2), "{:?}", elapsed(began));
    let numbers: Vec<_> = scene.records("orders", 901).await.into_iter().skip(1).map(|it| it.value.unwrap()).collect();
    let expected: Vec<_> = (0..900).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected, "the records have the order of their attempts");
}

#[tokio::test]
async fn route_without_a_bus_rejects_bus_targets() {
    let http = HttpDeliver::new(&Runtime::real(), Options::default()).unwrap();
    let route = Route { http, bus: None };
    let delivered = route.deliver(delivery(target("orders"), b"1")).await.unwrap();
    let AttemptResult::Unreachable(reason) = delivered.result else { panic!("the attempt did not fail") };
    assert!(reason.starts_with(BUS_NOT_CONFIGURED), "{reason}");
}

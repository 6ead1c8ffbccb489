use std::sync::Arc;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, Commit, Committed, Consumer, ConsumerOptions, Event, NewRecord, ProducerOptions, TopicOptions};
use clap::Parser;

use super::*;

#[derive(Parser, Debug)]
struct Line {
    #[command(flatten)]
    grow: Grow,
}

/// Parses the arguments of a growth of the topic `orders` to 4 partitions.
fn arguments(more: &[&str]) -> Grow {
    let words = ["grow", "orders", "--bus", "kafka://unused", "--partitions", "4"];
    Line::try_parse_from(words.iter().chain(more)).unwrap().grow
}

/// Bus with a topic of two partitions and two records.
struct Scene {
    runtime: Runtime,
    bus: MemoryBus,
    topic: TopicName,
}

impl Scene {
    async fn new() -> Self {
        let (runtime, topic) = (Runtime::real(), TopicName::new("orders").unwrap());
        let bus = MemoryBus::new(runtime.clone(), MemoryOptions::default());
        bus.create_topic(&topic, TopicOptions::with_partitions(2)).await.unwrap();
        let scene = Scene { runtime, bus, topic };
        scene.send("a").await;
        scene.send("b").await;
        scene
    }

    async fn send(&self, key: &str) {
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        producer.send(vec![NewRecord::new(&self.topic, key.to_owned(), "1")]).await.remove(0).unwrap();
    }

    /// Joins the group `billing`, and commits `count` records.
    async fn join(&self, count: usize) -> Arc<dyn Consumer> {
        let consumer = self.bus.consumer(ConsumerOptions::new("billing", vec![self.topic.clone()])).await.unwrap();
        let mut received = 0;
        while received < count {
            let Event::Records(batch) = consumer.next().await.unwrap() else { continue };
            for record in batch.records.iter().take(count - received) {
                let committed = Committed { offset: record.offset.next(), metadata: String::new() };
                consumer.commit(vec![Commit { partition: batch.partition.clone(), committed }]).await.unwrap();
                received += 1;
            }
        }
        consumer
    }

    /// Tries to grow the topic. The drain has short times.
    async fn grow(&self, more: &[&str]) -> Result<usize, String> {
        let times = ["--quiet", "50ms", "--timeout", "300ms"];
        let arguments = arguments(&[more, &times[..]].concat());
        arguments.check().unwrap();
        let grown = grow(&self.runtime, &self.bus, &arguments).await;
        let partitions = self.bus.describe_topic(&self.topic).await.unwrap().offsets.len();
        assert_eq!(partitions, if grown.is_ok() { 4 } else { 2 });
        grown.map(|description| description.offsets.len()).map_err(|error| format!("{error:#}"))
    }
}

#[test]
fn growth_requires_a_drain_or_the_statement_that_keys_do_not_matter() {
    let error = |more: &[&str]| arguments(more).check().unwrap_err().to_string();
    assert!(error(&[]).contains("only within one number of partitions: stop the producers and use --drain"));
    assert!(error(&["--drain", "--quiet", "0s"]).contains("--quiet is 0s"));
    assert!(error(&["--drain", "--quiet", "10m"]).contains("--quiet 10m is not shorter than --timeout 10m"));
    arguments(&["--unkeyed"]).check().unwrap();
    assert_eq!(arguments(&["--drain"]).drain, Some(Vec::new()));
    assert_eq!(arguments(&["--drain", "a", "b"]).drain, Some(vec!["a".to_owned(), "b".to_owned()]));
    for invalid in [&["--drain", "--unkeyed"][..], &["--ignore", "a"]] {
        let words = ["grow", "orders", "--bus", "kafka://unused", "--partitions", "4"];
        assert!(Line::try_parse_from(words.iter().chain(invalid)).is_err(), "{invalid:?}");
    }
}

#[tokio::test]
async fn topic_grows_after_its_groups_have_no_lag() {
    let scene = Scene::new().await;
    let consumer = scene.join(1).await;
    let error = scene.grow(&["--drain"]).await.unwrap_err();
    assert!(error.contains("the topic orders is unchanged"), "{error}");
    assert!(error.contains("the group billing has a lag of 1"), "{error}");
    consumer.close().await.unwrap();
    // The committed offsets of a group remain after its members have left.
    assert!(scene.grow(&["--drain"]).await.unwrap_err().contains("billing"));
    scene.join(1).await.close().await.unwrap();
    assert_eq!(scene.grow(&["--drain"]).await, Ok(4));
}

#[tokio::test]
async fn drain_waits_for_named_groups_and_not_for_ignored_ones() {
    let scene = Scene::new().await;
    scene.join(1).await.close().await.unwrap();
    let error = scene.grow(&["--ignore", "billing", "--drain", "audit"]).await.unwrap_err();
    assert!(error.contains("the group audit has a lag of 2") && !error.contains("billing"), "{error}");
    assert_eq!(scene.grow(&["--drain", "--ignore", "billing"]).await, Ok(4));
}

#[tokio::test]
async fn drain_fails_while_a_producer_sends_records() {
    let scene = Scene::new().await;
    let sending = async {
        loop {
            scene.send("a").await;
            scene.runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    let grown = tokio::select! {
        grown = scene.grow(&["--drain"]) => grown,
        () = sending => unreachable!("the producer never stops"),
    };
    assert!(grown.unwrap_err().contains("no new record for 0 s"));
}

#[tokio::test]
async fn smaller_number_of_partitions_is_rejected_before_the_drain() {
    let scene = Scene::new().await;
    let arguments = Grow { partitions: 2, ..arguments(&["--drain"]) };
    let error = grow(&scene.runtime, &scene.bus, &arguments).await.unwrap_err().to_string();
    assert!(error.contains("already has 2 partitions"), "{error}");
    assert_eq!(scene.grow(&["--unkeyed"]).await, Ok(4));
}

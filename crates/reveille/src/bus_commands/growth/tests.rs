use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{
    Answer, Bus, BusError, Capabilities, Commit, Committed, Consumer, ConsumerOptions, Event, NewRecord, Producer,
    ProducerOptions, Reader, TopicOptions,
};
use clap::Parser;
use simulator::Simulation;

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

/// Bus in memory with states that it does not have by itself.
struct Altered {
    bus: MemoryBus,
    /// Number of records of an open transaction.
    open: AtomicU64,
    /// True if no offset after the committed offsets has a record.
    has_only_marks: AtomicBool,
    /// True if the groups are assigning partitions, and their members have none.
    is_rebalancing: AtomicBool,
    /// Number of descriptions of groups, and number of growths, after which a producer sends a record. 0 is never.
    sends_after: [AtomicU64; 2],
    /// Error in response to a growth, and true if the bus grows the topic before the error.
    growth: Option<(BusError, bool)>,
}

impl Altered {
    async fn send(&self, key: &str) {
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        let record = NewRecord::new(&TopicName::new("orders").unwrap(), key.to_owned(), "1");
        producer.send(vec![record]).await.remove(0).unwrap();
    }

    /// Counts an operation, and sends a record if its time has come.
    async fn count(&self, operation: usize) {
        if self.sends_after[operation].fetch_sub(1, Ordering::Relaxed) == 1 {
            self.send("a").await;
        }
    }
}

impl Bus for Altered {
    fn capabilities(&self) -> Capabilities {
        self.bus.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.bus.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.bus.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        let topic = topic.clone();
        Box::pin(async move {
            self.count(1).await;
            if self.growth.as_ref().is_none_or(|(_, grows)| *grows) {
                self.bus.grow_topic(&topic, partitions).await?;
            }
            self.growth.clone().map_or(Ok(()), |(error, _)| Err(error))
        })
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        self.bus.producer(options)
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        self.bus.consumer(options)
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.bus.reader(topic)
    }
}

impl Admin for Altered {
    fn topics(&self) -> Answer<'_, Vec<TopicName>> {
        self.bus.topics()
    }

    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>> {
        let topic = topic.clone();
        Box::pin(async move {
            let mut ends = self.bus.stored_ends(&topic).await?;
            ends[0].0 += self.open.load(Ordering::Relaxed);
            Ok(ends)
        })
    }

    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool> {
        let (topic, from) = (topic.clone(), from.to_vec());
        Box::pin(async move {
            Ok(!self.has_only_marks.load(Ordering::Relaxed) && self.bus.has_records(&topic, &from).await?)
        })
    }

    fn groups(&self) -> Answer<'_, Vec<String>> {
        self.bus.groups()
    }

    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription> {
        let group = group.to_owned();
        Box::pin(async move {
            let mut description = self.bus.describe_group(&group).await?;
            if self.is_rebalancing.load(Ordering::Relaxed) {
                description.is_rebalancing = true;
                description.members.iter_mut().for_each(|member| member.partitions.clear());
            }
            self.count(0).await;
            Ok(description)
        })
    }
}

/// Bus with a topic of two partitions and two records.
struct Scene {
    runtime: Runtime,
    bus: Altered,
    topic: TopicName,
}

impl Scene {
    async fn new(sim: &Simulation) -> Self {
        let (runtime, topic) = (sim.outside(), TopicName::new("orders").unwrap());
        let bus = Altered {
            bus: MemoryBus::new(runtime.clone(), MemoryOptions::default()),
            open: AtomicU64::new(0),
            has_only_marks: AtomicBool::new(false),
            is_rebalancing: AtomicBool::new(false),
            sends_after: Default::default(),
            growth: None,
        };
        bus.create_topic(&topic, TopicOptions::with_partitions(2)).await.unwrap();
        bus.send("a").await;
        bus.send("b").await;
        Scene { runtime, bus, topic }
    }

    /// Joins the group, and commits `count` records. Returns after the consumer owns both partitions.
    async fn join(&self, group: &str, count: usize) -> Arc<dyn Consumer> {
        let consumer = self.bus.consumer(ConsumerOptions::new(group, vec![self.topic.clone()])).await.unwrap();
        let (mut received, mut owned) = (0, 0);
        while received < count || owned < 2 {
            let batch = match consumer.next().await.unwrap() {
                Event::Records(batch) => batch,
                Event::Assigned(assigned) => {
                    owned += assigned.len();
                    continue;
                }
                event => panic!("unexpected {event:?}"),
            };
            for record in batch.records.iter().take(count - received) {
                let committed = Committed { offset: record.offset.next(), metadata: String::new() };
                consumer.commit(vec![Commit { partition: batch.partition.clone(), committed }]).await.unwrap();
                received += 1;
            }
        }
        consumer
    }

    /// Commits all records of a group without members.
    async fn finish(&self, group: &str) {
        self.join(group, 2).await.close().await.unwrap();
    }

    async fn partitions(&self) -> usize {
        self.bus.describe_topic(&self.topic).await.unwrap().offsets.len()
    }

    /// Tries to grow the topic to 4 partitions. The default is a quiet time of 10 s and a timeout of a minute. Returns the
    /// number of arrivals.
    async fn grow(&self, more: &[&str]) -> Result<Option<u64>, String> {
        let arguments = arguments(&[more, &["--timeout", "1m"]].concat());
        arguments.check().unwrap();
        match grow(&self.runtime, &self.bus, &arguments).await {
            Ok(grown) => {
                assert_eq!((grown.description.offsets.len(), self.partitions().await), (4, 4));
                Ok(grown.arrivals)
            }
            Err(error) => Err(format!("{error:#}")),
        }
    }

    /// Tries to grow the topic, which must stay unchanged. Returns the error.
    async fn fail(&self, more: &[&str]) -> String {
        let error = self.grow(more).await.unwrap_err();
        assert_eq!(self.partitions().await, 2);
        error
    }
}

fn simulate(test: impl AsyncFnOnce(Scene)) {
    let sim = Simulation::new(0);
    sim.run_until(async { test(Scene::new(&sim).await).await });
}

#[test]
fn growth_requires_a_drain_or_the_option_unkeyed() {
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

#[test]
fn topic_grows_after_its_groups_have_no_lag() {
    simulate(async |scene| {
        let consumer = scene.join("billing", 1).await;
        let error = scene.fail(&["--drain"]).await;
        assert!(error.contains("the topic orders is unchanged"), "{error}");
        assert!(error.contains("the group billing has a lag of 1"), "{error}");
        consumer.close().await.unwrap();
        // The committed offsets of a group remain after its members have left.
        assert!(scene.fail(&["--drain"]).await.contains("billing"));
        scene.join("billing", 1).await.close().await.unwrap();
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(0)));
    });
}

#[test]
fn drain_waits_for_a_group_that_has_committed_nothing() {
    simulate(async |scene| {
        let consumer = scene.join("billing", 0).await;
        assert!(scene.fail(&["--drain"]).await.contains("the group billing has a lag of 2"));
        consumer.close().await.unwrap();
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(0)));
    });
}

#[test]
fn drain_waits_for_named_groups_and_not_for_ignored_ones() {
    simulate(async |scene| {
        scene.join("billing", 1).await.close().await.unwrap();
        let error = scene.fail(&["--ignore", "billing", "--drain", "audit"]).await;
        assert!(error.contains("the group audit has a lag of 2") && !error.contains("billing"), "{error}");
        assert_eq!(scene.grow(&["--drain", "--ignore", "billing"]).await, Ok(Some(0)));
    });
}

#[test]
fn drain_fails_while_a_producer_sends_records() {
    simulate(async |scene| {
        let sending = async {
            loop {
                scene.runtime.sleep(Duration::from_secs(9)).await;
                scene.bus.send("a").await;
            }
        };
        let failing = scene.fail(&["--drain"]);
        let error = tokio::select! {
            error = failing => error,
            () = sending => unreachable!("the producer never stops"),
        };
        assert!(error.contains("it is not drained after 1m: no new record for"), "{error}");
    });
}

#[test]
fn drain_reads_the_ends_again_after_the_groups() {
    simulate(async |scene| {
        scene.finish("billing").await;
        // One check in each second: the last check before the growth is the eleventh.
        scene.bus.sends_after[0].store(11, Ordering::Relaxed);
        assert!(scene.fail(&["--drain"]).await.contains("the group billing has a lag of 1"));
        assert_eq!(scene.bus.stored_ends(&scene.topic).await.unwrap().iter().map(|end| end.0).sum::<u64>(), 3);
    });
}

#[test]
fn drain_waits_for_the_end_of_a_transaction() {
    simulate(async |scene| {
        scene.finish("billing").await;
        scene.bus.open.store(5, Ordering::Relaxed);
        assert!(scene.fail(&["--drain"]).await.contains("5 records of an open transaction"));
        scene.bus.open.store(0, Ordering::Relaxed);
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(0)));
    });
}

#[test]
fn drain_ignores_offsets_without_a_record() {
    simulate(async |scene| {
        scene.join("billing", 1).await.close().await.unwrap();
        assert!(scene.fail(&["--drain"]).await.contains("the group billing has a lag of 1"));
        scene.bus.has_only_marks.store(true, Ordering::Relaxed);
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(0)));
    });
}

#[test]
fn drain_waits_while_a_group_is_assigning_partitions() {
    simulate(async |scene| {
        let consumer = scene.join("billing", 0).await;
        scene.bus.is_rebalancing.store(true, Ordering::Relaxed);
        assert!(scene.fail(&["--drain"]).await.contains("the group billing is assigning partitions"));
        assert_eq!(scene.grow(&["--drain", "--ignore", "billing"]).await, Ok(Some(0)));
        consumer.close().await.unwrap();
    });
}

#[test]
fn records_that_arrive_during_the_growth_are_counted() {
    simulate(async |scene| {
        scene.bus.sends_after[1].store(1, Ordering::Relaxed);
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(1)));
    });
    simulate(async |scene| assert_eq!(scene.grow(&["--unkeyed"]).await, Ok(None)));
}

#[test]
fn failed_growth_states_the_number_of_partitions() {
    let lost = || BusError::Disconnected("lost".to_owned());
    simulate(async |mut scene| {
        scene.bus.growth = Some((lost(), true));
        assert_eq!(scene.grow(&["--drain"]).await, Ok(Some(0)));
    });
    for error in [lost(), BusError::Invalid("too many".to_owned())] {
        simulate(async |mut scene| {
            scene.bus.growth = Some((error, false));
            let error = scene.fail(&["--drain"]).await;
            assert!(error.starts_with("the topic orders has 2 partitions now: "), "{error}");
        });
    }
}

#[test]
fn control_characters_in_the_name_of_a_group_are_escaped() {
    simulate(async |scene| {
        scene.join("\u{1b}[2Jgroup\r\n", 1).await.close().await.unwrap();
        let error = scene.fail(&["--drain"]).await;
        assert!(error.contains(r"the group \u{1b}[2Jgroup\r\n has a lag of 1"), "{error}");
        assert!(!error.contains(char::is_control), "{error}");
    });
}

#[test]
fn smaller_number_of_partitions_is_rejected_before_the_drain() {
    simulate(async |scene| {
        let arguments = Grow { partitions: 2, ..arguments(&["--drain"]) };
        let error = grow(&scene.runtime, &scene.bus, &arguments).await.unwrap_err().to_string();
        assert!(error.contains("already has 2 partitions"), "{error}");
        assert_eq!(scene.grow(&["--unkeyed"]).await, Ok(None));
    });
}

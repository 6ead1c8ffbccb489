//! Topics of the trial: their creation, and the load that sends records to them.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Context;
use bus::{Bus as _, NewRecord, Producer, ProducerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use bytes::Bytes;
use domain::Timestamp;
use runtime::{Runtime, TaskSet};
use tokio::sync::oneshot;

use super::ConsumeArguments;
use super::clock::WallClock;

/// Number of records in a batch of [`Topics::filled`].
const BATCH: u64 = 1_000;
/// Largest number of batches without an outcome.
const BATCHES: usize = 16;

pub(super) struct Topics {
    runtime: Runtime,
    bus: KafkaBus,
    records: Records,
    partitions: u32,
    /// Start of the names of all topics.
    prefix: String,
    created: u32,
}

/// Form of the records.
#[derive(Clone)]
struct Records {
    keys: u64,
    value: Bytes,
}

impl Records {
    fn record(&self, topic: &TopicName, number: u64) -> NewRecord {
        NewRecord::new(topic, format!("key-{}", number % self.keys), self.value.clone())
    }
}

impl Topics {
    /// # Errors
    /// Returns an error if no broker answers.
    pub(super) async fn open(runtime: &Runtime, arguments: &ConsumeArguments) -> anyhow::Result<Self> {
        let url = KafkaUrl::parse(&format!("kafka://{}", arguments.brokers)).context("--brokers")?;
        let bus = KafkaBus::open(runtime.clone(), url).await.context("--brokers")?;
        let value = vec![b'x'; usize::try_from(arguments.bytes).unwrap_or(0)].into();
        Ok(Topics {
            runtime: runtime.clone(),
            bus,
            records: Records { keys: arguments.keys, value },
            partitions: arguments.partitions,
            prefix: format!("reveille-bench-{:016x}", runtime.random()),
            created: 0,
        })
    }

    /// Creates an empty topic.
    ///
    /// # Errors
    /// Returns an error if the brokers reject the topic.
    pub(super) async fn create(&mut self) -> anyhow::Result<TopicName> {
        self.created += 1;
        let topic = TopicName::new(&format!("{}-{}", self.prefix, self.created))?;
        self.bus.create_topic(&topic, TopicOptions::with_partitions(self.partitions)).await?;
        Ok(topic)
    }

    /// Creates a topic with `count` records.
    ///
    /// # Errors
    /// Returns an error if the brokers reject the topic or a record.
    pub(super) async fn filled(&mut self, count: u64) -> anyhow::Result<TopicName> {
        let topic = self.create().await?;
        let producer = self.bus.producer(ProducerOptions::default()).await?;
        let mut sending = VecDeque::new();
        let mut next = 0;
        while next < count {
            let end = (next + BATCH).min(count);
            sending.push_back(producer.send((next..end).map(|number| self.records.record(&topic, number)).collect()));
            next = end;
            if sending.len() == BATCHES {
                check(Vec::from_iter(sending.pop_front())).await?;
            }
        }
        check(Vec::from(sending)).await?;
        producer.close().await?;
        Ok(topic)
    }

    /// Sends one record to each partition.
    ///
    /// # Errors
    /// Returns an error if the brokers reject a record.
    pub(super) async fn send_first(&self, topic: &TopicName) -> anyhow::Result<()> {
        let producer = self.bus.producer(ProducerOptions::default()).await?;
        let record = |index| NewRecord { partition: Some(index), ..self.records.record(topic, u64::from(index)) };
        check(vec![producer.send((0..self.partitions).map(record).collect())]).await?;
        Ok(producer.close().await?)
    }

    /// Sends `count` records at a fixed rate. The time of each record is the whole millisecond at which it is due, even if
    /// the bench sends it later.
    ///
    /// # Errors
    /// Returns an error if the brokers reject a record.
    pub(super) async fn send_evenly(&self, topic: &TopicName, per_second: u64, count: u64) -> anyhow::Result<()> {
        let producer = self.bus.producer(ProducerOptions::default()).await?;
        let (clock, records, topic) = (WallClock::new(&self.runtime), self.records.clone(), topic.clone());
        let (done, sent) = oneshot::channel();
        let tasks = TaskSet::new(&self.runtime);
        let pacer = producer.clone();
        tasks.spawn_thread("bench-pacer", async move {
            let outcome = pace(&clock, &*pacer, |number| records.record(&topic, number), per_second, count).await;
            drop(done.send(outcome));
        });
        sent.await.context("the thread that sends records has ended")??;
        Ok(producer.close().await?)
    }
}

#[expect(clippy::disallowed_methods, reason = "a dedicated thread can sleep for less than 1 ms; a timer cannot")]
async fn pace(
    clock: &WallClock,
    producer: &dyn Producer,
    record: impl Fn(u64) -> NewRecord,
    per_second: u64,
    count: u64,
) -> anyhow::Result<()> {
    let start = clock.soon();
    let due = |number: u64| start + Duration::from_millis(number * 1_000 / per_second);
    let mut sending = Vec::new();
    let mut next = 0;
    while next < count {
        let at: Timestamp = due(next);
        std::thread::sleep(clock.until(at));
        let first = next;
        while next < count && due(next) == at {
            next += 1;
        }
        let records = (first..next).map(|number| NewRecord { timestamp: Some(at), ..record(number) });
        sending.push(producer.send(records.collect()));
    }
    check(sending).await
}

/// Waits for the outcomes of batches.
async fn check(sending: Vec<impl Future<Output = Vec<Result<bus::Position, bus::BusError>>>>) -> anyhow::Result<()> {
    for batch in sending {
        for outcome in batch.await {
            outcome.context("the brokers did not store a record")?;
        }
    }
    Ok(())
}

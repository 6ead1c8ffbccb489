//! Topics of a trial on Kafka.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use bus::{Bus as _, BusError, Offset, Record, TopicDescription, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use runtime::Runtime;

use super::{ATTACK_TOPIC, BusUrl, TOPIC_START};

/// Longest wait for the next records of a topic.
const READ_MAX: Duration = Duration::from_secs(60);
/// Wait before the repetition of a request.
const PERIOD: Duration = Duration::from_millis(50);
/// Longest wait until the brokers know a new topic.
const CREATE_MAX: Duration = Duration::from_secs(30);

/// Number of partitions of the topic of the attack `bus`.
const ATTACK_PARTITIONS: u32 = 8;

pub(super) struct Topics {
    runtime: Runtime,
    bus: KafkaBus,
    pub(super) servers: String,
    partitions: u32,
}

impl Topics {
    /// # Errors
    /// Returns an error if no broker answers.
    pub(super) async fn open(runtime: &Runtime, servers: &str, partitions: u32) -> anyhow::Result<Self> {
        let url = KafkaUrl::parse(&format!("kafka://{servers}")).context("--bus")?;
        let bus = KafkaBus::open(runtime.clone(), url).await.context("--bus")?;
        Ok(Topics { runtime: runtime.clone(), bus, servers: servers.to_owned(), partitions })
    }

    /// Creates an empty topic with a new name. The broker sets the time of each record when it appends the record.
    ///
    /// # Errors
    /// Returns an error if the brokers reject the topic.
    pub(super) async fn create(&self) -> anyhow::Result<TopicName> {
        let topic = TopicName::new(&format!("{TOPIC_START}{:016x}", self.runtime.random()))?;
        let client: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.servers).create()?;
        let partitions = i32::try_from(self.partitions).unwrap_or(i32::MAX);
        let new = NewTopic::new(topic.as_str(), partitions, TopicReplication::Fixed(-1));
        let new = new.set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new().request_timeout(Some(CREATE_MAX)).operation_timeout(Some(CREATE_MAX));
        for created in client.create_topics([&new], &options).await? {
            created.map_err(|(name, code)| anyhow::anyhow!("the broker rejected the topic {name}: {code}"))?;
        }
        let deadline = self.runtime.monotonic() + CREATE_MAX;
        loop {
            match self.bus.describe_topic(&topic).await {
                Ok(description) if description.offsets.len() == self.partitions as usize => return Ok(topic),
                Err(error) if self.runtime.monotonic() >= deadline => return Err(error.into()),
                Ok(_) | Err(_) => self.runtime.sleep(PERIOD).await,
            }
        }
    }

    /// Returns the number of records of a topic.
    ///
    /// # Errors
    /// Returns an error if no broker answers for a long time.
    pub(super) async fn count(&self, topic: &TopicName) -> anyhow::Result<u64> {
        let TopicDescription { offsets, .. } = self.describe(topic).await?;
        Ok(offsets.iter().map(|(first, end)| end.0 - first.0).sum())
    }

    /// Describes a topic. Repeats the request while a broker that has started again is not ready.
    async fn describe(&self, topic: &TopicName) -> anyhow::Result<TopicDescription> {
        let deadline = self.runtime.monotonic() + READ_MAX;
        loop {
            match self.bus.describe_topic(topic).await {
                Ok(description) => return Ok(description),
                Err(error) if !error.is_retryable() || self.runtime.monotonic() >= deadline => return Err(error.into()),
                Err(_) => self.runtime.sleep(PERIOD).await,
            }
        }
    }

    /// Calls `take` with each record that the topic has now.
    ///
    /// # Errors
    /// Returns an error if the brokers do not send the records in time.
    pub(super) async fn read(&self, topic: &TopicName, mut take: impl FnMut(Record)) -> anyhow::Result<()> {
        let TopicDescription { offsets, .. } = self.describe(topic).await?;
        let ends = (0..).zip(offsets).filter(|(_, (first, end))| first < end).map(|(index, (_, end))| (index, end));
        let mut missing: BTreeMap<u32, Offset> = ends.collect();
        let reader = self.bus.reader(topic).await?;
        while !missing.is_empty() {
            let batch = self.runtime.timeout(READ_MAX, reader.next()).await;
            let batch = batch.context("the brokers did not send all records of the topic in time")??;
            let Some(end) = missing.get(&batch.partition.index).copied() else { continue };
            for record in batch.records.into_iter().filter(|record| record.offset < end) {
                if record.offset.next() == end {
                    missing.remove(&batch.partition.index);
                }
                take(record);
            }
        }
        Ok(())
    }
}

/// Creates the topic of the attack `bus` if it does not exist.
///
/// # Errors
/// Returns an error if the broker rejects the topic.
pub(super) async fn create_attack_topic(runtime: &Runtime, url: &BusUrl) -> anyhow::Result<()> {
    let BusUrl::Kafka { servers } = url else { anyhow::bail!("this trial needs --bus kafka://HOST:PORT") };
    let topics = Topics::open(runtime, servers, ATTACK_PARTITIONS).await?;
    let created =
        topics.bus.create_topic(&TopicName::new(ATTACK_TOPIC)?, TopicOptions::with_partitions(ATTACK_PARTITIONS));
    match created.await {
        Ok(()) | Err(BusError::TopicExists(_)) => Ok(()),
        Err(error) => Err(error).context("cannot create the topic of the attack"),
    }
}

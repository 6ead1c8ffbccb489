//! Engine of the port `bus` for Apache Kafka, on librdkafka.
//!
//! Topics, records and groups are Kafka's own, so clients in other languages can share them. The key of a record
//! determines the same partition here and in Kafka's Java client (murmur2).
//!
//! The engine uses the classic protocol of groups. librdkafka detects the end of a session by the time of the last
//! *response*, which may be later than the time at which the broker ends the session. The engine therefore has a
//! deadline of its own: the start of the last accepted commit, plus the session timeout. The broker starts the session
//! again when it accepts a commit. docs/decisions/0230-prove-the-membership-by-commits.md gives the reasons, and
//! docs/decisions/0231-use-librdkafka-and-openssl-for-kafka.md those for the library.

#![warn(missing_docs)]

mod admin;
mod blocking;
mod consumer;
mod context;
mod error;
mod messages;
mod options;
mod producer;
mod reader;
mod records;

use std::sync::Arc;
use std::time::Duration;

use bus::{
    Answer, Bus, BusError, Capabilities, Consumer, ConsumerOptions, Offset, Producer, ProducerOptions, Reader,
    TopicDescription, TopicName, TopicOptions,
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication, TopicResult};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as RdOffset, TopicPartitionList};
use runtime::{Runtime, TaskSet};
use tokio::sync::Notify;

use crate::admin::GroupClient;
use crate::blocking::blocking;
use crate::consumer::KafkaConsumer;
use crate::context::Context;
use crate::error::{bus_error, bus_error_of_code};
pub use crate::options::{Assignor, KafkaUrl, KafkaUrlError};
use crate::producer::KafkaProducer;
use crate::reader::KafkaReader;

/// Longest time of a request about topics.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Time after which [`KafkaBus::open`] checks whether all connections have failed.
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// Wait before a repetition of a call that fails for a short time.
const RETRY_WAIT: Duration = Duration::from_millis(50);
/// Number of events that a task takes from librdkafka at once.
const EVENTS_MAX: usize = 8;
/// Largest number of partitions of a topic.
const PARTITIONS_MAX: u32 = 10_000;
/// Kafka's default for the largest size of a batch is 1,048,588 bytes. The rest is for the fields of a batch and a record
/// that are not part of [`bus::Record::bytes`].
const RECORD_BYTES_MAX: usize = 1_000_000;
/// Kafka's default for `offset.metadata.max.bytes`.
const METADATA_BYTES_MAX: usize = 4_096;

/// Kafka cluster that a process has opened.
pub struct KafkaBus {
    runtime: Runtime,
    url: KafkaUrl,
    client: Arc<BaseConsumer<Context>>,
    group_client: GroupClient,
    _task: TaskSet,
}

impl KafkaBus {
    /// Opens a cluster. Returns after a broker has answered. Does not wait for a broker that is away.
    ///
    /// # Errors
    /// Returns [`BusError::Unauthorized`] if the brokers reject the user, [`BusError::Invalid`] if librdkafka rejects the
    /// options, and [`BusError::Disconnected`] with the cause if no broker answers within 10 s, or if all connections fail.
    pub async fn open(runtime: Runtime, url: KafkaUrl) -> Result<Self, BusError> {
        let bus = KafkaBus::new(runtime, url)?;
        let deadline = bus.runtime.monotonic() + REQUEST_MAX;
        loop {
            let client = bus.client.clone();
            let answered = blocking(move || client.fetch_metadata(None, CONNECT_MAX).map(drop)).await;
            let Err(error) = answered else { return Ok(bus) };
            let error = explained(&bus.client, &error);
            if bus.client.context().has_failed() || bus.runtime.monotonic() >= deadline {
                // Later, the error of a connection may be old, so it does not decide about an error.
                return Err(bus.client.context().rejection().unwrap_or(error));
            }
        }
    }

    /// Opens a cluster without waiting for a broker, for a process that must start while the brokers are away.
    ///
    /// # Errors
    /// Returns [`BusError::Invalid`] if librdkafka rejects the options.
    pub fn new(runtime: Runtime, url: KafkaUrl) -> Result<Self, BusError> {
        let config = url.config()?;
        let mut client: BaseConsumer<Context> = create(&config)?;
        let woken = Arc::new(Notify::new());
        let waker = woken.clone();
        client.set_nonempty_callback(move || waker.notify_one());
        let (client, task) = (Arc::new(client), TaskSet::new(&runtime));
        let polled = client.clone();
        task.spawn("kafka client", async move {
            loop {
                woken.notified().await;
                poll(&polled);
            }
        });
        Ok(KafkaBus { runtime, url, client, group_client: GroupClient::default(), _task: task })
    }

    /// Opens a client for one change of a topic. It would keep the log messages of librdkafka in memory, because it has no
    /// function that takes them.
    fn admin(&self) -> Result<AdminClient<Context>, BusError> {
        create(&self.url.config()?)
    }

    async fn edges(&self, partitions: &TopicPartitionList, edge: RdOffset) -> Result<Vec<Offset>, BusError> {
        let found = edges(&self.runtime, &self.client, partitions, edge).await;
        let found = found.map_err(|error| explained(&self.client, &error))?;
        Ok(found.elements().iter().map(|element| offset_of(element.offset()).unwrap_or_default()).collect())
    }

    async fn shape(&self, topic: &TopicName) -> Result<Shape, BusError> {
        shape(self.client.clone(), topic.clone(), REQUEST_MAX).await
    }

    /// Waits until a broker knows the new partitions of a topic. The controller responds earlier.
    async fn wait_for_partitions(&self, topic: &TopicName, partitions: u32) -> Result<(), BusError> {
        let deadline = self.runtime.monotonic() + REQUEST_MAX;
        loop {
            match self.shape(topic).await {
                Ok(shape) if shape.partitions >= partitions => return Ok(()),
                Ok(_) | Err(BusError::UnknownTopic(_) | BusError::Disconnected(_)) => {}
                Err(error) => return Err(error),
            }
            if self.runtime.monotonic() >= deadline {
                return Err(BusError::Disconnected("no broker has described the new partitions".to_owned()));
            }
            self.runtime.sleep(RETRY_WAIT).await;
        }
    }
}

/// Numbers of partitions and replicas of a topic.
struct Shape {
    partitions: u32,
    replicas: u16,
}

fn create<C: rdkafka::ClientContext + Default, T: rdkafka::config::FromClientConfigAndContext<C>>(
    config: &ClientConfig,
) -> Result<T, BusError> {
    config.create_with_context(C::default()).map_err(|error| bus_error(&error))
}

/// Writes the log messages and the errors that wait in librdkafka's queue.
fn poll(client: &BaseConsumer<Context>) {
    for _ in 0..EVENTS_MAX {
        // A client without a group receives no records.
        drop(client.poll(Duration::ZERO));
    }
}

/// Translates an error of a request, and adds its cause.
fn explained(client: &BaseConsumer<Context>, error: &KafkaError) -> BusError {
    poll(client);
    client.context().explain(bus_error(error))
}

/// Describes a topic, within `limit`.
async fn shape(client: Arc<BaseConsumer<Context>>, topic: TopicName, limit: Duration) -> Result<Shape, BusError> {
    blocking(move || {
        let metadata = client.fetch_metadata(Some(topic.as_str()), limit.max(Duration::from_millis(1)));
        let metadata = metadata.map_err(|error| explained(&client, &error))?;
        let unknown = || BusError::UnknownTopic(topic.clone());
        let found = metadata.topics().iter().find(|found| found.name() == topic.as_str()).ok_or_else(unknown)?;
        if let Some(error) = found.error() {
            return Err(bus_error_of_code(error.into(), Some(&topic)));
        }
        let partitions = u32::try_from(found.partitions().len()).map_err(|_| unknown())?;
        let replicas = found.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or(0);
        if partitions == 0 {
            return Err(unknown());
        }
        Ok(Shape { partitions, replicas: u16::try_from(replicas).unwrap_or(u16::MAX) })
    })
    .await
}

/// Returns the offset of the first record of each partition, or the offset after its last record. Repeats the request
/// while brokers change their roles, for example after the creation of a topic.
async fn edges<C: ConsumerContext + 'static>(
    runtime: &Runtime,
    client: &Arc<BaseConsumer<C>>,
    partitions: &TopicPartitionList,
    edge: RdOffset,
) -> Result<TopicPartitionList, KafkaError> {
    let deadline = runtime.monotonic() + REQUEST_MAX;
    loop {
        let (client, mut wanted) = (client.clone(), partitions.clone());
        let found = blocking(move || {
            wanted.set_all_offsets(edge)?;
            let found = client.offsets_for_times(wanted, REQUEST_MAX)?;
            found.elements().iter().try_for_each(|element| element.error())?;
            Ok::<_, KafkaError>(found)
        });
        match found.await {
            Err(error) if error.rdkafka_error_code().is_some_and(is_transition) && runtime.monotonic() < deadline => {
                runtime.sleep(RETRY_WAIT).await;
            }
            found => return found,
        }
    }
}

/// Returns true if the error says that another broker leads the partition, or that the partition or its leader is not known
/// yet.
fn is_transition(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::OffsetNotAvailable
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
    )
}

/// Returns a list of all partitions of a topic.
fn partitions_of(topic: &TopicName, partitions: u32) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for index in 0..partitions {
        list.add_partition(topic.as_str(), kafka_index(index));
    }
    list
}

/// Converts an offset that Kafka returned; `None` if it is no position of a record.
fn offset_of(offset: RdOffset) -> Option<Offset> {
    match offset {
        RdOffset::Offset(offset) => u64::try_from(offset).ok().map(Offset),
        _ => None,
    }
}

fn kafka_offset(offset: Offset) -> RdOffset {
    RdOffset::Offset(i64::try_from(offset.0).unwrap_or(i64::MAX))
}

fn kafka_index(index: u32) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn check_partitions(partitions: u32) -> Result<usize, BusError> {
    if (1..=PARTITIONS_MAX).contains(&partitions) {
        return Ok(partitions as usize);
    }
    Err(BusError::Invalid(format!("the number of partitions is {partitions}; it must be from 1 to {PARTITIONS_MAX}")))
}

/// Returns the outcome of a request about one topic.
fn outcome(results: Result<Vec<TopicResult>, KafkaError>, topic: &TopicName) -> Result<(), BusError> {
    match results.map_err(|error| bus_error(&error))?.into_iter().next() {
        Some(Ok(_)) => Ok(()),
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Err(BusError::TopicExists(topic.clone())),
        Some(Err((_, code))) => Err(bus_error_of_code(code, Some(topic))),
        None => Err(BusError::Disconnected("the response names no topic".to_owned())),
    }
}

impl Bus for KafkaBus {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            record_bytes_max: RECORD_BYTES_MAX,
            metadata_bytes_max: METADATA_BYTES_MAX,
            compacts_topics: true,
            // librdkafka stops its requests for records until the consumer answers the rebalance.
            delivers_during_revocation: false,
        }
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        let topic = topic.clone();
        Box::pin(async move {
            let partitions = i32::try_from(check_partitions(options.partitions)?).unwrap_or(i32::MAX);
            // Kafka selects its default for -1.
            let replicas = TopicReplication::Fixed(options.replicas.map_or(-1, i32::from));
            let mut new = NewTopic::new(topic.as_str(), partitions, replicas);
            if options.is_compacted {
                new = new.set("cleanup.policy", "compact");
            }
            match outcome(self.admin()?.create_topics([&new], &admin_options()).await, &topic) {
                Ok(()) => self.wait_for_partitions(&topic, options.partitions).await,
                // Another process may have created the topic at this moment.
                Err(BusError::TopicExists(topic)) => {
                    self.wait_for_partitions(&topic, 1).await.and(Err(BusError::TopicExists(topic)))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        let topic = topic.clone();
        Box::pin(async move {
            let Shape { partitions, replicas } = self.shape(&topic).await?;
            let list = partitions_of(&topic, partitions);
            let first = self.edges(&list, RdOffset::Beginning).await?;
            let end = self.edges(&list, RdOffset::End).await?;
            Ok(TopicDescription { replicas, offsets: first.into_iter().zip(end).collect() })
        })
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        let topic = topic.clone();
        Box::pin(async move {
            let now = self.shape(&topic).await?.partitions;
            if partitions <= now {
                let reason = format!("the topic already has {now} partitions; name a larger number");
                return Err(BusError::Invalid(reason));
            }
            let new = NewPartitions::new(topic.as_str(), check_partitions(partitions)?);
            outcome(self.admin()?.create_partitions([&new], &admin_options()).await, &topic)?;
            self.wait_for_partitions(&topic, partitions).await
        })
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        Box::pin(async move {
            let producer = KafkaProducer::open(&self.runtime, &self.url, self.client.clone(), options)?;
            Ok(Arc::new(producer) as Arc<dyn Producer>)
        })
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        Box::pin(async move {
            for topic in &options.topics {
                self.shape(topic).await?;
            }
            let consumer = KafkaConsumer::join(&self.runtime, &self.url, options)?;
            Ok(Arc::new(consumer) as Arc<dyn Consumer>)
        })
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        let topic = topic.clone();
        Box::pin(async move {
            let partitions = self.shape(&topic).await?.partitions;
            Ok(Arc::new(KafkaReader::open(&self.url, &topic, partitions)?) as Arc<dyn Reader>)
        })
    }
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_MAX)).operation_timeout(Some(REQUEST_MAX))
}

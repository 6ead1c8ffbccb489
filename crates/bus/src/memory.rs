//! Engine in memory. It is the reference model of the port, and tests use it in place of a real engine. The records are
//! not durable. They end with the last handle.
//!
//! [`MemoryBus::reopen`] returns another handle of the same bus. Each handle models one process with its own connection.
//! The engine reads only the clocks of its first handle's `Runtime`. The delays of a handle's requests use the timers
//! of this handle's `Runtime`.
//!
//! Invariants: a request takes effect once and in one step, or not at all. The same `Runtime`s and the same calls give
//! the same results.

mod broker;
mod consumer;
mod group;
mod producer;
mod reader;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use instants::{Monotonic, Timestamp};
use runtime::{MemoryLink, Runtime};
use tokio::sync::Notify;

use self::broker::Broker;
use self::consumer::MemoryConsumer;
use self::producer::MemoryProducer;
use self::reader::MemoryReader;
use crate::topic::{Offset, Partition, TopicDescription, TopicName, TopicOptions};
use crate::{
    Admin, Answer, Bus, BusError, Capabilities, Consumer, ConsumerOptions, GroupDescription, Producer, ProducerOptions,
    Reader,
};

/// Wait before the engine repeats a request that failed.
const RETRY_WAIT: Duration = Duration::from_millis(20);

/// Options for the behaviour of the engine in memory. With any options, the engine conforms to the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// Limits of the engine. The default is 1 MiB for a record and 4,096 bytes for the metadata of a commit. The engine
    /// keeps all records of a compacted topic.
    pub capabilities: Capabilities,
    /// Range of the random delay of a request before its effect, and of a second delay after its effect. By default
    /// requests have no delay.
    pub latency: Option<RangeInclusive<Duration>>,
    /// Number N that sets the rate of failing requests. On average, one of N requests fails, before or after its
    /// effect. By default no request fails.
    pub fail_one_in: Option<u32>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        let capabilities = Capabilities {
            record_bytes_max: 1 << 20,
            metadata_bytes_max: 4_096,
            compacts_topics: true,
            delivers_during_revocation: true,
        };
        MemoryOptions { capabilities, latency: None, fail_one_in: None }
    }
}

/// Bus in the memory of this process.
pub struct MemoryBus {
    connection: Connection,
    options: MemoryOptions,
}

struct Engine {
    clock: Runtime,
    broker: Mutex<Broker>,
    /// Wakes the consumers after a producer has stored records.
    appended: Notify,
    /// Wakes the tasks that send heartbeats after a change of a group.
    rebalanced: Notify,
}

/// Connection of one process to the engine.
#[derive(Clone)]
struct Connection {
    engine: Arc<Engine>,
    link: Arc<MemoryLink>,
}

impl MemoryBus {
    /// Creates a bus without topics that uses the clocks of `runtime`.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let broker = Mutex::new(Broker::new(options.capabilities.clone()));
        let engine = Engine { clock: runtime.clone(), broker, appended: Notify::new(), rebalanced: Notify::new() };
        MemoryBus { connection: Connection::new(Arc::new(engine), runtime, &options), options }
    }

    /// Opens the same bus for another process.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        let connection = Connection::new(self.connection.engine.clone(), runtime, &self.options);
        MemoryBus { connection, options: self.options.clone() }
    }

    /// Cuts or restores the connection of this handle. While the connection is cut, requests get no response, and
    /// requests in progress may or may not take effect.
    pub fn cut(&self, is_cut: bool) {
        self.connection.link.cut(is_cut);
    }

    /// Blocks all responses to this handle. Requests take effect but get no response until [`MemoryBus::cut`] restores
    /// the connection.
    pub fn cut_answers(&self) {
        self.connection.link.cut_answers();
    }
}

impl Connection {
    fn new(engine: Arc<Engine>, runtime: Runtime, options: &MemoryOptions) -> Self {
        let link = MemoryLink::new(runtime, options.latency.clone(), options.fail_one_in);
        Connection { engine, link: Arc::new(link) }
    }

    fn runtime(&self) -> &Runtime {
        self.link.runtime()
    }

    /// Sends a request, which takes effect in one step. Waits for the response without a limit.
    async fn call<T>(&self, effect: impl FnOnce(&mut Broker, Moment) -> Result<T, BusError>) -> Result<T, BusError> {
        let response = self.link.call(|| {
            let now = Moment { monotonic: self.engine.clock.monotonic(), wall: self.engine.clock.now() };
            let mut broker = self.engine.broker.lock().expect("no code panics while it holds this mutex");
            let changes = broker.group_changes();
            let result = effect(&mut broker, now);
            if broker.group_changes() != changes {
                self.engine.rebalanced.notify_waiters();
            }
            result
        });
        response.await.map_err(BusError::Disconnected)?
    }
}

/// Time of a step, by the clocks of the engine.
#[derive(Clone, Copy)]
struct Moment {
    monotonic: Monotonic,
    wall: Timestamp,
}

impl Bus for MemoryBus {
    fn capabilities(&self) -> Capabilities {
        self.options.capabilities.clone()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        let topic = topic.clone();
        Box::pin(async move { self.connection.call(|broker, _| broker.create_topic(&topic, &options)).await })
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        let topic = topic.clone();
        Box::pin(async move { self.connection.call(|broker, _| broker.describe_topic(&topic)).await })
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        let topic = topic.clone();
        Box::pin(async move { self.connection.call(|broker, _| broker.grow_topic(&topic, partitions)).await })
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        Box::pin(async move {
            let id = self.connection.call(|broker, _| Ok(broker.open_producer())).await?;
            Ok(Arc::new(MemoryProducer::new(self.connection.clone(), id, options)) as Arc<dyn Producer>)
        })
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        Box::pin(async move {
            let consumer = MemoryConsumer::join(self.connection.clone(), options).await?;
            Ok(Arc::new(consumer) as Arc<dyn Consumer>)
        })
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        let topic = topic.clone();
        Box::pin(async move {
            let description = self.connection.call(|broker, _| broker.describe_topic(&topic)).await?;
            let positions = (0..).zip(description.offsets);
            let positions: BTreeMap<Partition, Offset> =
                positions.map(|(index, (first, _))| (Partition { topic: topic.clone(), index }, first)).collect();
            Ok(Arc::new(MemoryReader::new(self.connection.clone(), positions)) as Arc<dyn Reader>)
        })
    }
}

impl Admin for MemoryBus {
    fn topics(&self) -> Answer<'_, Vec<TopicName>> {
        Box::pin(async { self.connection.call(|broker, _| Ok(broker.topics())).await })
    }

    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>> {
        let topic = topic.clone();
        Box::pin(async move { self.connection.call(|broker, _| broker.ends(&topic)).await })
    }

    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool> {
        let (topic, from) = (topic.clone(), from.to_vec());
        Box::pin(async move {
            let ends = self.connection.call(|broker, _| broker.ends(&topic)).await?;
            // Each offset before the end has a record.
            Ok(from.iter().zip(ends).any(|(from, end)| *from < end))
        })
    }

    fn groups(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { self.connection.call(|broker, now| Ok(broker.groups(now.monotonic))).await })
    }

    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription> {
        let group = group.to_owned();
        Box::pin(
            async move { self.connection.call(|broker, now| Ok(broker.describe_group(&group, now.monotonic))).await },
        )
    }
}

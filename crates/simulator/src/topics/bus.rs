//! Bus of a member. It checks the records that the transport gives to a producer, and adds deliberate bugs.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::MemoryBus;
use bus::{
    Answer, Bus, BusError, Capabilities, Consumer, ConsumerOptions, NewRecord, Offset, Partition, Position, Producer,
    ProducerOptions, Reader, TopicDescription, TopicName, TopicOptions,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use super::{Topics, key_of};
use crate::single_node::Mutant;

/// Time after which a producer with a deliberate bug reports a record as stored.
const IMPATIENCE: Duration = Duration::from_millis(150);
/// Delivery timeout of a producer with a deliberate bug.
const ENDLESS: Duration = Duration::from_secs(60);

pub(super) struct WatchedBus {
    pub(super) topics: Topics,
    pub(super) runtime: Runtime,
    pub(super) inner: Arc<MemoryBus>,
}

impl Bus for WatchedBus {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.inner.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.inner.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.inner.grow_topic(topic, partitions)
    }

    fn producer(&self, mut options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        if self.topics.mutant == Some(Mutant::SendsAfterTheTimeout) {
            options.delivery_timeout = ENDLESS;
        }
        async move {
            let opens_slowly = self.topics.state().opens_slowly;
            if opens_slowly {
                let (takes, fails) = self.topics.sim.draw(|random| (random.below(2_000), random.below(3) > 0));
                self.runtime.sleep(Duration::from_millis(takes)).await;
                if fails {
                    return Err(BusError::Disconnected("the bus opens no producer now".to_owned()));
                }
            }
            let inner = self.inner.producer(options).await?;
            let (topics, runtime) = (self.topics.clone(), self.runtime.clone());
            Ok(Arc::new(WatchedProducer { topics, runtime, inner }) as Arc<dyn Producer>)
        }
        .boxed()
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        self.inner.consumer(options)
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.inner.reader(topic)
    }
}

struct WatchedProducer {
    topics: Topics,
    runtime: Runtime,
    inner: Arc<dyn Producer>,
}

impl WatchedProducer {
    /// Checks that the deadline of the record's attempt has not passed.
    fn check(&self, record: &NewRecord) {
        let now = self.runtime.monotonic();
        let key = key_of(&record.headers);
        let is_late = {
            let state = self.topics.state();
            let attempts = key.as_ref().and_then(|key| state.attempts.get(key));
            attempts.is_none_or(|attempts| attempts.iter().all(|attempt| attempt.deadline <= now))
        };
        if is_late {
            self.topics.violate(format!("after the deadline: a producer received the record of {key:?} at {now:?}"));
        }
    }
}

impl Producer for WatchedProducer {
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>> {
        records.iter().for_each(|record| self.check(record));
        if self.topics.mutant != Some(Mutant::AcknowledgesBeforeTheBus) {
            return self.inner.send(records);
        }
        let position = |record: &NewRecord| {
            let partition = Partition { topic: record.topic.clone(), index: 0 };
            Ok(Position { partition, offset: Offset(0) })
        };
        let guessed = records.iter().map(position).collect();
        let (runtime, outcomes) = (self.runtime.clone(), self.inner.send(records));
        async move { runtime.timeout(IMPATIENCE, outcomes).await.unwrap_or(guessed) }.boxed()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

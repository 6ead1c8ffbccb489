//! librdkafka's consumer and the queues of its partitions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bus::{BusError, Commit, Committed, ConsumerOptions, Offset, Partition, Record, Start, TopicName};
use instants::Monotonic;
use rdkafka::ClientContext;
use rdkafka::bindings::{rd_kafka_mem_free, rd_kafka_memberid};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset as RdOffset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use runtime::Runtime;
use tokio::sync::Notify;

use crate::blocking::{blocking, drop_elsewhere};
use crate::context::Context;
use crate::error::bus_error;
use crate::messages::MessageQueue;
use crate::options::{Assignor, KafkaUrl};
use crate::records::{Copier, QUEUE_BACKOFF_MILLIS, QUEUE_KIB, end};
use crate::{EVENTS_MAX, RETRY_WAIT, create, edges, kafka_index, kafka_offset, offset_of};

/// Longest time between two heartbeats. A member notices a change of its group within this time.
const HEARTBEAT_MAX: Duration = Duration::from_secs(1);
/// Least number of heartbeats in a session timeout.
const HEARTBEATS: u32 = 6;
/// Largest number of messages that the consumer takes from a queue at once.
const MESSAGES_MAX: usize = 256;
/// Longest wait for the end of a rebalance before a member leaves.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Longest time of a seek, which needs no broker.
const SEEK_MAX: Duration = Duration::from_secs(1);

pub(super) struct Native {
    consumer: Option<Arc<BaseConsumer<Group>>>,
    changed: Arc<Notify>,
    options: ConsumerOptions,
    assignments: AtomicU64,
}

/// Callbacks of librdkafka's consumer.
#[derive(Default)]
pub(super) struct Group {
    context: Context,
    rebalances: Mutex<VecDeque<Rebalance>>,
    /// Wakes the task of the group.
    woken: Arc<Notify>,
    is_leaving: AtomicBool,
}

/// Change of the assignment. librdkafka waits for the answer: [`Native::assign`] or [`Native::unassign`].
#[derive(Debug)]
pub(super) enum Rebalance {
    Assign(Vec<Partition>),
    Revoke(Vec<Partition>),
}

/// Queue of one partition.
#[derive(Clone)]
pub(super) struct Queue {
    /// Number of the assignment. Each number is used once.
    assignment: u64,
    messages: Arc<MessageQueue>,
    /// Separates the messages of the partition from the common queue of the client, and keeps the client alive.
    _queue: Arc<PartitionQueue<Group>>,
    /// Number of seeks that have not taken effect. Until then the queue may contain records of an old position.
    seeks: Arc<AtomicU64>,
}

/// First position of a partition.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) partition: Partition,
    pub(super) position: Offset,
    pub(super) committed: Option<Committed>,
}

impl Group {
    fn rebalances(&self) -> MutexGuard<'_, VecDeque<Rebalance>> {
        self.rebalances.lock().expect("no code panics while it holds this mutex")
    }
}

impl ClientContext for Group {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn stats(&self, _: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }
}

impl ConsumerContext for Group {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let rebalance = match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assign(partitions_of(list)),
            _ => Rebalance::Revoke(partitions_of(list)),
        };
        if self.is_leaving.load(Ordering::Acquire) {
            answer(consumer, list, matches!(rebalance, Rebalance::Assign(_)));
            return;
        }
        self.rebalances().push_back(rebalance);
        self.woken.notify_one();
    }
}

/// Answers a rebalance. An error means that librdkafka no longer waits for the answer.
fn answer(consumer: &BaseConsumer<Group>, list: &TopicPartitionList, is_assignment: bool) {
    let is_incremental = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
    let answered = match (is_assignment, is_incremental) {
        (true, true) => consumer.incremental_assign(list),
        (true, false) => consumer.assign(list),
        (false, true) => consumer.incremental_unassign(list),
        (false, false) => consumer.unassign(),
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "librdkafka did not accept the answer to a rebalance");
    }
}

/// Polls librdkafka until the condition holds. Returns false if it does not hold within the limit.
fn poll_until(consumer: &BaseConsumer<Group>, limit: Duration, holds: impl Fn() -> bool) -> bool {
    let period = Duration::from_millis(10);
    for _ in 0..=limit.as_millis() / period.as_millis() {
        if holds() {
            return true;
        }
        drop(consumer.poll(period));
    }
    false
}

/// Returns true if the consumer is a member of the group. It is none after its request to leave.
fn has_member_id(consumer: &BaseConsumer<Group>) -> bool {
    let client = consumer.client().native_ptr();
    #[expect(unsafe_code, reason = "the crate rdkafka has no function for the id of a member")]
    // SAFETY: the client is alive. The id is null, or a text that ends with a zero and that the caller must free.
    unsafe {
        let id = rd_kafka_memberid(client);
        if id.is_null() {
            return false;
        }
        let is_empty = *id == 0;
        rd_kafka_mem_free(client, id.cast());
        !is_empty
    }
}

fn partitions_of(list: &TopicPartitionList) -> Vec<Partition> {
    let partition = |topic: &str, index: i32| {
        let topic = TopicName::new(topic).ok()?;
        Some(Partition { topic, index: u32::try_from(index).ok()? })
    };
    list.elements().iter().filter_map(|element| partition(element.topic(), element.partition())).collect()
}

fn list_of<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(partition.topic.as_str(), kafka_index(partition.index));
    }
    list
}

impl Native {
    pub(super) fn open(url: &KafkaUrl, options: &ConsumerOptions, changed: Arc<Notify>) -> Result<Self, BusError> {
        let session = options.session_timeout;
        let mut config = url.config()?;
        config.set("client.id", &options.name).set("group.id", &options.group);
        config.set("session.timeout.ms", session.as_millis().to_string());
        let heartbeat = (session / HEARTBEATS).min(HEARTBEAT_MAX);
        config.set("heartbeat.interval.ms", heartbeat.as_millis().max(1).to_string());
        // The group waits at most this long until a member has released its partitions. The limits are librdkafka's.
        let rebalance = (session + options.revoke_timeout).as_millis().min(86_400_000);
        config.set("max.poll.interval.ms", rebalance.to_string());
        config.set("socket.timeout.ms", session.as_millis().clamp(1_000, 60_000).to_string());
        config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        let (assignor, start) = (url.assignor(), options.start);
        config.set(
            "partition.assignment.strategy",
            if assignor == Assignor::Range { "range" } else { "cooperative-sticky" },
        );
        config.set("auto.offset.reset", if start == Start::Latest { "latest" } else { "earliest" });
        config.set("queued.max.messages.kbytes", QUEUE_KIB).set("queued.min.messages", "10000");
        // librdkafka fetches again only after this time when a queue was full. Its default is a second.
        config.set("fetch.queue.backoff.ms", QUEUE_BACKOFF_MILLIS);
        let consumer: BaseConsumer<Group> = create(&config)?;
        let mut consumer = consumer;
        let woken = consumer.context().woken.clone();
        consumer.set_nonempty_callback(move || woken.notify_one());
        let topics: Vec<&str> = options.topics.iter().map(TopicName::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| bus_error(&error))?;
        let consumer = Some(Arc::new(consumer));
        Ok(Native { consumer, changed, options: options.clone(), assignments: AtomicU64::new(0) })
    }

    fn consumer(&self) -> &Arc<BaseConsumer<Group>> {
        self.consumer.as_ref().expect("only the drop takes the consumer")
    }

    /// Waits until librdkafka has an event for [`Native::poll`].
    pub(super) async fn woken(&self) {
        self.consumer().context().woken.notified().await;
    }

    /// Takes events from librdkafka.
    ///
    /// # Errors
    /// Returns an error after which the consumer can receive no further event.
    pub(super) fn poll(&self) -> Result<(), BusError> {
        for _ in 0..EVENTS_MAX {
            let Some(polled) = self.consumer().poll(Duration::ZERO) else { continue };
            let error = match polled {
                Ok(record) => {
                    let (topic, partition, offset) = (record.topic(), record.partition(), record.offset());
                    tracing::error!(topic, partition, offset, "librdkafka delivered a record outside of its queue");
                    continue;
                }
                Err(error) => error,
            };
            let failure = self.consumer().context().context.explain(bus_error(&error));
            let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
            if is_fatal || matches!(failure, BusError::Unauthorized(_) | BusError::Invalid(_)) {
                return Err(failure);
            }
            tracing::debug!(%error, "an error of the consumer");
        }
        Ok(())
    }

    /// Removes the next rebalance from the queue.
    pub(super) fn take_rebalance(&self) -> Option<Rebalance> {
        self.consumer().context().rebalances().pop_front()
    }

    pub(super) fn has_rebalance(&self) -> bool {
        !self.consumer().context().rebalances().is_empty()
    }

    /// Returns true if the group has given the partitions to other members without waiting for this consumer.
    pub(super) fn is_lost(&self) -> bool {
        self.consumer().assignment_lost()
    }

    /// Creates a queue for each partition, so that librdkafka adds no records to the common queue.
    pub(super) fn queues(&self, partitions: &[Partition]) -> Vec<Queue> {
        let queue = |partition: &Partition| {
            let mut queue =
                self.consumer().split_partition_queue(partition.topic.as_str(), kafka_index(partition.index))?;
            let changed = self.changed.clone();
            queue.set_nonempty_callback(move || changed.notify_one());
            let assignment = self.new_assignment();
            let messages = MessageQueue::of(self.consumer(), partition)?;
            Some(Queue { assignment, messages: Arc::new(messages), _queue: Arc::new(queue), seeks: Arc::default() })
        };
        partitions.iter().filter_map(queue).collect()
    }

    fn new_assignment(&self) -> u64 {
        self.assignments.fetch_add(1, Ordering::Relaxed)
    }

    /// Answers a rebalance with new partitions. Without positions, librdkafka uses the committed offsets.
    pub(super) fn assign(&self, partitions: &[Partition], found: Option<&[Found]>) {
        let mut list = list_of(partitions);
        for Found { partition, position, .. } in found.into_iter().flatten() {
            let set = list.set_partition_offset(
                partition.topic.as_str(),
                kafka_index(partition.index),
                kafka_offset(*position),
            );
            drop(set);
        }
        answer(self.consumer(), &list, true);
    }

    /// Answers a rebalance that takes partitions.
    pub(super) fn unassign(&self, partitions: &[Partition]) {
        answer(self.consumer(), &list_of(partitions), false);
    }

    /// Reads the committed offsets within `limit`, and computes the first positions.
    pub(super) async fn find(
        &self,
        runtime: &Runtime,
        partitions: &[Partition],
        limit: Duration,
    ) -> Result<Vec<Found>, BusError> {
        let found = async {
            let (consumer, list) = (self.consumer().clone(), list_of(partitions));
            let wanted = list.clone();
            let committed = blocking(move || consumer.committed_offsets(wanted, limit)).await?;
            committed.elements().iter().try_for_each(|element| element.error())?;
            let first = edges(runtime, self.consumer(), &list, RdOffset::Beginning).await?;
            let end = edges(runtime, self.consumer(), &list, RdOffset::End).await?;
            Ok(partitions.iter().map(|partition| self.first(partition, &committed, &first, &end)).collect())
        };
        found.await.map_err(|error: KafkaError| self.consumer().context().context.explain(bus_error(&error)))
    }

    /// Returns the first position of a partition. The arguments are lists of offsets.
    fn first(
        &self,
        partition: &Partition,
        committed: &TopicPartitionList,
        first: &TopicPartitionList,
        end: &TopicPartitionList,
    ) -> Found {
        let (topic, index) = (partition.topic.as_str(), kafka_index(partition.index));
        let offset = |list: &TopicPartitionList| {
            list.find_partition(topic, index).and_then(|element| offset_of(element.offset())).unwrap_or_default()
        };
        let (first, end) = (offset(first), offset(end));
        let committed = committed.find_partition(topic, index).and_then(|element| {
            Some(Committed { offset: offset_of(element.offset())?, metadata: element.metadata().to_owned() })
        });
        let position = match (&committed, self.options.start) {
            (Some(committed), _) if (first..=end).contains(&committed.offset) => committed.offset,
            (_, Start::Earliest) => first,
            (_, Start::Latest) => end,
        };
        Found { partition: partition.clone(), position, committed }
    }

    /// Commits offsets. Repeats the commit while the group changes its generation, until `is_valid` returns false. Returns
    /// the time before the accepted commit.
    ///
    /// A repetition is safe, because librdkafka joins a later generation only after this consumer has answered all
    /// rebalances, and `is_valid` then returns false for a partition that the consumer has lost.
    pub(super) async fn commit(
        &self,
        runtime: &Runtime,
        commits: &[Commit],
        is_valid: impl Fn() -> bool,
    ) -> Result<Monotonic, BusError> {
        let limit = runtime.monotonic() + self.options.session_timeout;
        while is_valid() {
            let mut list = TopicPartitionList::new();
            for Commit { partition, committed } in commits {
                let mut element = list.add_partition(partition.topic.as_str(), kafka_index(partition.index));
                let set = element.set_offset(kafka_offset(committed.offset));
                set.map_err(|error| bus_error(&error))?;
                element.set_metadata(&committed.metadata);
            }
            let (consumer, sent) = (self.consumer().clone(), runtime.monotonic());
            let Err(error) = blocking(move || consumer.commit(&list, CommitMode::Sync)).await else { return Ok(sent) };
            let is_changing =
                matches!(error.rdkafka_error_code(), Some(Code::RebalanceInProgress | Code::IllegalGeneration));
            if !is_changing || sent >= limit {
                return Err(bus_error(&error));
            }
            runtime.sleep(RETRY_WAIT).await;
        }
        Err(BusError::Fenced)
    }

    /// Moves the position of a partition to `offset`. The caller has called [`Queue::begin_seek`]. Until the move has
    /// taken effect, the queue returns no records.
    pub(super) async fn seek(&self, runtime: &Runtime, queue: Queue, partition: Partition, offset: Offset) {
        let index = kafka_index(partition.index);
        let is_assigned = || {
            let assignment = self.consumer().assignment();
            assignment.is_ok_and(|list| list.find_partition(partition.topic.as_str(), index).is_some())
        };
        while is_assigned() {
            let (consumer, topic) = (self.consumer().clone(), partition.topic.clone());
            match blocking(move || consumer.seek(topic.as_str(), index, kafka_offset(offset), SEEK_MAX)).await {
                Ok(()) => break,
                // librdkafka has not begun to fetch the partition.
                Err(error) => tracing::debug!(%error, "a seek must be repeated"),
            }
            runtime.sleep(RETRY_WAIT).await;
        }
        queue.seeks.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_one();
    }

    /// Returns the offset after the last record of a partition, as far as librdkafka knows.
    pub(super) fn end(&self, partition: &Partition) -> Option<Offset> {
        end(self.consumer(), partition)
    }

    /// Leaves the group.
    pub(super) async fn leave(&self, limit: Duration) -> Result<(), BusError> {
        let consumer = self.consumer().clone();
        let left = blocking(move || {
            consumer.context().is_leaving.store(true, Ordering::Release);
            // librdkafka waits for the answers.
            while let Some(rebalance) = { consumer.context().rebalances().pop_front() } {
                let (partitions, is_assignment) = match &rebalance {
                    Rebalance::Assign(partitions) => (partitions, true),
                    Rebalance::Revoke(partitions) => (partitions, false),
                };
                answer(&consumer, &list_of(partitions), is_assignment);
            }
            // librdkafka 2.12 closes a member without partitions, and a member during a rebalance, without a request to leave.
            // The broker would wait for this member until its session ends.
            consumer.unsubscribe();
            poll_until(&consumer, limit.min(LEAVE_MAX), || !has_member_id(&consumer));
            consumer.close_queue().map_err(|error| bus_error(&error))?;
            if poll_until(&consumer, limit, || consumer.closed()) {
                return Ok(());
            }
            Err(BusError::Disconnected("the session ends by itself".to_owned()))
        });
        left.await
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            consumer.context().is_leaving.store(true, Ordering::Release);
            drop_elsewhere(consumer);
        }
    }
}

impl Queue {
    pub(super) fn assignment(&self) -> u64 {
        self.assignment
    }

    /// Returns the same queue for another assignment.
    pub(super) fn renewed(&self, native: &Native) -> Queue {
        Queue { assignment: native.new_assignment(), seeks: Arc::default(), ..self.clone() }
    }

    /// Hides the records of the queue until [`Native::seek`] ends.
    pub(super) fn begin_seek(&self) {
        self.seeks.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes records from the queue, beginning at `position`.
    pub(super) fn take(&self, copier: &mut Copier, position: Offset, records_max: usize) -> Vec<Record> {
        let mut records = Vec::new();
        if self.seeks.load(Ordering::Acquire) > 0 {
            return records;
        }
        loop {
            let wanted = MESSAGES_MAX.min(records_max - records.len());
            let messages = self.messages.take(wanted);
            records.reserve(messages.len());
            for record in messages.records(copier) {
                match record {
                    Ok(record) if record.offset >= position => records.push(record),
                    // The record was fetched before a seek.
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "an error of a partition"),
                }
            }
            if messages.len() < wanted || records.len() == records_max {
                return records;
            }
        }
    }
}

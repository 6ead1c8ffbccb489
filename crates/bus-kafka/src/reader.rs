//! Reader of the Kafka engine: a consumer of librdkafka with a fixed assignment.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::{Answer, BusError, Offset, Partition, Reader, Record, RecordBatch, TopicName};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset as RdOffset, TopicPartitionList};
use runtime::Runtime;
use tokio::sync::Notify;

use crate::blocking::{blocking, drop_elsewhere};
use crate::context::Context;
use crate::error::bus_error;
use crate::messages::record;
use crate::options::KafkaUrl;
use crate::records::{Copier, QUEUE_BACKOFF_MILLIS, QUEUE_KIB, end};
use crate::{REQUEST_MAX, create, kafka_index, kafka_offset};

/// Name of a group that librdkafka requires. The reader neither joins it nor commits offsets.
const GROUP: &str = "reveille-reader";
/// Largest number of records in a batch.
const BATCH_RECORDS_MAX: usize = 1_000;
/// Longest time for which a search waits for one event of librdkafka.
const SEARCH_WAIT: Duration = Duration::from_millis(100);

pub(crate) struct KafkaReader {
    client: Option<Arc<BaseConsumer<Context>>>,
    topic: TopicName,
    woken: Arc<Notify>,
    fetched: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    /// Batches that the caller has not received.
    batches: VecDeque<RecordBatch>,
    copier: Copier,
}

impl KafkaReader {
    pub(crate) fn open(url: &KafkaUrl, topic: &TopicName, partitions: u32) -> Result<Self, BusError> {
        let mut config = config(url)?;
        config.set("queued.max.messages.kbytes", QUEUE_KIB).set("fetch.queue.backoff.ms", QUEUE_BACKOFF_MILLIS);
        let mut client: BaseConsumer<Context> = create(&config)?;
        let woken = Arc::new(Notify::new());
        let waker = woken.clone();
        client.set_nonempty_callback(move || waker.notify_one());
        let mut list = TopicPartitionList::new();
        for index in 0..partitions {
            let added = list.add_partition_offset(topic.as_str(), kafka_index(index), RdOffset::Beginning);
            added.map_err(|error| bus_error(&error))?;
        }
        client.assign(&list).map_err(|error| bus_error(&error))?;
        Ok(KafkaReader { client: Some(Arc::new(client)), topic: topic.clone(), woken, fetched: Mutex::default() })
    }

    /// Takes records from librdkafka, and returns those of each run of one partition as a batch.
    fn poll(&self, client: &BaseConsumer<Context>, copier: &mut Copier) -> Result<VecDeque<RecordBatch>, BusError> {
        let mut batches = VecDeque::<RecordBatch>::new();
        for _ in 0..BATCH_RECORDS_MAX {
            let message = match client.poll(Duration::ZERO) {
                None => break,
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    check(client, &error)?;
                    continue;
                }
            };
            let Ok(index) = u32::try_from(message.partition()) else { continue };
            #[expect(unsafe_code, reason = "the crate rdkafka panics if the name of a header is not UTF-8")]
            // SAFETY: the message is alive, and only this function uses it.
            let Some(Ok(record)) = (unsafe { record(message.ptr(), copier) }) else { continue };
            match batches.back_mut() {
                Some(batch) if batch.partition.index == index => batch.records.push(record),
                _ => batches.push_back(self.batch(index, record)),
            }
        }
        for batch in &mut batches {
            let after = batch.records.last().map(|last| last.offset.next()).unwrap_or_default();
            batch.end = end(client, &batch.partition).unwrap_or_default().max(after);
        }
        Ok(batches)
    }

    fn batch(&self, index: u32, record: Record) -> RecordBatch {
        let partition = Partition { topic: self.topic.clone(), index };
        RecordBatch { partition, end: record.offset.next(), records: vec![record] }
    }
}

/// Returns the settings of a client that reads a topic without a group.
fn config(url: &KafkaUrl) -> Result<ClientConfig, BusError> {
    let mut config = url.config()?;
    config.set("group.id", GROUP).set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    // If the bus deletes the first record before the client fetches it, the client continues with the new first one.
    config.set("auto.offset.reset", "earliest");
    Ok(config)
}

/// Returns an error if the client can receive no further records. librdkafka repeats the request after other errors.
fn check(client: &BaseConsumer<Context>, error: &KafkaError) -> Result<(), BusError> {
    let failure = client.context().explain(bus_error(error));
    if matches!(error, KafkaError::MessageConsumptionFatal(_)) || matches!(failure, BusError::Unauthorized(_)) {
        return Err(failure);
    }
    tracing::debug!(%error, "an error of a reader");
    Ok(())
}

/// Returns true if consumers receive a record of a partition at its offset in `from` or after it. Each offset must be
/// before the end of its partition, because librdkafka would otherwise start with the first record.
pub(crate) async fn has_records(
    runtime: &Runtime,
    url: &KafkaUrl,
    topic: &TopicName,
    mut from: BTreeMap<u32, Offset>,
) -> Result<bool, BusError> {
    if from.is_empty() {
        return Ok(false);
    }
    let mut config = config(url)?;
    // The client reports the end of each partition.
    config.set("enable.partition.eof", "true");
    let client: BaseConsumer<Context> = create(&config)?;
    let mut list = TopicPartitionList::new();
    for (index, offset) in &from {
        let added = list.add_partition_offset(topic.as_str(), kafka_index(*index), kafka_offset(*offset));
        added.map_err(|error| bus_error(&error))?;
    }
    let runtime = runtime.clone();
    blocking(move || {
        client.assign(&list).map_err(|error| bus_error(&error))?;
        let deadline = runtime.monotonic() + REQUEST_MAX;
        while runtime.monotonic() < deadline {
            match client.poll(SEARCH_WAIT) {
                None => {}
                Some(Ok(_)) => return Ok(true),
                Some(Err(KafkaError::PartitionEOF(index))) => {
                    from.retain(|one, _| kafka_index(*one) != index);
                    if from.is_empty() {
                        return Ok(false);
                    }
                }
                Some(Err(error)) => check(&client, &error)?,
            }
        }
        let missing = BusError::Disconnected("no broker has sent the records of all partitions".to_owned());
        Err(client.context().explain(missing))
    })
    .await
}

impl Reader for KafkaReader {
    fn next(&self) -> Answer<'_, RecordBatch> {
        Box::pin(async move {
            let client = self.client.as_ref().expect("only the drop takes the client");
            loop {
                let mut woken = std::pin::pin!(self.woken.notified());
                woken.as_mut().enable();
                {
                    let mut fetched = self.fetched.lock().expect("no code panics while it holds this mutex");
                    if fetched.batches.is_empty() {
                        fetched.batches = self.poll(client, &mut fetched.copier)?;
                    }
                    if let Some(batch) = fetched.batches.pop_front() {
                        return Ok(batch);
                    }
                }
                woken.await;
            }
        })
    }
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop_elsewhere(client);
        }
    }
}

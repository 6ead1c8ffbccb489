//! Producer of the Kafka engine. One task gives the records to librdkafka in the order of the calls.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bus::{
    Answer, BusError, Compression, NewRecord, Offset, Partition, Position, Producer, ProducerOptions, TopicName,
};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use instants::Monotonic;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header as RdHeader, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::statistics::Statistics;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::blocking::{blocking, drop_elsewhere};
use crate::context::Context;
use crate::error::{bus_error, bus_error_of_code};
use crate::options::KafkaUrl;
use crate::{RECORD_BYTES_MAX, REQUEST_MAX, RETRY_WAIT, Shape, create, kafka_index, shape};

/// Largest number of topics that a producer asks the brokers about at once.
const REQUESTS: usize = 32;

type Outcome = Result<Position, BusError>;

pub(crate) struct KafkaProducer {
    runtime: Runtime,
    /// `None` after the caller has closed the producer.
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    _task: TaskSet,
}

enum Job {
    Send {
        records: Vec<NewRecord>,
        began: Monotonic,
        batch: Arc<Batch>,
    },
    /// Wait for the outcomes of all records.
    Close(oneshot::Sender<()>),
}

/// Records of one call, and their outcomes.
struct Batch(Mutex<Outcomes>);

struct Outcomes {
    known: Vec<Option<Outcome>>,
    missing: usize,
    done: Option<oneshot::Sender<Vec<Outcome>>>,
}

/// Record whose outcome librdkafka reports.
struct Pending {
    batch: Arc<Batch>,
    at: usize,
    topic: TopicName,
}

impl Batch {
    fn new(len: usize, done: oneshot::Sender<Vec<Outcome>>) -> Arc<Self> {
        Arc::new(Batch(Mutex::new(Outcomes { known: vec![None; len], missing: len, done: Some(done) })))
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.0.lock().expect("no code panics while it holds this mutex")
    }

    fn set(&self, at: usize, outcome: Outcome) {
        let mut outcomes = self.outcomes();
        outcomes.known[at] = Some(outcome);
        outcomes.missing -= 1;
        if outcomes.missing == 0
            && let Some(done) = outcomes.done.take()
        {
            // The caller may have dropped the future.
            drop(done.send(std::mem::take(&mut outcomes.known).into_iter().flatten().collect()));
        }
    }
}

/// Receives the outcomes of records.
#[derive(Default)]
struct Deliveries(Context);

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn stats(&self, _: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Pending>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Box<Pending>) {
        let Pending { batch, at, topic } = *pending;
        let outcome = match result {
            Ok(message) => match (u32::try_from(message.partition()), u64::try_from(message.offset())) {
                (Ok(index), Ok(offset)) => {
                    Ok(Position { partition: Partition { topic, index }, offset: Offset(offset) })
                }
                _ => Err(BusError::Disconnected("the broker reported no position of the record".to_owned())),
            },
            Err((error, _)) => Err(self.0.explain(delivery_error(error, &topic))),
        };
        batch.set(at, outcome);
    }
}

fn delivery_error(error: &KafkaError, topic: &TopicName) -> BusError {
    match error.rdkafka_error_code() {
        Some(Code::UnknownPartition) => BusError::Invalid(format!("the topic {topic} has no such partition")),
        Some(code) => bus_error_of_code(code, Some(topic)),
        None => bus_error(error),
    }
}

impl KafkaProducer {
    pub(crate) fn open(
        runtime: &Runtime,
        url: &KafkaUrl,
        client: Arc<BaseConsumer<Context>>,
        options: ProducerOptions,
    ) -> Result<Self, BusError> {
        let timeout = options.delivery_timeout.as_millis();
        if timeout == 0 {
            return Err(BusError::Invalid("the delivery timeout of a producer must be at least 1 ms".to_owned()));
        }
        let mut config = url.config()?;
        // Kafka stores each record once, and acknowledges it after all in-sync replicas have it.
        config.set("enable.idempotence", "true").set("message.timeout.ms", timeout.to_string());
        let codec = match options.compression {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        };
        config.set("compression.type", codec);
        // The partitioner of the Java client.
        config.set("partitioner", "murmur2_random");
        // Records leave at once. librdkafka sends records that arrive during a request together.
        config.set("linger.ms", "0");
        // The callers bound the number of records that wait.
        config.set("queue.buffering.max.messages", "0").set("queue.buffering.max.kbytes", "2147483647");
        // A record has at most RECORD_BYTES_MAX bytes. The rest is for its fields.
        config.set("message.max.bytes", (RECORD_BYTES_MAX + 40_000).to_string());
        config.set("topic.metadata.propagation.max.ms", "3000");
        let producer: ThreadedProducer<Deliveries> = create(&config)?;
        let (jobs, received) = mpsc::unbounded_channel();
        let worker = Worker {
            runtime: runtime.clone(),
            producer: Some(Arc::new(producer)),
            client,
            options,
            known: HashSet::new(),
            waiting: HashMap::new(),
            describing: FuturesUnordered::new(),
            requests: Arc::new(Semaphore::new(REQUESTS)),
        };
        let task = TaskSet::new(runtime);
        task.spawn("kafka producer", worker.run(received));
        Ok(KafkaProducer { runtime: runtime.clone(), jobs: Mutex::new(Some(jobs)), _task: task })
    }

    fn jobs(&self) -> MutexGuard<'_, Option<mpsc::UnboundedSender<Job>>> {
        self.jobs.lock().expect("no code panics while it holds this mutex")
    }
}

impl Producer for KafkaProducer {
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Outcome>> {
        let count = records.len();
        if count == 0 {
            return std::future::ready(Vec::new()).boxed();
        }
        let (done, outcomes) = oneshot::channel();
        let job = Job::Send { records, began: self.runtime.monotonic(), batch: Batch::new(count, done) };
        // If the send fails, the channel of the outcomes ends.
        drop(self.jobs().as_ref().map(|jobs| jobs.send(job)));
        async move { outcomes.await.unwrap_or_else(|_| vec![Err(BusError::Closed); count]) }.boxed()
    }

    fn close(&self) -> Answer<'_, ()> {
        let (done, closed) = oneshot::channel();
        if let Some(jobs) = self.jobs().take() {
            drop(jobs.send(Job::Close(done)));
        }
        Box::pin(async move {
            // The channel also ends if another call has closed the producer.
            drop(closed.await);
            Ok(())
        })
    }
}

struct Worker {
    runtime: Runtime,
    producer: Option<Arc<ThreadedProducer<Deliveries>>>,
    client: Arc<BaseConsumer<Context>>,
    options: ProducerOptions,
    /// Topics that exist. librdkafka would ask a broker to create other topics.
    known: HashSet<TopicName>,
    /// Records to topics that no broker has described yet, in the order of the calls. The records of other topics do not
    /// wait for them.
    waiting: HashMap<TopicName, Vec<Waiting>>,
    /// One request for each topic in `waiting`.
    describing: FuturesUnordered<BoxFuture<'static, (TopicName, Result<(), BusError>)>>,
    /// Permits for concurrent requests. Each request occupies a thread.
    requests: Arc<Semaphore>,
}

/// Record that waits for the description of its topic.
struct Waiting {
    record: NewRecord,
    began: Monotonic,
    at: usize,
    batch: Arc<Batch>,
}

impl Worker {
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        loop {
            tokio::select! {
                biased;
                Some((topic, described)) = self.describing.next() => self.described(topic, described).await,
                job = jobs.recv() => match job {
                    Some(Job::Send { records, began, batch }) => {
                        for (at, record) in records.into_iter().enumerate() {
                            self.accept(Waiting { record, began, at, batch: batch.clone() }).await;
                        }
                    }
                    Some(Job::Close(done)) => {
                        while let Some((topic, described)) = self.describing.next().await {
                            self.described(topic, described).await;
                        }
                        let producer = self.producer.take();
                        // Each record has its outcome after the delivery timeout.
                        let limit = 2 * self.options.delivery_timeout;
                        blocking(move || drop(producer.map(|producer| producer.flush(limit)))).await;
                        _ = done.send(());
                    }
                    None => return,
                },
            }
        }
    }

    /// Sends a record, or lets it wait for the description of its topic.
    async fn accept(&mut self, waiting: Waiting) {
        let topic = waiting.record.topic.clone();
        if let Some(earlier) = self.waiting.get_mut(&topic) {
            earlier.push(waiting);
        } else if self.known.contains(&topic) {
            self.finish(waiting).await;
        } else {
            self.describe(&topic, waiting.began);
            self.waiting.insert(topic, vec![waiting]);
        }
    }

    /// Starts to describe a topic, until the delivery timeout of a record whose call began at `began`.
    fn describe(&self, topic: &TopicName, began: Monotonic) {
        let (runtime, client, topic) = (self.runtime.clone(), self.client.clone(), topic.clone());
        let (requests, deadline) = (self.requests.clone(), began + self.options.delivery_timeout);
        self.describing.push(Box::pin(async move {
            let described = wait_for_shape(&runtime, &client, &topic, deadline, &requests).await;
            (topic, described.map(drop))
        }));
    }

    /// Sends the records that waited for the description of a topic.
    async fn described(&mut self, topic: TopicName, described: Result<(), BusError>) {
        let Some(waiting) = self.waiting.remove(&topic) else { return };
        match described {
            Ok(()) => {
                self.known.insert(topic);
                for waiting in waiting {
                    self.finish(waiting).await;
                }
            }
            // Only the deadline of the oldest record has passed. Later records still wait, so that their outcomes do not
            // depend on the moment at which the broker returns.
            Err(error) if error.is_retryable() => {
                let now = self.runtime.monotonic();
                let is_over = |waiting: &Waiting| waiting.began + self.options.delivery_timeout <= now;
                let (over, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_over);
                over.iter().for_each(|waiting| waiting.batch.set(waiting.at, Err(error.clone())));
                if let Some(oldest) = left.first() {
                    self.describe(&topic, oldest.began);
                    self.waiting.insert(topic, left);
                }
            }
            Err(error) => waiting.iter().for_each(|waiting| waiting.batch.set(waiting.at, Err(error.clone()))),
        }
    }

    async fn finish(&mut self, waiting: Waiting) {
        let Waiting { record, began, at, batch } = waiting;
        if let Err(error) = self.send(record, began, at, &batch).await {
            batch.set(at, Err(error));
        }
    }

    /// Gives a record to librdkafka, which reports the outcome later. An error is the outcome.
    async fn send(
        &mut self,
        record: NewRecord,
        began: Monotonic,
        at: usize,
        batch: &Arc<Batch>,
    ) -> Result<(), BusError> {
        let bytes = record.bytes();
        if bytes > RECORD_BYTES_MAX {
            return Err(BusError::RecordTooLarge { bytes, limit: RECORD_BYTES_MAX });
        }
        let deadline = began + self.options.delivery_timeout;
        let Some(producer) = self.producer.clone() else { return Err(BusError::Closed) };
        loop {
            let Err(error) = give(&producer, &record, at, batch) else { return Ok(()) };
            let code = error.rdkafka_error_code();
            let index = record.partition.filter(|_| code == Some(Code::UnknownPartition));
            let Some(index) = index else { return Err(delivery_error(&error, &record.topic)) };
            // The topic may have grown since the producer learned its number of partitions.
            let partitions = self.shape(&record.topic, deadline).await?.partitions;
            if index >= partitions {
                let topic = &record.topic;
                let text = format!("the topic {topic} has {partitions} partitions, so it has no partition {index}");
                return Err(BusError::Invalid(text));
            }
            if self.runtime.monotonic() >= deadline {
                return Err(BusError::Disconnected("no broker has described the new partitions".to_owned()));
            }
            let (producer, topic) = (producer.clone(), record.topic.clone());
            blocking(move || drop(producer.client().fetch_metadata(Some(topic.as_str()), REQUEST_MAX))).await;
            self.runtime.sleep(RETRY_WAIT).await;
        }
    }

    async fn shape(&mut self, topic: &TopicName, deadline: Monotonic) -> Result<Shape, BusError> {
        wait_for_shape(&self.runtime, &self.client, topic, deadline, &self.requests).await
    }
}

/// Describes a topic. Repeats the request until `deadline` while the brokers are away.
async fn wait_for_shape(
    runtime: &Runtime,
    client: &Arc<BaseConsumer<Context>>,
    topic: &TopicName,
    deadline: Monotonic,
    requests: &Arc<Semaphore>,
) -> Result<Shape, BusError> {
    let late = || BusError::Disconnected("no broker has described the topic".to_owned());
    loop {
        let left = deadline.since(runtime.monotonic());
        let Some(permit) = runtime.timeout(left, requests.clone().acquire_owned()).await else { return Err(late()) };
        let permit = permit.expect("the semaphore is never closed");
        let left = deadline.since(runtime.monotonic());
        // The request ends at the deadline, because it occupies a thread until its end.
        let found = shape(client.clone(), topic.clone(), left.min(REQUEST_MAX)).await;
        drop(permit);
        match found {
            // The outcome of a record must not depend on the moment at which the broker returns: a later record would
            // overtake an earlier one.
            Err(error) if error.is_retryable() && runtime.monotonic() < deadline => runtime.sleep(RETRY_WAIT).await,
            Err(error) if error.is_retryable() => return Err(late()),
            found => return found,
        }
    }
}

fn give(
    producer: &ThreadedProducer<Deliveries>,
    record: &NewRecord,
    at: usize,
    batch: &Arc<Batch>,
) -> Result<(), KafkaError> {
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for header in &record.headers {
        headers = headers.insert(RdHeader { key: &header.name, value: header.value.as_deref() });
    }
    let new = BaseRecord {
        topic: record.topic.as_str(),
        partition: record.partition.map(kafka_index),
        payload: record.value.as_deref(),
        key: record.key.as_deref(),
        timestamp: record.timestamp.map(instants::Timestamp::as_millis),
        headers: (!record.headers.is_empty()).then_some(headers),
        delivery_opaque: Box::new(Pending { batch: batch.clone(), at, topic: record.topic.clone() }),
    };
    producer.send::<[u8], [u8]>(new).map_err(|(error, _)| error)
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop_elsewhere(self.producer.take());
    }
}

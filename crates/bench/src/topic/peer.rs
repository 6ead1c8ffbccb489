//! Peer of the trial: a bare producer of librdkafka, which sends the same records as fast as it can.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bus::{Record, TopicName};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use runtime::{Runtime, TaskSet};
use tokio::sync::oneshot;

use crate::process::Meter;
use crate::report::Row;

/// Longest wait for the acknowledgements after the last record.
const FLUSH_MAX: Duration = Duration::from_secs(120);
/// Time for which a producer with a full queue waits for acknowledgements.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// Counts acknowledgements.
#[derive(Debug, Default)]
struct Counter {
    stored: AtomicU64,
    failed: AtomicU64,
}

impl ClientContext for Counter {}

impl ProducerContext for Counter {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let count = if result.is_ok() { &self.stored } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends the records to a topic, and returns the rate until the brokers have acknowledged all of them. The first record
/// opens the connections before the measurement.
///
/// # Errors
/// Returns an error if the brokers do not acknowledge a record.
pub(super) async fn measure(
    runtime: &Runtime,
    servers: &str,
    topic: &TopicName,
    records: Vec<Record>,
) -> anyhow::Result<Row> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers).set("acks", "all").set("enable.idempotence", "true");
    // The codec and the partitioner of the server's producer. All other settings are librdkafka's defaults.
    config.set("compression.type", "zstd").set("partitioner", "murmur2_random");
    let producer: BaseProducer<Counter> = config.create_with_context(Counter::default())?;
    let count = u64::try_from(records.len()).unwrap_or(u64::MAX).saturating_sub(1);
    let (done, outcome) = oneshot::channel();
    let (tasks, clock, topic) = (TaskSet::new(runtime), runtime.clone(), topic.clone());
    let meter = Meter::start(runtime, None);
    tasks.spawn_thread("bench-peer", async move {
        drop(done.send(send(&clock, &producer, &topic, &records)));
    });
    let took = outcome.await.context("the thread of the bare producer has ended")??;
    let cost = meter.stop().await;
    let mut row = Row::new("bare librdkafka producer").with_cost(&cost, count);
    #[expect(clippy::cast_precision_loss, reason = "counts of records stay far below 2^52")]
    let per_second = count as f64 / took.as_secs_f64().max(1e-9);
    row.per_second = Some(per_second);
    row.count = Some(count);
    Ok(row)
}

/// Sends the first record, and then measures the time for the others.
fn send(
    runtime: &Runtime,
    producer: &BaseProducer<Counter>,
    topic: &TopicName,
    records: &[Record],
) -> anyhow::Result<Duration> {
    let (first, rest) = records.split_first().context("the run of the server has no record")?;
    let headers: Vec<OwnedHeaders> = rest.iter().map(headers_of).collect();
    enqueue(producer, topic, first, headers_of(first))?;
    producer.flush(FLUSH_MAX)?;
    let began = runtime.monotonic();
    for (record, headers) in rest.iter().zip(headers) {
        enqueue(producer, topic, record, headers)?;
    }
    producer.flush(FLUSH_MAX)?;
    let took = runtime.monotonic().since(began);
    let counter = producer.context();
    let (stored, failed) = (counter.stored.load(Ordering::Relaxed), counter.failed.load(Ordering::Relaxed));
    ensure!(
        failed == 0 && stored == u64::try_from(records.len()).unwrap_or(u64::MAX),
        "the brokers acknowledged {stored} of {} records of the bare producer, and {failed} failed",
        records.len()
    );
    Ok(took)
}

fn headers_of(record: &Record) -> OwnedHeaders {
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    record
        .headers
        .iter()
        .fold(empty, |headers, header| headers.insert(Header { key: &header.name, value: header.value.as_deref() }))
}

fn enqueue(
    producer: &BaseProducer<Counter>,
    topic: &TopicName,
    record: &Record,
    headers: OwnedHeaders,
) -> anyhow::Result<()> {
    let (key, value) = (record.key.as_deref().unwrap_or_default(), record.value.as_deref().unwrap_or_default());
    let mut next = BaseRecord::to(topic.as_str()).key(key).payload(value).headers(headers);
    loop {
        match producer.send(next) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), rejected)) => {
                next = rejected;
                producer.poll(FULL_WAIT);
            }
            Err((error, _)) => return Err(error).context("the bare producer rejected a record"),
        }
    }
}

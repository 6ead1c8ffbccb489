//! Producer of numbered records.

use std::collections::VecDeque;
use std::time::Duration;

use bus::{Bus as _, BusError, NewRecord, ProducerOptions, TopicName};
use bus_kafka::KafkaBus;
use bytes::Bytes;
use runtime::Runtime;

use crate::Failure;

/// Size of a record: its key and its value.
const RECORD_BYTES: usize = 100;
/// Number of records of one call.
const BATCH_RECORDS: usize = 500;
/// Largest number of calls that wait for their outcomes.
const BATCHES_MAX: usize = 200;
/// Time in which every record must be stored. It is longer than any fault.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(300);

/// Sends `records` records in turn to `keys` keys. Returns after the bus has acknowledged all records.
pub(crate) async fn send(
    runtime: &Runtime,
    bus: &KafkaBus,
    topic: &TopicName,
    records: u32,
    keys: u32,
    per_second: u32,
) -> Result<(), Failure> {
    let options = ProducerOptions { delivery_timeout: DELIVERY_TIMEOUT, ..ProducerOptions::default() };
    let producer = bus.producer(options).await?;
    let began = runtime.monotonic();
    let mut waiting = VecDeque::new();
    for first in (0..records).step_by(BATCH_RECORDS) {
        runtime.sleep_until(began + Duration::from_secs_f64(f64::from(first) / f64::from(per_second))).await;
        if waiting.len() == BATCHES_MAX
            && let Some(oldest) = waiting.pop_front()
        {
            check(oldest.await)?;
        }
        let batch = (first..records).take(BATCH_RECORDS).map(|at| record(topic, at % keys, at / keys));
        waiting.push_back(producer.send(batch.collect()));
    }
    for outcomes in waiting {
        check(outcomes.await)?;
    }
    Ok(producer.close().await?)
}

fn check(outcomes: Vec<Result<bus::Position, BusError>>) -> Result<(), BusError> {
    outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
}

fn record(topic: &TopicName, key: u32, number: u32) -> NewRecord {
    let (key, mut value) = (Bytes::copy_from_slice(&key.to_le_bytes()), number.to_le_bytes().to_vec());
    value.resize(RECORD_BYTES - key.len(), 0);
    NewRecord::new(topic, key, value)
}

/// Returns the key and the number of a record.
pub(crate) fn parts(record: &bus::Record) -> Option<(u32, u32)> {
    let number = |bytes: &Option<Bytes>| Some(u32::from_le_bytes(bytes.as_ref()?.get(..4)?.try_into().ok()?));
    Some((number(&record.key)?, number(&record.value)?))
}

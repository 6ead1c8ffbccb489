//! Buffered producer of numbered records, and the check of the records.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bus::{Bus as _, NewRecord, TopicName};
use bus_buffer::{BufferOptions, BufferedProducer};
use bus_kafka::{KafkaBus, KafkaUrl};
use bytes::Bytes;
use futures_util::future::join_all;
use runtime::Runtime;
use tokio::io::AsyncReadExt as _;

use crate::Failure;

/// Size of a record: its key and its value.
const RECORD_BYTES: usize = 100;
const KEYS: u64 = 1_000;
/// Numbers of records of a call, and of calls at the same time.
const BATCH: u64 = 500;
const CALLS: u64 = 20;
/// Largest size of the buffer. It is larger than the records of an outage.
const BUFFER_BYTES_MAX: u64 = 8 << 30;
/// Longest wait for the bus at the end.
const CLOSE_MAX: Duration = Duration::from_secs(90);

/// Sends `per_second` records a second, and prints the number after each round that the buffer has accepted. Stops at the end
/// of the input, and prints the number of records that remain on disk.
pub(crate) async fn send(
    url: &str,
    topic: TopicName,
    folder: &str,
    first: u64,
    per_second: u32,
) -> Result<(), Failure> {
    let runtime = Runtime::real();
    // The program also starts while the broker is away.
    let bus = KafkaBus::new(runtime.clone(), KafkaUrl::parse(url)?)?;
    let options = BufferOptions { bytes_max: BUFFER_BYTES_MAX, ..BufferOptions::new(folder) };
    let producer = BufferedProducer::open(&runtime, &bus, options).await?;
    let (mut input, mut rest) = (tokio::io::stdin(), Vec::new());
    let mut stopped = std::pin::pin!(input.read_to_end(&mut rest));
    let (began, mut next) = (runtime.monotonic(), first);
    loop {
        let round = async {
            let batch = |call: u64| {
                let first = next + call * BATCH;
                producer.send((first..first + BATCH).map(|number| record(&topic, number)).collect())
            };
            let outcomes = join_all((0..CALLS).map(batch)).await;
            outcomes.into_iter().flatten().try_for_each(|outcome| outcome.map(drop))
        };
        tokio::select! {
            biased;
            accepted = round => accepted?,
            _ = &mut stopped => break,
        }
        next += CALLS * BATCH;
        println!("{next}");
        runtime.sleep_until(began + Duration::from_secs_f64((next - first) as f64 / f64::from(per_second))).await;
    }
    println!("remaining {}", producer.close(CLOSE_MAX).await);
    Ok(())
}

fn record(topic: &TopicName, number: u64) -> NewRecord {
    let (key, mut value) = ((number % KEYS).to_string(), number.to_le_bytes().to_vec());
    value.resize(RECORD_BYTES - key.len(), 0);
    NewRecord::new(topic, key, value)
}

/// Reads all records of the topic. Prints the number of accepted records that are missing, of repeated records, of first
/// copies that are not in the order of their key, and of all records.
pub(crate) async fn check(url: &str, topic: TopicName, accepted: [Range<u64>; 2]) -> Result<(), Failure> {
    let bus = KafkaBus::open(Runtime::real(), KafkaUrl::parse(url)?).await?;
    let count: u64 = bus.describe_topic(&topic).await?.offsets.iter().map(|(_, end)| end.0).sum();
    let reader = bus.reader(&topic).await?;
    let (mut is_stored, mut newest) = (Vec::new(), BTreeMap::<Bytes, u64>::new());
    let (mut repeated, mut inverted, mut found) = (0, 0, 0);
    while found < count {
        for record in reader.next().await?.records {
            found += 1;
            let (Some(key), Some(value)) = (record.key, record.value) else { return Err("a record has no key".into()) };
            let number = value.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
            let number = number.ok_or("a record has no number")?;
            let at = usize::try_from(number)?;
            is_stored.resize(is_stored.len().max(at + 1), false);
            if std::mem::replace(&mut is_stored[at], true) {
                repeated += 1;
                continue;
            }
            let before = newest.insert(key, number);
            inverted += u64::from(before.is_some_and(|before| number < before));
        }
    }
    let is_lost = |number: &u64| usize::try_from(*number).is_ok_and(|at| is_stored.get(at) != Some(&true));
    let lost = accepted.into_iter().flatten().filter(is_lost).count();
    println!("{lost} {repeated} {inverted} {found}");
    Ok(())
}

//! Sends numbered records through a buffered producer, and prints the number after each batch that the buffer has accepted. The
//! program stops after a line of input: it waits for the bus for at most a minute, and prints the number of records that
//! remain on disk.
//!
//! ```text
//! buffered_numbers kafka://127.0.0.1:9092 FOLDER TOPIC FIRST [COUNT]
//! ```
//!
//! With COUNT, the program stops after so many records, and prints the number of accepted records per second.

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

use std::time::Duration;

use bus::{NewRecord, TopicName};
use bus_buffer::{BufferOptions, BufferedProducer};
use bus_kafka::{KafkaBus, KafkaUrl};
use futures_util::future::join_all;
use runtime::Runtime;
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Number of records in a call of the producer.
const BATCH: u64 = 100;
/// Number of calls at the same time, if the program measures its rate.
const CALLS: u64 = 100;
/// Number of keys.
const KEYS: u64 = 100;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, folder, topic, first, count) = match arguments.as_slice() {
        [url, folder, topic, first] => (url, folder, topic, first, None),
        [url, folder, topic, first, count] => (url, folder, topic, first, Some(count.parse::<u64>()?)),
        _ => return Err("usage: buffered_numbers URL FOLDER TOPIC FIRST [COUNT]".into()),
    };
    let (runtime, topic) = (Runtime::real(), TopicName::new(topic)?);
    // The program also starts while the brokers are away.
    let bus = KafkaBus::new(runtime.clone(), KafkaUrl::parse(url)?)?;
    let producer = BufferedProducer::open(&runtime, &bus, BufferOptions::new(folder)).await?;
    let batch = |first: u64| {
        let record = |number: u64| NewRecord::new(&topic, (number % KEYS).to_string(), number.to_string());
        producer.send((first..first + BATCH).map(record).collect())
    };
    let mut next: u64 = first.parse()?;
    match count {
        None => {
            let mut line = String::new();
            let mut input = BufReader::new(tokio::io::stdin());
            let mut stopped = std::pin::pin!(input.read_line(&mut line));
            loop {
                let sending = async {
                    let outcomes = batch(next).await;
                    runtime.sleep(Duration::from_millis(2)).await;
                    outcomes.into_iter().collect::<Result<Vec<_>, _>>()
                };
                tokio::select! {
                    accepted = sending => drop(accepted?),
                    _ = &mut stopped => break,
                }
                next += BATCH;
                println!("{next}");
            }
        }
        Some(count) => {
            let (began, end) = (runtime.monotonic(), next + count);
            while next < end {
                let calls = (0..CALLS).map(|call| batch(next + call * BATCH));
                for outcome in join_all(calls).await.into_iter().flatten() {
                    outcome?;
                }
                next += CALLS * BATCH;
            }
            let took = runtime.monotonic().since(began).as_secs_f64();
            println!("{:.0} records a second", count as f64 / took);
        }
    }
    println!("remaining {}", producer.close(Duration::from_secs(60)).await);
    Ok(())
}

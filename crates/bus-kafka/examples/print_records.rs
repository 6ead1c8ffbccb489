//! Joins a group, and prints `KEY VALUE` for each record of a topic. Records with the same key are printed in their
//! order. Start the program several times to share the partitions. It stops after a line of input.
//!
//! ```text
//! print_records kafka://127.0.0.1:9092 GROUP TOPIC
//! ```

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{ConsumerOptions, TopicName};
use bus_kafka::{KafkaBus, KafkaUrl};
use futures_util::future::BoxFuture;
use runtime::Runtime;
use tokio::io::{AsyncBufReadExt as _, BufReader};

struct Print;

impl Handler for Print {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let text = |bytes: &Option<bytes::Bytes>| {
                String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
            };
            let line = format!("{} {}\n", text(&delivery.record.key), text(&delivery.record.value));
            // The whole line reaches the reader at once, or not at all.
            std::io::stdout().lock().write_all(line.as_bytes()).map_err(HandlerError::retriable)
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, group, topic] = arguments.as_slice() else { return Err("usage: print_records URL GROUP TOPIC".into()) };
    let runtime = Runtime::real();
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?;
    let consumer = ConsumerOptions::new(group, vec![TopicName::new(topic)?]);
    let wait = Duration::from_millis(100);
    let retry = Retry::Blocking { first_wait: wait, wait_max: 10 * wait, calls_max: None };
    let options =
        ProcessorOptions { retry, records_max: 1_000, uncommitted_max: 1_000, ..ProcessorOptions::new(consumer) };
    let processor = Processor::start(&runtime, &bus, options, Arc::new(Print)).await?;
    println!("started");
    // The program stops after a line of input, or at the end of the input.
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    processor.stop().await?;
    Ok(())
}

//! Handles the records of the topic `orders`, the records of each key in their order, until Ctrl-C.
//!
//! ```sh
//! cargo run -p bus-kafka --example billing -- kafka://127.0.0.1:9092
//! ```

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

// [example]
use std::sync::Arc;
use std::time::Duration;

use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{Bus as _, ConsumerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use futures_util::future::BoxFuture;
use runtime::Runtime;

struct Billing;

impl Handler for Billing {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let value =
                delivery.record.value.as_ref().ok_or_else(|| HandlerError::not_retriable("the order is empty"))?;
            // Write the invoice here. Use the position of the record to recognise a repeated call.
            println!("{}: {} bytes", delivery.origin(), value.len());
            Ok(())
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (runtime, orders) = (Runtime::real(), TopicName::new("orders")?);
    let url = std::env::args().nth(1).unwrap_or("kafka://127.0.0.1:9092".to_owned());
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&url)?).await?;
    if bus.describe_topic(&orders).await.is_err() {
        bus.create_topic(&orders, TopicOptions::with_partitions(12)).await?;
    }
    let second = Duration::from_secs(1);
    let options = ProcessorOptions {
        // First, only the key of a failing order waits. After ten calls, the order waits in a retry topic without its key.
        retry: Retry::Blocking { first_wait: second, wait_max: 60 * second, calls_max: Some(10) },
        retry_waits: vec![600 * second],
        dead_letters: Some(TopicName::new("orders-dead")?),
        control: Some(TopicName::new("orders-control")?),
        ..ProcessorOptions::new(ConsumerOptions::new("billing", vec![orders]))
    };
    let processor = Processor::start(&runtime, &bus, options, Arc::new(Billing)).await?;
    tokio::signal::ctrl_c().await?;
    Ok(processor.stop().await?)
}
// [end]

//! Process of a contestant in Rust. It prints the same lines as the contestants in Java (`tools/kafka-java/README.md`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions};
use bus::{ConsumerOptions, TopicName};
use bus_kafka::{KafkaBus, KafkaUrl};
use cli_support::console;
use domain::Timestamp;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::{ClientConfig, Message as _};
use runtime::{Monotonic, Runtime};
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use super::clock::WallClock;
use super::{ContestantArguments, Name, Part};
use crate::load::{latencies, micros};

/// Duration of a call of the slow handler. A timer of tokio may take a millisecond longer.
const SLOW: Duration = Duration::from_millis(1);

/// # Errors
/// Returns an error if the consumer fails.
pub(super) async fn run(runtime: &Runtime, arguments: &ContestantArguments) -> anyhow::Result<()> {
    let meter = Arc::new(Meter::new(runtime, arguments));
    match arguments.name {
        Name::Rdkafka => with_rdkafka(arguments, &meter).await,
        Name::Reveille => with_processor(runtime, arguments, &meter).await,
        Name::Java | Name::Parallel => bail!("only the Java program runs this contestant; see tools/kafka-java"),
    }
}

/// Handles one record after the other. librdkafka commits the stored offsets by itself.
async fn with_rdkafka(arguments: &ContestantArguments, meter: &Meter) -> anyhow::Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &arguments.brokers).set("group.id", &arguments.group);
    config.set("auto.offset.reset", "earliest").set("enable.auto.offset.store", "false");
    let consumer: StreamConsumer = config.create()?;
    consumer.subscribe(&[&arguments.topic])?;
    while meter.took.get().is_none() {
        let message = consumer.recv().await?;
        let time = message.timestamp().to_millis().context("a record has no time")?;
        meter.count(Timestamp::from_millis(time)).await?;
        consumer.store_offset_from_message(&message)?;
    }
    meter.report().await
}

async fn with_processor(runtime: &Runtime, arguments: &ContestantArguments, meter: &Arc<Meter>) -> anyhow::Result<()> {
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&format!("kafka://{}", arguments.brokers))?).await?;
    let consumer = ConsumerOptions::new(&arguments.group, vec![TopicName::new(&arguments.topic)?]);
    let options = ProcessorOptions { concurrency: arguments.concurrency, ..ProcessorOptions::new(consumer) };
    let processor = Processor::start(runtime, &bus, options, meter.clone()).await?;
    meter.over.cancelled().await;
    meter.report().await?;
    Ok(processor.stop().await?)
}

/// Handler that counts the records and measures them.
struct Meter {
    runtime: Runtime,
    clock: WallClock,
    part: Part,
    records: u64,
    warm_up: u64,
    handled: AtomicU64,
    /// Sum of the durations of the slow handler's calls.
    handler_micros: AtomicU64,
    latency: Mutex<Histogram<u64>>,
    /// End of the warm-up.
    began: OnceLock<Monotonic>,
    /// Time from the end of the warm-up to the end of the last record.
    took: OnceLock<Duration>,
    over: CancellationToken,
}

impl Meter {
    fn new(runtime: &Runtime, arguments: &ContestantArguments) -> Self {
        Meter {
            runtime: runtime.clone(),
            clock: WallClock::new(runtime),
            part: arguments.part,
            records: arguments.records,
            warm_up: arguments.warm_up,
            handled: AtomicU64::new(0),
            handler_micros: AtomicU64::new(0),
            latency: Mutex::new(latencies()),
            began: OnceLock::new(),
            took: OnceLock::new(),
            over: CancellationToken::new(),
        }
    }

    async fn count(&self, sent: Timestamp) -> anyhow::Result<()> {
        match self.part {
            Part::Empty => {}
            Part::Slow => {
                let before = self.runtime.monotonic();
                self.runtime.sleep(SLOW).await;
                self.handler_micros.fetch_add(micros(self.runtime.monotonic().since(before)), Ordering::Relaxed);
            }
            Part::Latency if self.began.get().is_some() => {
                let latency = micros(self.clock.since(sent));
                self.latency.lock().expect("no code panics while it holds this mutex").saturating_record(latency);
            }
            Part::Latency => {}
        }
        let handled = self.handled.fetch_add(1, Ordering::Relaxed) + 1;
        if handled == 1 {
            console::line("first")?;
        }
        if handled == self.warm_up {
            _ = self.began.set(self.runtime.monotonic());
            console::line("warm")?;
        }
        if handled == self.records {
            let began = self.began.get().context("the number of records is not above the warm-up")?;
            _ = self.took.set(self.runtime.monotonic().since(*began));
            self.over.cancel();
        }
        Ok(())
    }

    /// Prints the results, and waits until the bench has read the processor time of this process.
    async fn report(&self) -> anyhow::Result<()> {
        let took = micros(*self.took.get().context("the contestant has not handled all records")?);
        let handler = self.handler_micros.load(Ordering::Relaxed) / self.records.max(1);
        let (p50, p99) = {
            let latency = self.latency.lock().expect("no code panics while it holds this mutex");
            (latency.value_at_quantile(0.5), latency.value_at_quantile(0.99))
        };
        console::line(&format!("finished {took} {handler} {p50} {p99}"))?;
        tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
        Ok(())
    }
}

impl Handler for Meter {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move { self.count(delivery.record.timestamp).await.map_err(HandlerError::not_retriable) }.boxed()
    }
}

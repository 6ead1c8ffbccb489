//! Member of the group. It logs its assignments and commits, and its handler logs each record.

use std::sync::Arc;
use std::time::Duration;

use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{
    Answer, Bus, Capabilities, Commit, Committed, Consumer, ConsumerOptions, Event, Offset, Partition, Producer,
    ProducerOptions, Reader, TopicDescription, TopicName, TopicOptions,
};
use bus_kafka::{KafkaBus, KafkaUrl};
use futures_util::future::BoxFuture;
use runtime::Runtime;
use tokio::io::AsyncReadExt as _;

use crate::Failure;
use crate::log::{Log, now};
use crate::producer::parts;

const RETRY_WAIT: Duration = Duration::from_millis(200);
/// Longest time of most calls of the handler.
const USUAL_MILLIS: u64 = 20;
/// Time of a few calls. Many later records of the partition finish in this time.
const SLOW: Duration = Duration::from_millis(500);
const SLOW_ONE_OF: u64 = 1_000;

/// Runs until the end of the input.
pub(crate) async fn run(runtime: &Runtime, url: KafkaUrl, topic: TopicName, log: &str) -> Result<(), Failure> {
    let log = Arc::new(Log::create(log)?);
    let consumer = ConsumerOptions::new("chaos", vec![topic]);
    let retry = Retry::Blocking { first_wait: RETRY_WAIT, wait_max: RETRY_WAIT, calls_max: None };
    let options = ProcessorOptions { retry, ..ProcessorOptions::new(consumer) };
    let (_bus, processor) = loop {
        match start(runtime, &url, &options, &log).await {
            Ok(started) => break started,
            // Brokers may be restarting.
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            Err(error) => return Err(error.into()),
        }
    };
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(processor.stop().await?)
}

async fn start(
    runtime: &Runtime,
    url: &KafkaUrl,
    options: &ProcessorOptions,
    log: &Arc<Log>,
) -> Result<(Logged<KafkaBus>, Processor), bus::BusError> {
    let bus = Logged { inner: KafkaBus::open(runtime.clone(), url.clone()).await?, log: log.clone() };
    let handler = Arc::new(Write { runtime: runtime.clone(), log: log.clone() });
    let processor = Processor::start(runtime, &bus, options.clone(), handler).await?;
    Ok((bus, processor))
}

struct Write {
    runtime: Runtime,
    log: Arc<Log>,
}

impl Handler for Write {
    fn handle(&self, Delivery { partition, record, .. }: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let start = now();
            let parts = parts(&record).ok_or_else(|| HandlerError::retriable("the record has no number"))?;
            self.runtime.sleep(duration(record.offset)).await;
            self.log.handled(&partition, record.offset, parts, start).map_err(HandlerError::retriable)
        })
    }
}

/// Returns the time of a call, which differs between records.
fn duration(offset: Offset) -> Duration {
    // The multiplier of Fibonacci hashing (Knuth, TAOCP volume 3, section 6.4).
    let mixed = offset.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if mixed.is_multiple_of(SLOW_ONE_OF) { SLOW } else { Duration::from_millis(mixed % USUAL_MILLIS) }
}

/// Bus or consumer whose assignments and commits are in the log.
struct Logged<T> {
    log: Arc<Log>,
    inner: T,
}

impl Bus for Logged<KafkaBus> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.inner.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.inner.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.inner.grow_topic(topic, partitions)
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        self.inner.producer(options)
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.inner.reader(topic)
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        Box::pin(async move {
            let inner = self.inner.consumer(options).await?;
            Ok(Arc::new(Logged { inner, log: self.log.clone() }) as Arc<dyn Consumer>)
        })
    }
}

impl Consumer for Logged<Arc<dyn Consumer>> {
    fn next(&self) -> Answer<'_, Event> {
        Box::pin(async move {
            let event = self.inner.next().await?;
            if let Event::Assigned(assigned) = &event {
                for one in assigned {
                    let first = Committed { offset: one.position, metadata: String::new() };
                    let committed = one.committed.as_ref().unwrap_or(&first);
                    self.log.assigned(&one.partition, committed).expect("the disk has space for the log");
                }
            }
            Ok(event)
        })
    }

    fn commit(&self, commits: Vec<Commit>) -> Answer<'_, ()> {
        Box::pin(async move {
            let start = now();
            self.inner.commit(commits.clone()).await?;
            self.log.committed(&commits, start).expect("the disk has space for the log");
            Ok(())
        })
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        self.inner.seek(partition, offset);
    }

    fn pause(&self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

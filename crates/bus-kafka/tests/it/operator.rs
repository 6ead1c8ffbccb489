//! Test of an operator's commands on a real broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bus::processor::{Delivery, Handler, HandlerError, Operator, Processor, ProcessorOptions, Retry};
use bus::{Bus as _, ConsumerOptions, NewRecord, ProducerOptions, TopicName};
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::groups::{new_topic, open};

/// Handler that fails for each record except `good`.
#[derive(Default)]
struct Picky {
    good: AtomicUsize,
    failed: AtomicUsize,
}

impl Handler for Picky {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        let is_good = delivery.record.value.as_deref() == Some(b"good");
        let count = if is_good { &self.good } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let outcome = if is_good { Ok(()) } else { Err(HandlerError::retriable("no route")) };
        Box::pin(std::future::ready(outcome))
    }
}

async fn until(runtime: &Runtime, event: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(runtime.timeout(Duration::from_secs(30), waiting).await.is_some(), "timed out waiting until {event}");
}

#[tokio::test]
async fn operator_lists_and_skips_blocked_records() {
    let (runtime, bus) = (Runtime::real(), Arc::new(open("").await));
    let topic = new_topic(&bus, 1).await;
    let control = TopicName::new(&format!("{topic}-control")).unwrap();
    let wait = Duration::from_secs(3_600);
    let options = ProcessorOptions {
        retry: Retry::Blocking { first_wait: wait, wait_max: wait, calls_max: None },
        control: Some(control.clone()),
        commit_interval: Duration::from_millis(100),
        ..ProcessorOptions::new(ConsumerOptions::new(topic.as_str(), vec![topic.clone()]))
    };
    let handler = Arc::new(Picky::default());
    let processor = Processor::start(&runtime, &*bus, options.clone(), handler.clone()).await.unwrap();
    let producer = bus.producer(ProducerOptions::default()).await.unwrap();
    let records = ["bad", "good", "bad", "good"].map(|value| NewRecord::new(&topic, "ann", value));
    assert!(producer.send(records.to_vec()).await.iter().all(Result::is_ok));

    let mut operator = Operator::open(&runtime, bus.clone(), &control).await.unwrap();
    until(&runtime, "the first record is blocked", async || operator.blocked().await.unwrap().len() == 1).await;
    let blocked = operator.blocked().await.unwrap().remove(0);
    assert_eq!(blocked.position.to_string(), format!("{topic}/0/0"));
    assert_eq!((blocked.key.as_deref(), blocked.calls, &*blocked.reason), (Some(&b"ann"[..]), 1, "no route"));
    operator.skip(&blocked.position).await.unwrap();
    until(&runtime, "the next record is handled", async || handler.good.load(Ordering::Relaxed) == 1).await;
    processor.stop().await.unwrap();

    // The next owner reads the list and the commands from the topic.
    operator.skip_all(&topic).await.unwrap();
    let next = Processor::start(&runtime, &*bus, options, handler.clone()).await.unwrap();
    until(&runtime, "all records are handled", async || handler.good.load(Ordering::Relaxed) == 2).await;
    until(&runtime, "the list is empty", async || operator.blocked().await.unwrap().is_empty()).await;
    assert_eq!(operator.skipped_topics().await.unwrap(), vec![topic.clone()]);
    operator.resume(&topic).await.unwrap();
    assert_eq!(operator.skipped_topics().await.unwrap(), []);
    next.stop().await.unwrap();
}

//! Test of retry topics and dead letters on a real broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bus::processor::{CALLS_HEADER, Delivery, Handler, HandlerError, ORIGIN_HEADER, Processor, ProcessorOptions};
use bus::{Bus as _, ConsumerOptions, Event, NewRecord, ProducerOptions, Record, TopicName};
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::groups::{new_topic, open};

/// Handler that always fails.
#[derive(Default)]
struct Failing(AtomicUsize);

impl Handler for Failing {
    fn handle(&self, _: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Err(HandlerError::retriable("not yet"))))
    }
}

#[tokio::test]
async fn failing_record_passes_the_retry_topic_and_becomes_a_dead_letter() {
    let (runtime, bus) = (Runtime::real(), open("").await);
    let topic = new_topic(&bus, 3).await;
    let dead = TopicName::new(&format!("{topic}-dead")).unwrap();
    let wait = Duration::from_secs(1);
    let options = ProcessorOptions {
        retry_waits: vec![wait],
        dead_letters: Some(dead.clone()),
        ..ProcessorOptions::new(ConsumerOptions::new("billing", vec![topic.clone()]))
    };
    let handler = Arc::new(Failing::default());
    let processor = Processor::start(&runtime, &bus, options, handler.clone()).await.unwrap();
    let retry_topic = TopicName::new(&format!("{topic}-billing-retry-0")).unwrap();
    assert_eq!(bus.describe_topic(&retry_topic).await.unwrap().offsets.len(), 3);
    let producer = bus.producer(ProducerOptions::default()).await.unwrap();
    let began = runtime.monotonic();
    let sent = producer.send(vec![NewRecord::new(&topic, "key", "value")]).await.remove(0).unwrap();

    let reader = bus.consumer(ConsumerOptions::new(dead.as_str(), vec![dead.clone()])).await.unwrap();
    let letter = async {
        loop {
            if let Event::Records(batch) = reader.next().await.unwrap() {
                return batch.records[0].clone();
            }
        }
    };
    let letter: Record = runtime.timeout(Duration::from_secs(30), letter).await.expect("the dead letter arrives");
    assert!(runtime.monotonic().since(began) >= wait, "the record did not wait in its retry topic");
    assert_eq!(handler.0.load(Ordering::Relaxed), 2);
    let header = |name: &str| {
        let header = letter.headers.iter().find(|header| header.name == name).unwrap();
        String::from_utf8(header.value.as_ref().unwrap().to_vec()).unwrap()
    };
    assert_eq!(header(ORIGIN_HEADER), format!("{topic}/{}/{}", sent.partition.index, sent.offset));
    assert_eq!((header(CALLS_HEADER).as_str(), letter.value.as_deref()), ("2", Some(&b"value"[..])));
    processor.stop().await.unwrap();
    reader.close().await.unwrap();
}

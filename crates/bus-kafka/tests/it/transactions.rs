//! Tests of the functions for operators with transactions, which the port `bus` does not contain.

use std::time::Duration;

use bus::{Admin as _, Bus as _, Offset};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use runtime::Runtime;
use test_servers::kafka::shared;

use crate::groups::{new_topic, open};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn open_transaction_is_stored_but_has_no_readable_record() {
    let bus = open("").await;
    let topic = new_topic(&bus, 1).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", shared().addresses()).set("transactional.id", topic.as_str());
    let producer: BaseProducer = config.create().unwrap();
    // The calls of the producer block.
    let send = |count: u64| {
        tokio::task::block_in_place(|| {
            producer.begin_transaction().unwrap();
            for _ in 0..count {
                producer.send(BaseRecord::to(topic.as_str()).key("ann").payload("1").partition(0)).unwrap();
            }
            producer.flush(LIMIT).unwrap();
        })
    };
    let ends = async || {
        let readable = bus.describe_topic(&topic).await.unwrap().offsets[0].1;
        (readable.0, bus.stored_ends(&topic).await.unwrap()[0].0)
    };
    let has_records = async |from: u64| bus.has_records(&topic, &[Offset(from)]).await.unwrap();
    tokio::task::block_in_place(|| producer.init_transactions(LIMIT).unwrap());

    send(3);
    assert_eq!(ends().await, (0, 3));
    // The coordinator of the transaction writes the mark after it has responded to the producer.
    let until_ends = async |expected: (u64, u64)| {
        let waiting = async {
            while ends().await != expected {
                Runtime::real().sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = Runtime::real().timeout(LIMIT, waiting).await;
        assert!(ended.is_some(), "the ends are {:?} and not {expected:?}", ends().await);
    };
    assert!(!has_records(0).await);
    tokio::task::block_in_place(|| producer.commit_transaction(LIMIT).unwrap());
    // The mark of the transaction has the offset 3.
    until_ends((4, 4)).await;
    assert_eq!([has_records(0).await, has_records(2).await, has_records(3).await], [true, true, false]);

    send(2);
    tokio::task::block_in_place(|| producer.abort_transaction(LIMIT).unwrap());
    until_ends((7, 7)).await;
    assert_eq!([has_records(2).await, has_records(3).await], [true, false]);
}

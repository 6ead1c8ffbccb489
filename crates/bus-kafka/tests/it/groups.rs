//! Tests of groups and topics that the conformance suite does not contain.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::{Bus as _, BusError, Consumer, ConsumerOptions, Event, Partition, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;
use test_servers::kafka::shared;

pub(crate) async fn open(parameters: &str) -> KafkaBus {
    let url = KafkaUrl::parse(&format!("kafka://{}{parameters}", shared().addresses())).unwrap();
    KafkaBus::open(Runtime::real(), url).await.unwrap()
}

pub(crate) async fn new_topic(bus: &KafkaBus, partitions: u32) -> TopicName {
    let topic = TopicName::new(&format!("groups-{:x}", Runtime::real().random())).unwrap();
    bus.create_topic(&topic, TopicOptions::with_partitions(partitions)).await.unwrap();
    topic
}

/// Handles events until the consumer owns `count` partitions. Releases revoked partitions at once. Returns all partitions
/// that the group revoked.
pub(crate) async fn until_owns(
    consumer: &dyn Consumer,
    owned: &mut BTreeSet<Partition>,
    count: usize,
) -> BTreeSet<Partition> {
    let mut revoked = BTreeSet::new();
    while owned.len() != count {
        match consumer.next().await.unwrap() {
            Event::Assigned(assigned) => owned.extend(assigned.into_iter().map(|one| one.partition)),
            Event::Revoked(revocation) => {
                owned.retain(|one| !revocation.partitions().contains(one));
                revoked.extend(revocation.partitions().iter().cloned());
                revocation.release();
            }
            Event::Lost(lost) => panic!("the consumer lost {lost:?}"),
            Event::Records(_) => {}
        }
    }
    revoked
}

async fn partitions_that_a_second_member_revokes(parameters: &str) -> usize {
    let bus = open(parameters).await;
    let topic = new_topic(&bus, 4).await;
    let options = ConsumerOptions::new(topic.as_str(), vec![topic.clone()]);
    let first = bus.consumer(options.clone()).await.unwrap();
    let (mut owned, mut others) = (BTreeSet::new(), BTreeSet::new());
    until_owns(&*first, &mut owned, 4).await;
    let second = bus.consumer(options).await.unwrap();
    let shared = async { tokio::join!(until_owns(&*first, &mut owned, 2), until_owns(&*second, &mut others, 2)) };
    let shared = Runtime::real().timeout(Duration::from_secs(30), shared).await;
    let (revoked, _) = shared.expect("the members share the partitions");
    assert!(owned.is_disjoint(&others));
    first.close().await.unwrap();
    second.close().await.unwrap();
    revoked.len()
}

#[tokio::test]
async fn assignor_determines_the_revoked_partitions() {
    assert_eq!(partitions_that_a_second_member_revokes("").await, 2);
    assert_eq!(partitions_that_a_second_member_revokes("?assignor=range").await, 4);
}

#[tokio::test]
async fn consumer_reports_options_that_the_broker_rejects() {
    let bus = open("").await;
    let topic = new_topic(&bus, 1).await;
    let options = ConsumerOptions::new(topic.as_str(), vec![topic.clone()]);
    // The broker of the tests accepts no shorter session than 100 ms.
    let short = ConsumerOptions { session_timeout: Duration::from_millis(50), ..options.clone() };
    let consumer = bus.consumer(short).await.unwrap();
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(&error, BusError::Invalid(text) if text.contains("session timeout")), "{error}");
    consumer.close().await.unwrap();

    for invalid in [
        ConsumerOptions { topics: Vec::new(), ..options.clone() },
        ConsumerOptions { group: String::new(), ..options.clone() },
        ConsumerOptions { session_timeout: Duration::ZERO, ..options.clone() },
        ConsumerOptions { batch_records_max: 0, ..options.clone() },
    ] {
        let error = bus.consumer(invalid).await.err().expect("the options are invalid");
        assert!(matches!(error, BusError::Invalid(_)), "{error}");
    }
}

/// librdkafka measures the session from the last response, and the broker measures it from the last request. The engine
/// must therefore not rely on librdkafka.
#[tokio::test(flavor = "multi_thread")]
async fn member_whose_responses_are_late_loses_its_partition_before_it_moves() {
    let (runtime, bus) = (Runtime::real(), open("").await);
    let topic = new_topic(&bus, 1).await;
    let session_timeout = Duration::from_secs(4);
    let options = ConsumerOptions { session_timeout, ..ConsumerOptions::new(topic.as_str(), vec![topic.clone()]) };
    let door = tokio::task::block_in_place(|| shared().door());
    let url = KafkaUrl::parse(&format!("kafka://{}", door.address())).unwrap();
    let remote = KafkaBus::open(runtime.clone(), url).await.unwrap();
    let first = remote.consumer(options.clone()).await.unwrap();
    until_owns(&*first, &mut BTreeSet::new(), 1).await;
    let second = bus.consumer(options).await.unwrap();
    // The second member joins, and it waits for a partition.
    assert!(runtime.timeout(session_timeout / 2, second.next()).await.is_none(), "the second member has an event");
    door.hold_answers();
    runtime.sleep(session_timeout * 3 / 4).await;
    door.deliver_late();
    let mut owned = BTreeSet::new();
    tokio::select! {
        biased;
        event = first.next() => assert!(matches!(event, Ok(Event::Lost(_))), "{event:?}"),
        _ = until_owns(&*second, &mut owned, 1) => panic!("the partition moved before its owner lost it"),
    }
    let moved = runtime.timeout(2 * session_timeout, until_owns(&*second, &mut owned, 1)).await;
    assert!(moved.is_some(), "the partition moves");
    drop(door);
    first.close().await.unwrap();
    second.close().await.unwrap();
}

/// While the group waits for a member that has died, the broker answers no commit of the others. The proof of a member
/// with a shorter session ends, but the group keeps its partitions.
#[tokio::test(flavor = "multi_thread")]
async fn member_that_the_group_has_kept_owns_its_partitions_again() {
    let (runtime, bus) = (Runtime::real(), open("").await);
    let topic = new_topic(&bus, 3).await;
    let session = Duration::from_secs(3);
    let options = |session_timeout| ConsumerOptions {
        session_timeout,
        ..ConsumerOptions::new(topic.as_str(), vec![topic.clone()])
    };
    let (first, mut owned) = (bus.consumer(options(session)).await.unwrap(), BTreeSet::new());
    until_owns(&*first, &mut owned, 3).await;
    let door = tokio::task::block_in_place(|| shared().door());
    let url = KafkaUrl::parse(&format!("kafka://{}", door.address())).unwrap();
    let dying = KafkaBus::open(runtime.clone(), url).await.unwrap().consumer(options(3 * session)).await.unwrap();
    let mut others = BTreeSet::new();
    let shared = async { tokio::join!(until_owns(&*first, &mut owned, 2), until_owns(&*dying, &mut others, 1)) };
    runtime.timeout(5 * session, shared).await.expect("the members share the partitions");
    door.cut(true);
    let last = bus.consumer(options(session)).await.unwrap();
    let lost = runtime.timeout(2 * session, first.next()).await.expect("the proof ends");
    let Ok(Event::Lost(lost)) = lost else { panic!("{lost:?}") };
    owned.retain(|partition| !lost.contains(partition));
    assert!(owned.is_empty(), "{owned:?}");
    let mut others = BTreeSet::new();
    let shared = async { tokio::join!(until_owns(&*first, &mut owned, 2), until_owns(&*last, &mut others, 1)) };
    runtime.timeout(5 * session, shared).await.expect("the members own all partitions");
    assert!(owned.is_disjoint(&others), "{owned:?} and {others:?}");
    for consumer in [first, last] {
        consumer.close().await.unwrap();
    }
}

/// librdkafka waits for the answer to a revocation, also while it leaves the group.
#[tokio::test]
async fn consumer_that_holds_a_revoked_partition_can_be_closed_and_dropped() {
    for is_closed in [true, false] {
        let (runtime, bus) = (Runtime::real(), open("").await);
        let topic = new_topic(&bus, 2).await;
        let options = ConsumerOptions::new(topic.as_str(), vec![topic.clone()]);
        let first = bus.consumer(options.clone()).await.unwrap();
        until_owns(&*first, &mut BTreeSet::new(), 2).await;
        let second = bus.consumer(options.clone()).await.unwrap();
        let revocation = loop {
            if let Event::Revoked(revocation) = first.next().await.unwrap() {
                break revocation;
            }
        };
        let began = runtime.monotonic();
        if is_closed {
            first.close().await.unwrap();
        }
        drop(first);
        until_owns(&*second, &mut BTreeSet::new(), 2).await;
        let took = runtime.monotonic().since(began);
        assert!(took < options.session_timeout, "the partitions moved after {took:?}");
        drop(revocation);
        second.close().await.unwrap();
    }
}

/// A member that keeps its session must keep its partitions, even if its commits are late, and a member whose proof ends
/// must own its partitions again.
#[tokio::test]
async fn idle_member_keeps_its_partition_for_many_session_timeouts() {
    let bus = open("").await;
    let topic = new_topic(&bus, 1).await;
    let session_timeout = Duration::from_secs(1);
    let options = ConsumerOptions { session_timeout, ..ConsumerOptions::new(topic.as_str(), vec![topic.clone()]) };
    let consumer = bus.consumer(options).await.unwrap();
    let mut owned = BTreeSet::new();
    until_owns(&*consumer, &mut owned, 1).await;
    let event = Runtime::real().timeout(5 * session_timeout, consumer.next()).await;
    assert!(event.is_none(), "{event:?}");
    consumer.close().await.unwrap();
}

#[tokio::test]
async fn topic_can_be_compacted_and_replicated_only_as_far_as_there_are_brokers() {
    let bus = open("").await;
    let topic = new_topic(&bus, 1).await;
    let options = TopicOptions { replicas: Some(3), ..TopicOptions::with_partitions(1) };
    let other = TopicName::new(&format!("{topic}-other")).unwrap();
    let error = bus.create_topic(&other, options).await.unwrap_err().to_string();
    assert!(error.contains("replication factor"), "{error}");
    let compacted = TopicOptions { is_compacted: true, ..TopicOptions::with_partitions(1) };
    bus.create_topic(&other, compacted).await.unwrap();
    assert_eq!(bus.describe_topic(&other).await.unwrap().replicas, 1);
}

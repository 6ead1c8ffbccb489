//! Test of the functions for operators on a cluster.

use std::time::Duration;

use bus::{Admin as _, Bus as _, Commit, Committed, ConsumerOptions, Event, Offset, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;
use test_servers::kafka::Kafka;

/// Number of groups. Each broker coordinates some of them.
const GROUPS: usize = 6;
/// Longest wait until a group is described.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn groups_are_described_after_their_coordinator_failed() {
    let runtime = Runtime::real();
    let cluster = tokio::task::block_in_place(|| Kafka::start(3).unwrap());
    let url = KafkaUrl::parse(&format!("kafka://{}", cluster.addresses())).unwrap();
    let bus = KafkaBus::open(runtime.clone(), url).await.unwrap();
    let topic = TopicName::new("orders").unwrap();
    let options = TopicOptions { replicas: Some(3), ..TopicOptions::with_partitions(1) };
    bus.create_topic(&topic, options).await.unwrap();
    let groups: Vec<String> = (0..GROUPS).map(|at| format!("group-{at}")).collect();
    for group in &groups {
        let consumer = bus.consumer(ConsumerOptions::new(group, vec![topic.clone()])).await.unwrap();
        let partition = loop {
            if let Event::Assigned(mut assigned) = consumer.next().await.unwrap() {
                break assigned.remove(0).partition;
            }
        };
        let committed = Committed { offset: Offset(0), metadata: group.clone() };
        consumer.commit(vec![Commit { partition, committed }]).await.unwrap();
        consumer.close().await.unwrap();
    }
    // A closed member may still be in its group for a moment, and a new coordinator may not know the group yet.
    let check = async || {
        for group in &groups {
            let described = async {
                loop {
                    let described = bus.describe_group(group).await;
                    let is_right = described.as_ref().is_ok_and(|described| {
                        let metadata = described.committed.values().map(|one| one.metadata.as_str());
                        described.members.is_empty() && metadata.eq([group.as_str()])
                    });
                    if is_right {
                        return;
                    }
                    assert!(described.err().is_none_or(|error| error.is_retryable()), "{group} cannot be described");
                    runtime.sleep(Duration::from_millis(100)).await;
                }
            };
            assert!(runtime.timeout(LIMIT, described).await.is_some(), "{group} is not described within {LIMIT:?}");
        }
    };
    check().await;
    tokio::task::block_in_place(|| cluster.kill(2).unwrap());
    // The brokers notice the failure after 3 s, and select other coordinators.
    runtime.sleep(Duration::from_secs(5)).await;
    check().await;
    assert_eq!(bus.groups().await.unwrap(), groups);
}

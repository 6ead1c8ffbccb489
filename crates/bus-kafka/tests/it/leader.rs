//! Tests of the election of a leader by a topic on a real broker.

use std::sync::Arc;
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions};
use bus::{Bus as _, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;
use test_servers::kafka::{Door, shared};

use crate::groups::open;

const SESSION: Duration = Duration::from_secs(3);

/// Creates a topic for leaders, and opens two candidates. Each of them has its own connection.
async fn candidates(runtime: &Runtime) -> [(LeaderCandidate, Door); 2] {
    let topic = TopicName::new(&format!("leaders-{:x}", runtime.random())).unwrap();
    open("").await.create_topic(&topic, TopicOptions::with_partitions(1)).await.unwrap();
    let candidate = async |name| {
        let door = tokio::task::block_in_place(|| shared().door());
        let url = KafkaUrl::parse(&format!("kafka://{}", door.address())).unwrap();
        let bus = Arc::new(KafkaBus::open(runtime.clone(), url).await.unwrap());
        let (margin, grace) = (SESSION / 10, SESSION / 3);
        let options = LeaderOptions {
            session_timeout: SESSION,
            margin,
            grace,
            ..LeaderOptions::new(topic.clone(), topic.as_str(), name)
        };
        (LeaderCandidate::open(runtime, bus, options).await.unwrap(), door)
    };
    [candidate("a").await, candidate("b").await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn released_leadership_passes_to_the_next_candidate() {
    let runtime = Runtime::real();
    let [(first, _first_door), (second, _second_door)] = candidates(&runtime).await;
    let mut leadership = first.lead().await.unwrap();
    for (turn, next) in [&second, &first, &second].into_iter().enumerate() {
        let following = async {
            let following =
                runtime.timeout(SESSION * 10, next.lead()).await.expect("the next candidate leads").unwrap();
            (runtime.monotonic(), following)
        };
        let releasing = async {
            // The next candidate joins the group first.
            runtime.sleep(SESSION * 2).await;
            let leading = leadership.leading();
            assert!(leading.is_valid(), "the leader lost its leadership without a fault, turn {turn}");
            let began = runtime.monotonic();
            leadership.release().await;
            (leading, began)
        };
        let ((began, following), (leading, released)) = tokio::join!(following, releasing);
        assert!(!leading.is_valid() && following.leading().is_valid());
        assert!(following.leading().term > leading.term);
        assert!(began.since(released) < SESSION, "the hand-over took {:?}", began.since(released));
        leadership = following;
    }
    leadership.release().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn leader_without_contact_ends_before_the_next_one_begins() {
    let runtime = Runtime::real();
    let [(first, first_door), (second, _second_door)] = candidates(&runtime).await;
    let leadership = first.lead().await.unwrap();
    let leading = leadership.leading();
    let following = async {
        let next = runtime.timeout(SESSION * 10, second.lead()).await.expect("the next candidate leads").unwrap();
        (runtime.monotonic(), next)
    };
    let cutting = async {
        runtime.sleep(SESSION).await;
        let cut = runtime.monotonic();
        first_door.cut(true);
        leading.over.cancelled().await;
        (cut, runtime.monotonic())
    };
    let ((began, next), (cut, ended)) = tokio::join!(following, cutting);
    assert!(ended < began, "two leaders at the same time");
    assert!(ended.since(cut) <= SESSION, "the leader ended {:?} after the cut", ended.since(cut));
    assert!(began.since(cut) < SESSION * 4, "the next leader began {:?} after the cut", began.since(cut));
    assert!(next.leading().term > leading.term);
    first_door.cut(false);
    drop(leadership);
    next.release().await;
}

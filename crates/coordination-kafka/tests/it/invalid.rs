//! Tests of invalid arguments and topics.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, TopicOptions};
use coordination::recipes::Form;
use coordination::tree::NodePath;
use coordination::{Elector as _, ElectorError};
use coordination_connect::Options;
use coordination_kafka::{LEASE_LONGEST, LEASE_SHORTEST, OpenError, TopicElector, TopicElectorError, elector};
use runtime::Runtime;

fn group(path: &str) -> NodePath {
    NodePath::new(path).unwrap()
}

#[tokio::test]
async fn invalid_lease_and_topic_are_rejected() {
    let runtime = Runtime::real();
    let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
    let open = async |path: &str, lease| TopicElector::open(&runtime, bus.clone(), &group(path), lease).await;
    let millisecond = Duration::from_millis(1);
    for lease in [Duration::ZERO, LEASE_SHORTEST - millisecond, LEASE_LONGEST + millisecond] {
        let error = open("/jobs", lease).await.unwrap_err();
        assert_eq!(error, TopicElectorError::Lease(lease));
        assert!(error.to_string().contains("from 3 s to 15 minutes"), "{error}");
    }
    assert!(matches!(open("/a.b", LEASE_SHORTEST).await, Err(TopicElectorError::Group(_))));
    let topic = "reveille-elector.jobs".parse().unwrap();
    bus.create_topic(&topic, TopicOptions::with_partitions(2)).await.unwrap();
    let error = open("/jobs", LEASE_SHORTEST).await.unwrap_err();
    assert_eq!(error, TopicElectorError::Partitions { topic, partitions: 2 });
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn lease_above_the_longest_one_is_rejected() {
    let runtime = Runtime::real();
    let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
    let elector = TopicElector::open(&runtime, bus, &group("/jobs"), LEASE_SHORTEST).await.unwrap();
    let rejected = elector.is_leader("a", LEASE_SHORTEST * 2).await.unwrap_err();
    assert!(matches!(&rejected, ElectorError::Rejected(text) if text.contains("use at most 3s")), "{rejected}");
    assert!(elector.followers().await.unwrap().is_empty());
    assert!(elector.is_leader("a", LEASE_SHORTEST).await.unwrap().leads);
}

/// Returns the error of a URL that no server must answer.
async fn error_of(url: &str, form: Option<Form>) -> OpenError {
    let (runtime, options) = (Runtime::real(), Options::default());
    let opened = elector(&runtime, url, &group("/jobs"), LEASE_SHORTEST, form, &options).await;
    opened.err().expect("the URL is invalid")
}

#[tokio::test]
async fn invalid_url_is_rejected() {
    let error = error_of("kafka://ann:hunter2@db?x=1", None).await;
    assert!(matches!(error, OpenError::Url(_)) && !error.to_string().contains("hunter2"), "{error}");
    assert_eq!(error_of("kafka://127.0.0.1:1", Some(Form::Polling)).await, OpenError::Form);
    let error = error_of("redis://db", None).await;
    assert_eq!(error, OpenError::Other(coordination_connect::OpenError::Unknown));
    assert!(!error.is_retryable());
    let error = error_of("kafka://127.0.0.1:1", None).await;
    assert!(matches!(error, OpenError::Kafka(_)) && error.is_retryable(), "{error}");
}

//! Tests of TLS and SASL.

use std::time::Duration;

use bus::{Bus as _, BusError, ConsumerOptions, Event, NewRecord, ProducerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;
use test_servers::kafka::{USER, shared};

async fn open(url: &str) -> Result<KafkaBus, BusError> {
    KafkaBus::open(Runtime::real(), KafkaUrl::parse(url).unwrap().with_password(None)).await
}

/// Returns the URL of the secure port with this user, password and parameter.
fn url(user: &str, password: &str, parameter: &str) -> String {
    let (address, roots) = (shared().secure_address(), shared().root_certificate());
    let password = password.replace(' ', "%20");
    format!("kafka+tls://{user}:{password}@{address}?sslrootcert={}{parameter}", roots.display())
}

#[tokio::test]
async fn records_pass_over_tls_with_each_mechanism() {
    for mechanism in ["", "&mechanism=scram-sha-512", "&mechanism=scram-sha-256", "&mechanism=plain"] {
        let runtime = Runtime::real();
        let bus = open(&url(USER.0, USER.1, mechanism)).await.unwrap();
        let topic = TopicName::new(&format!("secure-{:x}", runtime.random())).unwrap();
        bus.create_topic(&topic, TopicOptions::with_partitions(1)).await.unwrap();
        let producer = bus.producer(ProducerOptions::default()).await.unwrap();
        producer.send(vec![NewRecord::new(&topic, "key", "value")]).await.remove(0).unwrap();
        let consumer = bus.consumer(ConsumerOptions::new(topic.as_str(), vec![topic.clone()])).await.unwrap();
        let records = async {
            loop {
                if let Event::Records(batch) = consumer.next().await.unwrap() {
                    return batch.records;
                }
            }
        };
        let records = runtime.timeout(Duration::from_secs(30), records).await.expect("the record arrives");
        assert_eq!(records[0].value.as_deref(), Some(&b"value"[..]), "{mechanism}");
        consumer.close().await.unwrap();
    }
}

#[tokio::test]
async fn password_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, USER.1).unwrap();
    let (address, roots) = (shared().secure_address(), shared().root_certificate());
    let (roots, file) = (roots.display(), file.display());
    let url = format!("kafka+tls://{}@{address}?sslrootcert={roots}&passwordfile={file}", USER.0);
    assert!(open(&url).await.is_ok());
}

#[tokio::test]
async fn error_names_the_cause_of_a_failed_connection() {
    let address = shared().secure_address();
    let without_roots = format!("kafka+tls://{}:x@{address}", USER.0);
    let without_tls = format!("kafka://{}", address.replace("localhost", "127.0.0.1"));
    for (url, expected) in [
        (url(USER.0, "wrong", ""), "check the user, its password"),
        (url("eve", USER.1, "&mechanism=plain"), "check the user, its password"),
        (without_roots, "certificate verify failed"),
        (without_tls, "did not respond"),
        ("kafka://127.0.0.1:9".to_owned(), "Connection refused"),
        ("kafka://no-such-host.invalid".to_owned(), "Failed to resolve"),
    ] {
        let error = open(&url).await.err().expect("the connection fails").to_string();
        assert!(error.contains(expected), "{url}: {error}");
        assert!(!error.contains("wrong") && !error.contains(USER.1), "{error}");
    }
}

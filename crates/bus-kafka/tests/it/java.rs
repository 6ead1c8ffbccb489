//! Tests with Kafka's Java client.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::num::NonZeroU32;
use std::process::Stdio;
use std::time::Duration;

use bus::{Bus as _, Compression, ConsumerOptions, Event, Header, NewRecord, ProducerOptions, Record, partition_of};
use bytes::Bytes;
use runtime::Runtime;
use test_servers::kafka::{java_peer, shared};

use crate::groups::{new_topic, open, until_owns};

/// Runs the Java program, and returns the lines of its output.
fn run(arguments: &[&str], input: &str) -> Vec<String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input.as_bytes()).unwrap();
    file.rewind().unwrap();
    let output = java_peer().unwrap().args(arguments).stdin(file).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the Java program {arguments:?} failed");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn hexadecimal(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "-".to_owned() };
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Writes a record in the form of the Java program.
fn line(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> String {
    let header = |header: &Header| {
        format!("{}:{}", hexadecimal(Some(header.name.as_bytes())), hexadecimal(header.value.as_deref()))
    };
    let headers: Vec<String> = headers.iter().map(header).collect();
    format!("{} {} {}", hexadecimal(key), hexadecimal(value), headers.join(","))
}

#[tokio::test]
async fn java_and_the_engine_select_the_same_partition_for_random_keys() {
    let runtime = Runtime::real();
    let keys: Vec<Vec<u8>> = (0..100_000_usize)
        .map(|number| {
            let len = number % 40;
            let random = std::iter::repeat_with(|| runtime.random().to_le_bytes()).flatten();
            random.take(len).collect()
        })
        .collect();
    for partitions in [1, 7, 1_000] {
        let input = keys.iter().fold(String::new(), |text, key| text + &hexadecimal(Some(key)) + "\n");
        let java = run(&["partitions", &partitions.to_string()], &input);
        let size = NonZeroU32::new(partitions).unwrap();
        let ours: Vec<String> = keys.iter().map(|key| partition_of(key, size).to_string()).collect();
        assert_eq!(java, ours, "{partitions} partitions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_and_the_engine_read_each_others_records_in_each_codec() {
    let codecs = [
        (Compression::None, "none"),
        (Compression::Gzip, "gzip"),
        (Compression::Snappy, "snappy"),
        (Compression::Lz4, "lz4"),
        (Compression::Zstd, "zstd"),
    ];
    let bus = open("").await;
    let topic = new_topic(&bus, 1).await;
    let header = |name: &str, value: Option<&'static [u8]>| Header {
        name: name.to_owned(),
        value: value.map(Bytes::from_static),
    };
    let headers = vec![header("trace", Some(b"\0\xff")), header("trace", Some(b"")), header("none", None)];
    let record = |key: Option<&'static [u8]>, value: Option<Vec<u8>>| NewRecord {
        key: key.map(Bytes::from_static),
        value: value.map(Bytes::from),
        ..NewRecord::new(&topic, "", "")
    };
    let records = [
        NewRecord { headers, ..record(Some(b"key\0"), Some(b"value".repeat(2_000))) },
        record(None, Some(Vec::new())),
        record(Some(b""), None),
    ];
    let mut sent = Vec::new();
    for (compression, name) in codecs {
        let options = ProducerOptions { compression, ..ProducerOptions::default() };
        let producer = bus.producer(options).await.unwrap();
        assert!(producer.send(records.to_vec()).await.iter().all(Result::is_ok));
        producer.close().await.unwrap();
        let lines: Vec<String> =
            records.iter().map(|one| line(one.key.as_deref(), one.value.as_deref(), &one.headers)).collect();
        let input = lines.join("\n") + "\n";
        let output =
            tokio::task::block_in_place(|| run(&["produce", &shared().addresses(), topic.as_str(), name], &input));
        assert_eq!(output, [] as [String; 0]);
        sent.extend([lines.clone(), lines].concat());
    }
    let count = sent.len().to_string();
    let java = tokio::task::block_in_place(|| run(&["consume", &shared().addresses(), topic.as_str(), &count], ""));
    assert_eq!(java, sent, "Java reads the records");

    let consumer = bus.consumer(ConsumerOptions::new(topic.as_str(), vec![topic.clone()])).await.unwrap();
    let mut ours = Vec::new();
    while ours.len() < sent.len() {
        if let Event::Records(batch) = consumer.next().await.unwrap() {
            let text = |one: &Record| line(one.key.as_deref(), one.value.as_deref(), &one.headers);
            ours.extend(batch.records.iter().map(text));
        }
    }
    assert_eq!(ours, sent, "the engine reads the records");
    consumer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_consumer_and_ours_share_a_group() {
    let bus = open("").await;
    let topic = new_topic(&bus, 4).await;
    let consumer = bus.consumer(ConsumerOptions::new(topic.as_str(), vec![topic.clone()])).await.unwrap();
    let mut owned = BTreeSet::new();
    until_owns(&*consumer, &mut owned, 4).await;

    let mut command = java_peer().unwrap();
    command.args(["join", &shared().addresses(), topic.as_str(), topic.as_str()]);
    let mut java = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(java.stdout.take().unwrap()).lines();
    let limit = Duration::from_secs(30);
    let revoked = Runtime::real().timeout(limit, until_owns(&*consumer, &mut owned, 2)).await;
    assert_eq!(revoked.expect("the group revokes partitions").len(), 2);
    tokio::task::block_in_place(|| {
        assert!(output.any(|line| line.unwrap() == "owns 2"), "the Java consumer owns the other partitions");
    });
    // The group notices the death of the Java consumer at the end of its session.
    java.kill().unwrap();
    java.wait().unwrap();
    let regained = Runtime::real().timeout(limit, until_owns(&*consumer, &mut owned, 4)).await;
    assert_eq!(regained.expect("the partitions come back").len(), 0);
    consumer.close().await.unwrap();
}

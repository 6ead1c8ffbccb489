//! Test of the buffered producer, while the broker is away and the process is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bus::{Bus as _, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;

use crate::processor::example;

/// Process that runs the example `buffered_numbers`. A drop of this value kills the process.
struct Sender {
    process: Child,
    /// All records below this number are accepted.
    accepted: Arc<AtomicU64>,
    /// Number of records that remain on disk after the process has stopped; `u64::MAX` before.
    remaining: Arc<AtomicU64>,
}

impl Sender {
    fn start(url: &str, folder: &Path, topic: &TopicName, first: u64) -> Self {
        let mut command = Command::new(example("buffered_numbers"));
        command.arg(url).arg(folder).args([topic.as_str(), &first.to_string()]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("cargo builds the example before the tests");
        let (accepted, remaining) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicU64::new(u64::MAX)));
        let output = BufReader::new(process.stdout.take().unwrap());
        let (accepted_below, left) = (accepted.clone(), remaining.clone());
        let read = move || {
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix("remaining ") {
                    Some(count) => left.store(count.parse().unwrap(), Ordering::Relaxed),
                    None => accepted_below.store(line.parse().unwrap(), Ordering::Relaxed),
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the thread ends with the process")]
        std::thread::spawn(read);
        Sender { process, accepted, remaining }
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    async fn until_accepted(&self, runtime: &Runtime, count: u64) {
        let end = self.accepted() + count;
        let accepting = async {
            while self.accepted() < end {
                runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        let accepted = runtime.timeout(Duration::from_secs(60), accepting).await;
        assert!(accepted.is_some(), "only {} of {end} records are accepted", self.accepted());
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_records_survive_a_kill_while_the_broker_is_away() {
    let kafka = test_servers::kafka::shared();
    let door = tokio::task::block_in_place(|| kafka.door());
    let runtime = Runtime::real();
    let direct = format!("kafka://{}", kafka.addresses());
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&direct).unwrap()).await.unwrap();
    let topic = TopicName::new(&format!("buffered-{:x}", runtime.random())).unwrap();
    bus.create_topic(&topic, TopicOptions::with_partitions(6)).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let url = format!("kafka://{}", door.address());
    let first = Sender::start(&url, folder.path(), &topic, 0);
    first.until_accepted(&runtime, 2_000).await;
    door.cut(true);
    first.until_accepted(&runtime, 20_000).await;
    let accepted_first = first.accepted();
    drop(first);

    // The killed process may have sent one batch more.
    let start = accepted_first + 10_000;
    let mut second = Sender::start(&url, folder.path(), &topic, start);
    second.until_accepted(&runtime, 5_000).await;
    door.cut(false);
    second.until_accepted(&runtime, 2_000).await;
    let accepted_second = second.accepted();
    // The end of the input stops the process.
    drop(second.process.stdin.take());
    let ended = async {
        while second.remaining.load(Ordering::Relaxed) == u64::MAX {
            runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(runtime.timeout(Duration::from_secs(90), ended).await.is_some(), "the process does not stop");
    assert_eq!(second.remaining.load(Ordering::Relaxed), 0);

    let count: u64 = bus.describe_topic(&topic).await.unwrap().offsets.iter().map(|(_, end)| end.0).sum();
    let reader = bus.reader(&topic).await.unwrap();
    let (mut keys, mut found) = (BTreeMap::<String, Vec<u64>>::new(), 0);
    while found < count {
        let batch = runtime.timeout(Duration::from_secs(30), reader.next()).await.expect("the broker responds");
        for record in batch.unwrap().records {
            let text = |bytes: Option<bytes::Bytes>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            keys.entry(text(record.key)).or_default().push(text(record.value).parse().unwrap());
            found += 1;
        }
    }
    let stored: BTreeSet<u64> = keys.values().flatten().copied().collect();
    let is_lost = |number: &u64| !stored.contains(number);
    assert_eq!((0..accepted_first).chain(start..accepted_second).find(is_lost), None, "an accepted record is lost");
    for (key, numbers) in keys {
        let mut seen = BTreeSet::new();
        let first_copies: Vec<u64> = numbers.into_iter().filter(|number| seen.insert(*number)).collect();
        assert!(first_copies.is_sorted(), "the records of the key {key} are not in order");
    }
}

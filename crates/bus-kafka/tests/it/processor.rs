//! Test of the processor on three brokers, while its processes and a broker fail.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::{Bus as _, NewRecord, ProducerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;
use rustix::process::{Pid, Signal};
use test_servers::kafka::Kafka;

/// Number of keys.
const KEYS: usize = 200;
/// Number of records of each key.
const RECORDS: usize = 150;
/// Largest number of records that one process has in hand. The example sets it.
const IN_HAND_MAX: usize = 1_000;

/// Process that runs the example `print_records`. A drop of this value kills the process.
struct Worker {
    process: Child,
}

/// Keys and numbers of the printed records, in the order in which they arrived.
type Printed = Arc<Mutex<Vec<(usize, usize)>>>;

impl Worker {
    fn start(url: &str, topic: &TopicName, printed: &Printed) -> Worker {
        let mut command = Command::new(example("print_records"));
        command.args([url, topic.as_str(), topic.as_str()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("cargo builds the example before the tests");
        let (output, printed) = (BufReader::new(process.stdout.take().unwrap()), printed.clone());
        let read = move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((key, number)) = line.split_once(' ') {
                    printed.lock().unwrap().push((key.parse().unwrap(), number.parse().unwrap()));
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the thread ends with the process")]
        std::thread::spawn(read);
        Worker { process }
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Returns the path of an example, which is beside the folder of the test binary.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_is_handled_in_order_while_processes_and_a_broker_fail() {
    let cluster = tokio::task::block_in_place(|| Kafka::start(3).unwrap());
    let runtime = Runtime::real();
    let url = format!("kafka://{}", cluster.addresses());
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&url).unwrap()).await.unwrap();
    let topic = TopicName::new("orders").unwrap();
    let options = TopicOptions { replicas: Some(3), ..TopicOptions::with_partitions(6) };
    bus.create_topic(&topic, options).await.unwrap();
    assert_eq!(bus.describe_topic(&topic).await.unwrap().replicas, 3);

    let printed = Printed::default();
    let count = || printed.lock().unwrap().len();
    let all = KEYS * RECORDS;
    let mut workers: Vec<Worker> = (0..3).map(|_| Worker::start(&url, &topic, &printed)).collect();
    let options = ProducerOptions { delivery_timeout: Duration::from_secs(60), ..ProducerOptions::default() };
    let producer = bus.producer(options).await.unwrap();
    let send = async {
        for number in 0..RECORDS {
            let record = |key: usize| NewRecord::new(&topic, key.to_string(), number.to_string());
            let outcomes = producer.send((0..KEYS).map(record).collect()).await;
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            runtime.sleep(Duration::from_millis(50)).await;
        }
    };
    let wait_for = async |part: usize| {
        while count() < all * part / 100 {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    let restart_after = Duration::from_secs(1);
    let fail = async {
        wait_for(10).await;
        drop(workers.remove(0));
        runtime.sleep(restart_after).await;
        workers.push(Worker::start(&url, &topic, &printed));
        wait_for(30).await;
        workers[0].signal(Signal::STOP);
        tokio::task::block_in_place(|| cluster.kill(2).unwrap());
        // The pause is longer than the session.
        runtime.sleep(Duration::from_secs(12)).await;
        workers[0].signal(Signal::CONT);
        tokio::task::block_in_place(|| cluster.restart(2).unwrap());
        wait_for(60).await;
        drop(workers.remove(1));
        runtime.sleep(restart_after).await;
        workers.push(Worker::start(&url, &topic, &printed));
    };
    let limit = Duration::from_secs(150);
    let done = runtime.timeout(limit, async {
        tokio::join!(send, fail);
        loop {
            let mut next = BTreeMap::<usize, usize>::new();
            for (key, number) in printed.lock().unwrap().iter().copied() {
                let next = next.entry(key).or_default();
                // A record that is handled again has a smaller number.
                assert!(number <= *next, "record {number} of the key {key} came before record {next}");
                *next += usize::from(number == *next);
            }
            if next.len() == KEYS && next.values().all(|next| *next == RECORDS) {
                return;
            }
            runtime.sleep(Duration::from_millis(200)).await;
        }
    });
    assert!(done.await.is_some(), "only {} of {all} records were handled, or some are missing", count());
    let repeated = count() - all;
    // Two kills and one pause repeat the records that were in hand, or finished since the last commit.
    assert!(repeated <= 3 * 2 * IN_HAND_MAX, "{repeated} records were handled again");
}

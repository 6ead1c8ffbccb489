//! Test of requests that several services answer, with processes that are killed and paused. The environment variable
//! `REVEILLE_GATHER_REQUESTS` sets another number of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::gather::{KIND_HEADER, NUMBER_HEADER, REQUEST_HEADER, SERVICE_HEADER};
use bus::{Bus as _, Header, NewRecord, ProducerOptions, TopicName, partition_of};
use bus_kafka::{KafkaBus, KafkaUrl};
use bytes::Bytes;
use runtime::Runtime;
use rustix::process::{Pid, Signal};
use test_servers::kafka::Kafka;

use crate::processor::example;

/// Number of requests without the environment variable.
const REQUESTS: usize = 2_000;
/// One of this many requests is for a service without a process.
const MISSING_EVERY: usize = 20;
const SERVICES: [&str; 4] = ["mail", "shop", "pets", "maps"];
/// Number of partitions of the topics.
const PARTITIONS: u32 = 12;
/// Number of answers of each service.
const ANSWERS: u64 = 3;

/// Calls of all coordinators: times in nanoseconds.
#[derive(Default)]
struct Calls {
    /// First call for each answer of a request: its service and its number.
    answers: BTreeMap<String, BTreeMap<(String, u64), u128>>,
    /// First outcome of each request: its time and its missing services.
    outcomes: BTreeMap<String, (u128, String)>,
    repeated: usize,
}

impl Calls {
    fn add(&mut self, line: &str) {
        let parts: Vec<&str> = line.split(' ').collect();
        let [time, kind, id, rest @ ..] = parts.as_slice() else { panic!("unexpected line {line:?}") };
        let (time, id): (u128, String) = (time.parse().unwrap(), (*id).to_owned());
        match (*kind, rest) {
            ("answer", [service, number, _]) => {
                let key = ((*service).to_owned(), number.parse().unwrap());
                let first = self.answers.entry(id).or_default().entry(key).or_insert(u128::MAX);
                self.repeated += usize::from(*first != u128::MAX);
                *first = time.min(*first);
            }
            ("outcome", [missing]) => {
                let (first, known) = self.outcomes.entry(id).or_insert((time, (*missing).to_owned()));
                assert_eq!(known, missing, "the outcomes of a request differ: {line:?}");
                *first = time.min(*first);
            }
            _ => panic!("unexpected line {line:?}"),
        }
    }
}

/// Process of the example `privacy`. A drop of this value kills the process.
struct Member(Child);

impl Member {
    fn start(url: &str, arguments: &[&str], calls: &Arc<Mutex<Calls>>) -> Self {
        let mut command = Command::new(example("privacy"));
        let command = command.arg(url).args(arguments).stdout(Stdio::piped());
        let mut process = command.spawn().expect("cargo builds the example before the tests");
        let (output, calls) = (BufReader::new(process.stdout.take().unwrap()), calls.clone());
        let read = move || output.lines().map_while(Result::ok).for_each(|line| calls.lock().unwrap().add(&line));
        #[expect(clippy::disallowed_methods, reason = "the thread ends with the process")]
        std::thread::spawn(read);
        Member(process)
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn ask(url: &str, services: &str, person: &str, count: usize, seconds: u64) {
    let mut command = Command::new(example("privacy"));
    let arguments = ["ask", services, "access", person, &count.to_string(), &seconds.to_string()];
    let status = command.arg(url).args(arguments).stdout(Stdio::null()).status();
    assert!(status.expect("cargo builds the example before the tests").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_requests_end_while_processes_are_killed() {
    #[expect(clippy::disallowed_methods, reason = "the variable is an option of this test")]
    let requests = std::env::var("REVEILLE_GATHER_REQUESTS");
    let requests = requests.map_or(REQUESTS, |count| count.parse().expect("REVEILLE_GATHER_REQUESTS is a number"));
    let kafka = tokio::task::block_in_place(|| Kafka::start(1).unwrap());
    let (runtime, calls) = (Runtime::real(), Arc::default());
    let url = format!("kafka://{}", kafka.addresses());
    let coordinator = || Member::start(&url, &["coordinator"], &calls);
    let service = |name| Member::start(&url, &["service", name], &calls);
    let mut coordinators = [coordinator(), coordinator()];
    let mut services = SERVICES.map(service);

    let deadline = Duration::from_secs(20) + Duration::from_millis(2) * u32::try_from(requests).unwrap();
    let missing = requests / MISSING_EVERY;
    let complete = requests - missing;
    let names = SERVICES.join(",");
    tokio::task::block_in_place(|| {
        ask(&url, &format!("{names},ghost"), "bob", missing, deadline.as_secs());
        ask(&url, &names, "ann", complete, 3_600);
    });
    let outcomes = || calls.lock().unwrap().outcomes.len();
    let until = async |count: usize, limit: Duration| {
        let waiting = async {
            while outcomes() < count {
                runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        let done = runtime.timeout(limit, waiting).await;
        assert!(done.is_some(), "only {} of {count} requests are over", outcomes());
    };
    let limit = 5 * deadline;
    until(complete / 10, limit).await;
    coordinators[0] = coordinator();
    services[0] = service(SERVICES[0]);
    until(complete / 4, limit).await;
    // The pause is longer than the session.
    coordinators[1].signal(Signal::STOP);
    services[1] = service(SERVICES[1]);
    runtime.sleep(Duration::from_secs(12)).await;
    coordinators[1].signal(Signal::CONT);
    services[2] = service(SERVICES[2]);
    until(requests, limit).await;

    // A service that wakes late sends answers for a request that is over.
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&url).unwrap()).await.unwrap();
    let producer = bus.producer(ProducerOptions::default()).await.unwrap();
    let header = |name: &str, value: &'static str| Header {
        name: name.to_owned(),
        value: Some(Bytes::from_static(value.as_bytes())),
    };
    let late = |kind, number| NewRecord {
        headers: vec![
            header(KIND_HEADER, kind),
            header(REQUEST_HEADER, "0"),
            header(SERVICE_HEADER, "ghost"),
            header(NUMBER_HEADER, number),
        ],
        ..NewRecord::new(&TopicName::new("privacy-answers").unwrap(), "access-bob-0", "late")
    };
    let sent = producer.send(vec![late("answer", "0"), late("end", "1")]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    // A coordinator has read these records when it ends later requests of all partitions.
    let later = usize::try_from(PARTITIONS).unwrap() * 10;
    tokio::task::block_in_place(|| ask(&url, &names, "eve", later, 3_600));
    let partition = |id: String| partition_of(id.as_bytes(), PARTITIONS.try_into().unwrap());
    let reached =
        (0..later).any(|number| partition(format!("access-eve-{number}")) == partition("access-bob-0".to_owned()));
    assert!(reached, "no later request is in the partition of the late records");
    until(requests + later, limit).await;

    drop((coordinators, services));
    let calls = calls.lock().unwrap();
    let mut overdue = BTreeSet::new();
    for (id, (time, missing)) in &calls.outcomes {
        // A killed service may miss the deadline, too.
        let missing: BTreeSet<&str> = missing.split(',').filter_map(|name| name.strip_prefix("missing:")).collect();
        assert_eq!(missing.contains("ghost"), id.starts_with("access-bob-"), "{id}: {missing:?}");
        assert!(missing.is_empty() || missing.contains("ghost"), "{id}: {missing:?}");
        overdue.extend(Some(missing.clone()).filter(|missing| missing.len() == 1));
        let before = calls.answers.get(id).into_iter().flatten().filter(|(_, answer)| *answer <= time);
        let before: BTreeSet<&(String, u64)> = before.map(|(key, _)| key).collect();
        for service in SERVICES.into_iter().filter(|name| !missing.contains(name)) {
            let has = |number| before.contains(&(service.to_owned(), number));
            assert!((0..ANSWERS).all(has), "{id} is over before the answers of {service}: {before:?}");
        }
    }
    assert!(!overdue.is_empty(), "no outcome names only the service without a process");
    let received: usize = calls.answers.values().map(BTreeMap::len).sum();
    println!("{} requests, {received} answers, {} of them repeated", calls.outcomes.len(), calls.repeated);
}

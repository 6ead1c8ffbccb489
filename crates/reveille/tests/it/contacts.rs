//! Test of the example `contacts`, with a real ZooKeeper and a real Kafka broker, while the service is away and the leader
//! is killed. The environment variable `REVEILLE_OUTAGE_SECONDS` sets another duration of the outage.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_servers::http::Connection;

use crate::examples::program;
use crate::server::Lines;
use crate::until;

/// Seconds for which the service is away, without the environment variable. A session of ZooKeeper ends within this time.
const OUTAGE: u64 = 13;

/// Service that records each idempotency key once. While it is away, it responds with status 503, or ends the connection.
struct Service {
    address: String,
    is_away: Arc<AtomicBool>,
    /// Keys in the order of their first call.
    keys: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_away, keys) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<String>>>::default());
        let (away, recorded) = (is_away.clone(), keys.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let is_away = away.load(Ordering::Relaxed);
                if is_away && number % 2 == 0 {
                    continue;
                }
                let answer = || {
                    let mut connection = Connection::new(stream)?;
                    let call = connection.read()?;
                    let key = call.header("idempotency-key").expect("every call has this header").to_owned();
                    let status = if is_away { "503 Service Unavailable" } else { "200 OK" };
                    let mut keys = recorded.lock().unwrap();
                    if !is_away && !keys.contains(&key) {
                        keys.push(key);
                    }
                    let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                    connection.write(response.as_bytes())
                };
                // The caller repeats a call whose connection breaks.
                drop(answer());
            }
        });
        Service { address, is_away, keys }
    }

    fn count(&self) -> usize {
        self.keys.lock().unwrap().len()
    }
}

/// Process of the example. A drop of this value kills the process.
struct Replica {
    process: Child,
    /// Lines of its output, of which each reports a leadership.
    lines: Lines,
}

impl Replica {
    fn start(name: &str, coordination: &str, bus: &str, service: &Service) -> Self {
        let url = format!("http://{}/", service.address);
        let mut command = Command::new(program("contacts"));
        command.args([coordination, bus, &url, "--cron", "* * * * * *", "--replica", name]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("cargo builds the example before the tests");
        let lines = Lines::follow(process.stdout.take().unwrap());
        Replica { process, lines }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn each_occurrence_is_imported_despite_an_outage() {
    let outage = std::env::var("REVEILLE_OUTAGE_SECONDS");
    let outage = outage.map_or(OUTAGE, |seconds| seconds.parse().expect("REVEILLE_OUTAGE_SECONDS is a number"));
    let zookeeper = test_servers::zookeeper::shared().addresses();
    let (coordination, bus) = (
        format!("zookeeper://{zookeeper}/contacts-{}", std::process::id()),
        format!("kafka://{}", test_servers::kafka::shared().addresses()),
    );
    let service = Service::start();
    let names = ["ann", "bob", "cyd"];
    let mut replicas = names.map(|name| Some(Replica::start(name, &coordination, &bus, &service)));
    until("the first occurrences are imported", || service.count() >= 3);

    service.is_away.store(true, Ordering::Relaxed);
    let reports = |replica: &Option<Replica>| replica.as_ref().map_or_else(String::new, |one| one.lines.text());
    let leader = replicas.iter().position(|one| !reports(one).is_empty());
    drop(replicas[leader.unwrap()].take());
    std::thread::sleep(Duration::from_secs(outage));
    let before = service.count();
    service.is_away.store(false, Ordering::Relaxed);
    let wanted = before + usize::try_from(outage).unwrap() + 5;
    until("the occurrences of the outage are imported", || service.count() >= wanted);

    let keys = service.keys.lock().unwrap();
    let instants = keys.iter().map(|key| key.strip_prefix("contacts/").unwrap().parse::<i64>().unwrap());
    let instants: Vec<i64> = instants.collect();
    for (name, replica) in names.iter().zip(&replicas) {
        let text = reports(replica);
        assert!(text.lines().all(|line| line == format!("{name} leads")), "{name} printed {text:?}");
    }
    assert!(replicas.iter().any(|one| !reports(one).is_empty()), "no replica leads after the death of the leader");
    let are_next = |pair: &[i64]| pair[1] == pair[0] + 1_000;
    assert!(instants.windows(2).all(are_next), "an occurrence is missing or not in order: {keys:?}");
}

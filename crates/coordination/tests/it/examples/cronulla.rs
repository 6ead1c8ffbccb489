//! Tests of the example `cronulla`. One of three replicas calls a service. When the test kills, pauses or interrupts
//! this replica, another replica takes over.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use test_servers::http::Connection;

use super::*;

const SESSION: Duration = Duration::from_secs(4);

/// Call that the service has received.
#[derive(Clone, Debug)]
struct Call {
    /// Instant at which the firing was due, as Unix time in milliseconds. `came` is the arrival time of the call, in
    /// the same unit.
    due: i64,
    came: i64,
    replica: String,
    term: u64,
}

/// Service that the replicas call. It drops a call if it has already received a call with the same idempotency key.
struct Service {
    address: String,
    /// First call with each idempotency key, in the order of arrival.
    calls: Arc<Mutex<Vec<Call>>>,
    /// Number of dropped calls.
    again: Arc<AtomicUsize>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, calls) = (listener.local_addr().unwrap().to_string(), Arc::<Mutex<Vec<Call>>>::default());
        let (recorded, again) = (calls.clone(), Arc::<AtomicUsize>::default());
        let counted = again.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (recorded, counted) = (recorded.clone(), counted.clone());
                // The service ignores errors, because the caller repeats a call whose connection breaks.
                std::thread::spawn(move || drop(answer(stream, &recorded, &counted)));
            }
        });
        Service { address, calls, again }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Returns the next call that meets the condition.
    #[track_caller]
    fn next_call(&self, event: &str, condition: impl Fn(&Call) -> bool) -> Call {
        let seen = self.calls().len();
        let mut found = None;
        until(event, || {
            found = self.calls()[seen..].iter().find(|call| condition(call)).cloned();
            found.is_some()
        });
        found.unwrap()
    }
}

fn answer(stream: TcpStream, calls: &Mutex<Vec<Call>>, again: &AtomicUsize) -> std::io::Result<()> {
    let mut connection = Connection::new(stream)?;
    let call = connection.read()?;
    let header = |name: &str| call.header(name).expect("every call has this header");
    let instant = header("idempotency-key").strip_prefix("sweep/").expect("the key starts with the name of the job");
    let due = instant.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    let (replica, term) = (header("x-replica").to_owned(), header("x-term").parse().unwrap());
    {
        let mut calls = calls.lock().unwrap();
        if calls.iter().all(|call| call.due != due) {
            let came = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
            calls.push(Call { due, came: i64::try_from(came).unwrap(), replica, term });
        } else {
            again.fetch_add(1, Ordering::Relaxed);
        }
    }
    connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

fn start(folder: &Path, url: &str, service: &Service, replica: &str) -> Process {
    let (call, session) = (format!("http://{}/", service.address), SESSION.as_millis().to_string());
    let arguments = [
        url,
        "--call",
        &call,
        "--job",
        "sweep",
        "--cron",
        "* * * * * *",
        "--replica",
        replica,
        "--session-millis",
        &session,
    ];
    Process::start(folder, replica, "cronulla", &arguments)
}

fn check_takeovers(url: &str) {
    let (folder, service) = (tempfile::tempdir().unwrap(), Service::start());
    let names = ["ann", "bob", "cyd"];
    let mut replicas = names.map(|name| start(folder.path(), url, &service, name));
    let at = |name: &str| names.iter().position(|other| *other == name).unwrap();

    // Part 1: one of the replicas calls the service.
    let first = service.next_call("a replica schedules", |_| true);
    service.next_call("the replica schedules again", |_| true);
    assert!(service.calls().iter().all(|call| call.replica == first.replica && call.term == first.term));

    // Part 2: the test kills the leader, and the next replica takes over after the session's timeout. Several firings
    // become due before the takeover. The replica calls the service only for the latest of them.
    let last = service.next_call("the replica schedules once more", |_| true);
    replicas[at(&first.replica)].kill();
    let killed = Instant::now();
    let second = service.next_call("another replica schedules", |call| call.replica != first.replica);
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    assert!(second.term > first.term);
    assert!(second.due - last.due >= 2_000, "firings before the latest due one are skipped: {last:?}, {second:?}");

    // Part 3: the test pauses the second leader, and the third leader takes over. After the second leader resumes, it
    // makes no call with its old term.
    replicas[at(&second.replica)].signal(Signal::STOP);
    let stopped = Instant::now();
    let third = service
        .next_call("the third replica schedules", |call| ![&first.replica, &second.replica].contains(&&call.replica));
    assert!(stopped.elapsed() < SESSION + SLACK, "{:?}", stopped.elapsed());
    replicas[at(&second.replica)].signal(Signal::CONT);
    let output = || replicas[at(&second.replica)].output();
    until("the resumed replica notices the end of its leadership", || output().contains("no longer leads"));
    service.next_call("the third replica schedules again", |call| call.replica == third.replica);

    // Part 4: the test interrupts the leader, which hands the leadership over to a waiting candidate.
    let [ann, bob, cyd] = replicas;
    let mut replicas = [Some(ann), Some(bob), Some(cyd)];
    let ended = replicas[at(&third.replica)].take().unwrap().interrupt();
    assert!(ended.success());
    service.next_call("the resumed replica schedules again", |call| {
        call.replica == second.replica && call.term > third.term
    });

    let calls = service.calls();
    assert!(
        calls.iter().all(|call| call.due % 1_000 == 0 && call.came >= call.due),
        "no call comes before its instant: {calls:?}"
    );
    assert!(calls.is_sorted_by(|one, next| one.due < next.due), "calls come in the order of their instants: {calls:?}");
    let again = service.again.load(Ordering::Relaxed);
    assert!(again < 6, "{again} repeated calls, more than the kills, pauses and slow responses explain");
    assert!(calls.is_sorted_by_key(|call| call.term), "no call comes from a former leader: {calls:?}");
}

#[test]
fn next_replica_takes_over_from_a_lost_leader_on_zookeeper() {
    check_takeovers(&zookeeper());
}

#[test]
fn next_replica_takes_over_from_a_lost_leader_on_postgres() {
    check_takeovers(&postgres());
}

#[test]
fn cronulla_explains_invalid_arguments() {
    let error = stderr_of_failure("cronulla", &["redis://db", "--call", "http://127.0.0.1/"]);
    assert!(error.contains("zookeeper://") && error.contains("postgres://"), "{error}");
    let error = stderr_of_failure(
        "cronulla",
        &["zookeeper://127.0.0.1:1", "--call", "http://127.0.0.1/", "--cron", "0 61 * * * *"],
    );
    assert!(error.contains("--cron"), "{error}");
}

//! Seed 000: one of three replicas schedules, and whoever is next goes on.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use test_servers::http::Connection;

use super::*;

const SESSION: Duration = Duration::from_secs(4);

/// A call of the service.
#[derive(Clone, Debug)]
struct Call {
    /// The instant that it is for, in milliseconds, and when it came.
    due: i64,
    came: i64,
    replica: String,
    term: u64,
}

/// The service, which drops a call of a name that it knows.
struct Service {
    address: String,
    /// Of those that came first under their name, in that order.
    calls: Arc<Mutex<Vec<Call>>>,
    /// How many were dropped.
    again: Arc<AtomicUsize>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, calls) = (listener.local_addr().unwrap().to_string(), Arc::<Mutex<Vec<Call>>>::default());
        let (kept, again) = (calls.clone(), Arc::<AtomicUsize>::default());
        let counted = again.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, counted) = (kept.clone(), counted.clone());
                // One that is broken off is called again.
                std::thread::spawn(move || drop(answer(stream, &kept, &counted)));
            }
        });
        Service { address, calls, again }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The next call by a replica that `is_meant`.
    #[track_caller]
    fn next_call(&self, what: &str, is_meant: impl Fn(&Call) -> bool) -> Call {
        let seen = self.calls().len();
        let mut found = None;
        until(what, || {
            found = self.calls()[seen..].iter().find(|call| is_meant(call)).cloned();
            found.is_some()
        });
        found.unwrap()
    }
}

fn answer(stream: TcpStream, calls: &Mutex<Vec<Call>>, again: &AtomicUsize) -> std::io::Result<()> {
    let mut connection = Connection::new(stream)?;
    let call = connection.read()?;
    let header = |name: &str| call.header(name).expect("a call has its headers");
    let instant = header("idempotency-key").strip_prefix("sweep/").expect("the job's name");
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

fn schedules(url: &str) {
    let (folder, service) = (tempfile::tempdir().unwrap(), Service::start());
    let names = ["ann", "bob", "cyd"];
    let mut replicas = names.map(|name| start(folder.path(), url, &service, name));
    let at = |name: &str| names.iter().position(|other| *other == name).unwrap();

    // One of them schedules.
    let first = service.next_call("somebody schedules", |_| true);
    service.next_call("and goes on", |_| true);
    assert!(service.calls().iter().all(|call| call.replica == first.replica && call.term == first.term));

    // Killed, it is followed by the next, a session's timeout later; what was due meanwhile is skipped, but for the latest.
    let last = service.next_call("once more", |_| true);
    replicas[at(&first.replica)].kill();
    let killed = Instant::now();
    let second = service.next_call("another schedules", |call| call.replica != first.replica);
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    assert!(second.term > first.term);
    assert!(second.due - last.due >= 2_000, "what was due before the latest is skipped: {last:?}, {second:?}");

    // Stopped where it is, likewise; let go on, it schedules nothing more under its old term.
    replicas[at(&second.replica)].signal(Signal::STOP);
    let stopped = Instant::now();
    let third =
        service.next_call("the third schedules", |call| ![&first.replica, &second.replica].contains(&&call.replica));
    assert!(stopped.elapsed() < SESSION + SLACK, "{:?}", stopped.elapsed());
    replicas[at(&second.replica)].signal(Signal::CONT);
    let told = || replicas[at(&second.replica)].told();
    until("who was stopped knows that it leads no more", || told().contains("leads no more"));
    service.next_call("the third goes on", |call| call.replica == third.replica);

    // Asked to stop, it gives its leadership to who waits.
    let [ann, bob, cyd] = replicas;
    let mut replicas = [Some(ann), Some(bob), Some(cyd)];
    let ended = replicas[at(&third.replica)].take().unwrap().interrupt();
    assert!(ended.success());
    service
        .next_call("who was stopped schedules again", |call| call.replica == second.replica && call.term > third.term);

    let calls = service.calls();
    assert!(calls.iter().all(|call| call.due % 1_000 == 0 && call.came >= call.due), "none is early: {calls:?}");
    assert!(calls.is_sorted_by(|one, next| one.due < next.due), "none comes after a later one: {calls:?}");
    let again = service.again.load(Ordering::Relaxed);
    assert!(again < 6, "{again} calls again, of those who were killed, stopped or not answered in time");
    assert!(calls.is_sorted_by_key(|call| call.term), "none is of a leader that has been followed: {calls:?}");
}

#[test]
fn one_replica_schedules_and_the_next_goes_on_zookeeper() {
    schedules(&zookeeper());
}

#[test]
fn one_replica_schedules_and_the_next_goes_on_postgres() {
    schedules(&postgres());
}

#[test]
fn who_starts_it_wrongly_is_told_what_to_change() {
    let told = refused("cronulla", &["redis://db", "--call", "http://127.0.0.1/"]);
    assert!(told.contains("zookeeper://") && told.contains("postgres://"), "{told}");
    let told =
        refused("cronulla", &["zookeeper://127.0.0.1:1", "--call", "http://127.0.0.1/", "--cron", "0 61 * * * *"]);
    assert!(told.contains("--cron"), "{told}");
}

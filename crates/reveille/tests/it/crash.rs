//! Test that repeatedly sends SIGKILL to the server while clients create and cancel schedules and the schedules fire.
//! At the end, the test checks the outcome of every schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::client::{Client, one_shot};
use crate::receiver::{Hit, Receiver};
use crate::server::Server;
use crate::{TIMEOUT, now_millis};

const KILLS: usize = 12;
/// Number of schedules that the test creates between two kills.
const CREATED_PER_LIFE: usize = 150;
const CREATORS: u64 = 3;
/// Longest time from the creation of a schedule to its due instant. This time is so long that some schedules become due
/// after the next kill.
const AHEAD_MILLIS: u64 = 2_500;
/// Default of `serve`.
const IN_FLIGHT_MAX: usize = 4_096;

/// History of the clients' requests and of the server's responses.
#[derive(Default)]
struct History {
    /// Due instants of the schedules for which the server responded with 201.
    created: BTreeMap<String, u64>,
    newest: Option<String>,
    /// Number of created schedules at which the creators pause until the test raises this number.
    created_max: usize,
    /// Times at which the responses 200 `cancelled` arrived. A callback may have arrived earlier.
    cancelled: BTreeMap<String, u64>,
    /// Schedules whose cancellation received the response 200 `too_late`, or no response.
    undecided: BTreeSet<String>,
    address: Option<SocketAddr>,
    is_over: bool,
}

/// Time from a kill until the next server is ready.
struct Gap {
    killed_millis: u64,
    ready_millis: u64,
}

#[derive(Clone, Default)]
struct Shared(Arc<(Mutex<History>, Condvar)>);

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        let changed = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        changed
    }

    /// Waits until `look` returns a value.
    fn wait<T>(&self, look: impl Fn(&History) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let mut history = self.0.0.lock().unwrap();
        loop {
            if let Some(seen) = look(&history) {
                return seen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "condition not met in time, with {} schedules created", history.created.len());
            history = self.0.1.wait_timeout(history, left).unwrap().0;
        }
    }

    /// Waits until a server runs, and connects to it. Returns `None` at the end of the test.
    fn connect(&self, key: &str) -> Option<Client> {
        loop {
            let address = self.wait(|history| if history.is_over { Some(None) } else { history.address.map(Some) })?;
            match Client::connect(address, key) {
                Ok(client) => return Some(client),
                // The test killed the server. The next server has another address, or has not started yet.
                Err(_) => self.change(|history| {
                    if history.address == Some(address) {
                        history.address = None;
                    }
                }),
            }
        }
    }
}

#[test]
fn acknowledged_schedules_fire_after_repeated_kills_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let shared = Shared::default();
    let mut server = Server::start(&data);
    shared.change(|history| history.address = Some(server.address));
    let mut clients: Vec<_> = (0..CREATORS)
        .map(|number| {
            let (shared, key, url) = (shared.clone(), server.key.clone(), receiver.url());
            thread::spawn(move || create(&shared, &key, &url, number))
        })
        .collect();
    let (canceller, key) = (shared.clone(), server.key.clone());
    clients.push(thread::spawn(move || cancel(&canceller, &key)));

    let mut gaps = Vec::new();
    for life in 1..=KILLS {
        shared.change(|history| history.created_max = (life + 1) * CREATED_PER_LIFE);
        shared.wait(|history| (history.created.len() >= life * CREATED_PER_LIFE).then_some(()));
        shared.change(|history| history.address = None);
        let killed_millis = now_millis();
        server.kill();
        server = Server::start(&data);
        gaps.push(Gap { killed_millis, ready_millis: now_millis() });
        shared.change(|history| history.address = Some(server.address));
    }
    shared.change(|history| history.is_over = true);
    for client in clients {
        client.join().expect("no client panics");
    }

    let history = shared.change(std::mem::take);
    let must_fire = |id: &&String| !history.cancelled.contains_key(*id) && !history.undecided.contains(*id);
    let expected: BTreeSet<&String> = history.created.keys().filter(must_fire).collect();
    let hits = receiver.wait(|hits| {
        let fired: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
        expected.is_subset(&fired)
    });
    check_hits(&history, &hits, &gaps);
    check_api(&mut server.client(), &expected, &history);
    let fired: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
    let in_time = history.cancelled.keys().filter(|id| !fired.contains(id)).count();
    assert!(in_time > 20, "too few schedules were cancelled before they fired: {in_time}");
    assert!(server.stop().success());
}

/// Creates schedules until the end of the test.
fn create(shared: &Shared, key: &str, url: &str, number: u64) {
    let mut random = number + 1;
    let mut client = None;
    for count in 0.. {
        let Some(connection) = client.take().or_else(|| shared.connect(key)) else { return };
        let mut connection: Client = connection;
        // Lehmer's multiplicative generator (Park and Miller, 1988) is sufficient, because the test needs no better
        // randomness.
        random = random * 48_271 % 0x7fff_ffff;
        let at_millis = now_millis() + random % AHEAD_MILLIS;
        let id = format!("life-{number}-{count}");
        let schedule = one_shot(&id, at_millis, url, &json!({ "id": id }));
        // If no response arrives, the schedule may or may not exist, so the test does not expect a callback.
        if let Ok(response) = connection.send("POST", "/v1/schedules", &schedule.to_string()) {
            assert_eq!(response.status, 201, "{}", response.body);
            shared.change(|history| {
                history.newest = Some(id.clone());
                history.created.insert(id, at_millis);
            });
            client = Some(connection);
        }
        shared.wait(|history| (history.is_over || history.created.len() < history.created_max).then_some(()));
        if shared.change(|history| history.is_over) {
            return;
        }
    }
}

/// Cancels the newest schedule whenever the creators have created at least seven more schedules, until the end of the
/// test.
fn cancel(shared: &Shared, key: &str) {
    let mut seen = 0;
    while let Some(mut client) = shared.connect(key) {
        loop {
            let next = shared.wait(|history| {
                if history.is_over {
                    Some(None)
                } else {
                    (history.created.len() >= seen + 7).then(|| history.newest.clone())
                }
            });
            let Some(id) = next else { return };
            seen = shared.change(|history| {
                // The outcome of the cancellation is unknown until the response arrives.
                history.undecided.insert(id.clone());
                history.created.len()
            });
            let Ok(response) = client.send("DELETE", &format!("/v1/schedules/{id}"), "") else { break };
            assert_eq!(response.status, 200, "{}", response.body);
            if response.json()["result"] == "cancelled" {
                shared.change(|history| {
                    history.undecided.remove(&id);
                    history.cancelled.insert(id, now_millis());
                });
            }
        }
    }
}

/// Checks that each callback has the right content, and that it arrives neither early nor after the cancellation of its
/// schedule. A callback may arrive twice only if the test killed the server between the two arrivals.
fn check_hits(history: &History, hits: &[Hit], gaps: &[Gap]) {
    let mut runs: BTreeMap<&String, Vec<&Hit>> = BTreeMap::new();
    for hit in hits {
        assert_eq!(hit.body, json!({ "id": hit.schedule }).to_string());
        if let Some(answered_millis) = history.cancelled.get(&hit.schedule) {
            assert!(hit.at_millis <= *answered_millis, "callback after its cancellation at {answered_millis}: {hit:?}");
        }
        if let Some(at_millis) = history.created.get(&hit.schedule) {
            assert!(hit.at_millis >= *at_millis, "{} arrived {} ms early", hit.schedule, at_millis - hit.at_millis);
        }
        runs.entry(&hit.run).or_default().push(hit);
    }
    let schedules: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
    assert_eq!(schedules.len(), runs.len(), "a schedule with one instant has more than one run");
    let mut duplicates = 0;
    for (run, hits) in runs {
        for pair in hits.windows(2) {
            let [first, second] = [pair[0].at_millis, pair[1].at_millis];
            // The receiver may read a callback after the test killed the server that sent the callback.
            let is_across = |gap: &Gap| first <= gap.ready_millis && gap.killed_millis <= second;
            assert!(gaps.iter().any(is_across), "{run} arrived twice without a kill in between: {pair:?}");
            duplicates += 1;
        }
    }
    assert!(duplicates <= IN_FLIGHT_MAX * gaps.len());
}

/// Checks that each expected schedule has ended with one successful run, and that no cancelled schedule is active.
fn check_api(client: &mut Client, expected: &BTreeSet<&String>, history: &History) {
    for id in expected {
        // The outcome becomes durable shortly after the callback arrives.
        let deadline = Instant::now() + TIMEOUT;
        let runs = loop {
            let runs = client.get(&format!("/v1/schedules/{id}/runs")).json();
            if runs["runs"].as_array().is_some_and(|runs| !runs.is_empty()) || Instant::now() > deadline {
                break runs;
            }
        };
        assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "{id}: {runs}");
        assert_eq!(runs["runs"][0]["state"], "succeeded", "{id}: {runs}");
        assert_eq!(client.get(&format!("/v1/schedules/{id}")).json()["state"], "ended", "{id}");
    }
    for id in history.cancelled.keys() {
        let state = client.get(&format!("/v1/schedules/{id}")).json()["state"].clone();
        assert!(state == "cancelled" || state == "ended", "{id}: {state}");
    }
}

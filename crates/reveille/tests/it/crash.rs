//! `kill -9` again and again while schedules are made, cancelled and fired; then every one of them is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::client::{Client, one_shot};
use crate::receiver::{Hit, Receiver};
use crate::server::Server;
use crate::{PATIENCE, now_millis};

const KILLS: usize = 12;
/// Created and answered before each kill; so many more may be before the next life begins.
const CREATED_PER_LIFE: usize = 150;
const CREATORS: u64 = 3;
/// Callbacks are due up to so long after their creation: in this life of the server and in the next ones.
const AHEAD_MILLIS: u64 = 2_500;
/// As `serve` has it by default.
const IN_FLIGHT_MAX: usize = 4_096;

/// What the clients know.
#[derive(Default)]
struct Ledger {
    /// Answered with 201: when it is due.
    created: BTreeMap<String, u64>,
    newest: Option<String>,
    /// Creators wait when there are so many.
    created_max: usize,
    /// Answered with 200 `cancelled`: when. It may have come before that.
    cancelled: BTreeMap<String, u64>,
    /// Answered with 200 `too_late`, or not answered.
    undecided: BTreeSet<String>,
    address: Option<SocketAddr>,
    is_over: bool,
}

/// From a kill until the next server is ready.
struct Gap {
    killed_millis: u64,
    ready_millis: u64,
}

#[derive(Clone, Default)]
struct Shared(Arc<(Mutex<Ledger>, Condvar)>);

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let changed = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        changed
    }

    /// Waits until `look` sees something.
    fn wait<T>(&self, look: impl Fn(&Ledger) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut ledger = self.0.0.lock().unwrap();
        loop {
            if let Some(seen) = look(&ledger) {
                return seen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain, with {} schedules created", ledger.created.len());
            ledger = self.0.1.wait_timeout(ledger, left).unwrap().0;
        }
    }

    /// A connection to the server as soon as there is one; `None` when all is over.
    fn connect(&self, key: &str) -> Option<Client> {
        loop {
            let address = self.wait(|ledger| if ledger.is_over { Some(None) } else { ledger.address.map(Some) })?;
            match Client::connect(address, key) {
                Ok(client) => return Some(client),
                // It was killed since; the next one has another address, or none yet.
                Err(_) => self.change(|ledger| {
                    if ledger.address == Some(address) {
                        ledger.address = None;
                    }
                }),
            }
        }
    }
}

#[test]
fn whatever_was_acknowledged_survives_being_killed_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let shared = Shared::default();
    let mut server = Server::start(&data);
    shared.change(|ledger| ledger.address = Some(server.address));
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
        shared.change(|ledger| ledger.created_max = (life + 1) * CREATED_PER_LIFE);
        shared.wait(|ledger| (ledger.created.len() >= life * CREATED_PER_LIFE).then_some(()));
        shared.change(|ledger| ledger.address = None);
        let killed_millis = now_millis();
        server.kill();
        server = Server::start(&data);
        gaps.push(Gap { killed_millis, ready_millis: now_millis() });
        shared.change(|ledger| ledger.address = Some(server.address));
    }
    shared.change(|ledger| ledger.is_over = true);
    for client in clients {
        client.join().expect("a client ends by itself");
    }

    let ledger = shared.change(std::mem::take);
    let is_owed = |id: &&String| !ledger.cancelled.contains_key(*id) && !ledger.undecided.contains(*id);
    let owed: BTreeSet<&String> = ledger.created.keys().filter(is_owed).collect();
    let hits = receiver.wait(|hits| {
        let came: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
        owed.is_subset(&came)
    });
    check_hits(&ledger, &hits, &gaps);
    check_api(&mut server.client(), &owed, &ledger);
    let came: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
    let in_time = ledger.cancelled.keys().filter(|id| !came.contains(id)).count();
    assert!(in_time > 20, "too few were cancelled in time to show anything: {in_time}");
    assert!(server.stop().success());
}

/// Creates schedules until all is over.
fn create(shared: &Shared, key: &str, url: &str, number: u64) {
    let mut chance = number + 1;
    let mut client = None;
    for count in 0.. {
        let Some(connection) = client.take().or_else(|| shared.connect(key)) else { return };
        let mut connection: Client = connection;
        // A multiplicative generator (Lehmer; Park and Miller, 1988): any spread will do.
        chance = chance * 48_271 % 0x7fff_ffff;
        let at_millis = now_millis() + chance % AHEAD_MILLIS;
        let id = format!("life-{number}-{count}");
        let schedule = one_shot(&id, at_millis, url, &json!({ "id": id }));
        // Without an answer the schedule may be there or not; nothing is owed.
        if let Ok(answer) = connection.send("POST", "/v1/schedules", &schedule.to_string()) {
            assert_eq!(answer.status, 201, "{}", answer.body);
            shared.change(|ledger| {
                ledger.newest = Some(id.clone());
                ledger.created.insert(id, at_millis);
            });
            client = Some(connection);
        }
        shared.wait(|ledger| (ledger.is_over || ledger.created.len() < ledger.created_max).then_some(()));
        if shared.change(|ledger| ledger.is_over) {
            return;
        }
    }
}

/// Cancels the newest schedule, once in a few, until all is over.
fn cancel(shared: &Shared, key: &str) {
    let mut seen = 0;
    while let Some(mut client) = shared.connect(key) {
        loop {
            let next = shared.wait(|ledger| {
                if ledger.is_over {
                    Some(None)
                } else {
                    (ledger.created.len() >= seen + 7).then(|| ledger.newest.clone())
                }
            });
            let Some(id) = next else { return };
            seen = shared.change(|ledger| {
                // Until it is answered, nobody knows.
                ledger.undecided.insert(id.clone());
                ledger.created.len()
            });
            let Ok(answer) = client.send("DELETE", &format!("/v1/schedules/{id}"), "") else { break };
            assert_eq!(answer.status, 200, "{}", answer.body);
            if answer.json()["result"] == "cancelled" {
                shared.change(|ledger| {
                    ledger.undecided.remove(&id);
                    ledger.cancelled.insert(id, now_millis());
                });
            }
        }
    }
}

/// What came is what was asked for, never early, never after it was cancelled, and twice only across a kill.
fn check_hits(ledger: &Ledger, hits: &[Hit], gaps: &[Gap]) {
    let mut runs: BTreeMap<&String, Vec<&Hit>> = BTreeMap::new();
    for hit in hits {
        assert_eq!(hit.body, json!({ "id": hit.schedule }).to_string());
        if let Some(answered_millis) = ledger.cancelled.get(&hit.schedule) {
            assert!(hit.at_millis <= *answered_millis, "cancelled at {answered_millis}, and then it came: {hit:?}");
        }
        if let Some(at_millis) = ledger.created.get(&hit.schedule) {
            assert!(hit.at_millis >= *at_millis, "{} came {} ms early", hit.schedule, at_millis - hit.at_millis);
        }
        runs.entry(&hit.run).or_default().push(hit);
    }
    let schedules: BTreeSet<&String> = hits.iter().map(|hit| &hit.schedule).collect();
    assert_eq!(schedules.len(), runs.len(), "a one-shot has one run, whatever happens");
    let mut doubled = 0;
    for (run, hits) in runs {
        for pair in hits.windows(2) {
            let [first, second] = [pair[0].at_millis, pair[1].at_millis];
            // The receiver may read a callback after its sender's death.
            let is_across = |gap: &Gap| first <= gap.ready_millis && gap.killed_millis <= second;
            assert!(gaps.iter().any(is_across), "{run} came twice, and no kill was between: {pair:?}");
            doubled += 1;
        }
    }
    assert!(doubled <= IN_FLIGHT_MAX * gaps.len());
}

/// The API says the same: each schedule has ended, with one run that succeeded; no cancelled one is active.
fn check_api(client: &mut Client, owed: &BTreeSet<&String>, ledger: &Ledger) {
    for id in owed {
        // The callback came; its outcome is durable a moment later.
        let deadline = Instant::now() + PATIENCE;
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
    for id in ledger.cancelled.keys() {
        let state = client.get(&format!("/v1/schedules/{id}")).json()["state"].clone();
        assert!(state == "cancelled" || state == "ended", "{id}: {state}");
    }
}

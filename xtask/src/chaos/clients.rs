//! Clients of a chaos test. Each client creates schedules, changes its own schedules, sends one request at a time, and
//! logs the responses.
//!
//! Invariant: only one client sends requests about a schedule, and it never has two of these requests in flight.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cron_oracle::{Expression, FIXED as ZONES};
use serde_json::{Value, json};
use test_servers::http::{self, Connection, Message};

use super::instant;
use super::log::{Answer, Log, Operation, Request, now_millis};
use super::random::Random;

/// Timeout of a request. A member waits up to 2 s for another member and may wait twice, so this timeout exceeds 4 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Time for which a client avoids a member that did not respond.
const AVOID: Duration = Duration::from_secs(2);
const TRIES_MAX: u32 = 4;
/// Percentage of the requests that name the topic as target, if the cluster has a message bus.
const TOPIC_PERCENT: u64 = 25;
/// Number of the different keys of records.
const KEYS: u64 = 50;
const EVERY_MS: u64 = 2_000;
/// Minimum and maximum lifetime of a recurring schedule, in milliseconds. Afterwards its client cancels the schedule.
const RECURRING_MS: (u64, u64) = (10_000, 40_000);
/// Time in milliseconds for which a fail-over of the database may undo a cancellation. It exceeds the lag of a standby, the
/// time of the fail-over, and the delay of a cancellation by other faults.
const UNDONE_MS: u64 = 120_000;
/// Maximum number of live schedules that a client remembers.
const REMEMBERED_MAX: usize = 200;
/// Time in milliseconds before the due instant of a one-shot schedule. In this time, a client rarely changes the
/// schedule.
const NEAR_MS: u64 = 100;

/// Target, members and log that all clients share.
pub(super) struct Workload {
    pub(super) log: Log,
    pub(super) key: String,
    /// URL of the receiver.
    pub(super) receiver: String,
    /// Topic that some schedules have as target; `None` if the cluster has no message bus.
    pub(super) topic: Option<String>,
    /// Members to which clients may send requests. The map excludes members that the test knows to be dead.
    pub(super) members: Mutex<BTreeMap<&'static str, SocketAddr>>,
    /// Longest time in milliseconds from a client's request to the due instant in this request.
    pub(super) ahead_ms: u64,
    pub(super) is_over: AtomicBool,
    pub(super) requests: AtomicU64,
    pub(super) unknown: AtomicU64,
    /// Number of fail-overs of the database.
    pub(super) failovers: AtomicU64,
}

impl Workload {
    pub(super) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let headers = format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", self.key);
        http::request(method, path, &headers, body.as_bytes())
    }
}

impl Workload {
    /// Returns a random target: the receiver, or the topic if the cluster has a message bus.
    pub(super) fn target(&self, random: &mut Random) -> Value {
        let Some(topic) = self.topic.as_ref().filter(|_| random.percent(TOPIC_PERCENT)) else {
            return json!({ "http": { "url": self.receiver, "timeout": "5s" } });
        };
        let mut bus = json!({ "topic": topic, "timeout": "5s" });
        if random.percent(50) {
            bus["key"] = json!(format!("key-{}", random.between(1, KEYS)));
        }
        json!({ "bus": bus })
    }

    pub(super) fn lock_members(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, SocketAddr>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Schedule that the client may change later.
#[derive(Clone, Debug)]
struct Known {
    token: String,
    id: String,
    version: u32,
    at_ms: Option<u64>,
    /// Cron expression and time zone of a recurring schedule. `None` if the schedule repeats at an interval.
    cron: Option<(String, String)>,
    /// Instant at which the client cancels a recurring schedule.
    until_ms: u64,
}

pub(super) struct Client {
    workload: Arc<Workload>,
    number: usize,
    count: u64,
    random: Random,
    connections: BTreeMap<&'static str, Connection>,
    avoided: BTreeMap<&'static str, Instant>,
    known: Vec<Known>,
    recurring: Vec<Known>,
    /// Recurring schedules that the client has cancelled recently. A fail-over of the database may undo a cancellation,
    /// so the client then cancels them again.
    cancelled: Vec<Known>,
    /// Number of fail-overs after which the client has cancelled schedules again.
    failovers: u64,
}

impl Client {
    pub(super) fn new(workload: &Arc<Workload>, number: usize, random: Random) -> Self {
        Client {
            workload: workload.clone(),
            number,
            count: 0,
            random,
            connections: BTreeMap::new(),
            avoided: BTreeMap::new(),
            known: Vec::new(),
            recurring: Vec::new(),
            cancelled: Vec::new(),
            failovers: 0,
        }
    }

    /// Sends `per_second` requests per second until the run ends, then cancels the recurring schedules.
    pub(super) fn run(mut self, per_second: f64) {
        let period = Duration::from_secs_f64(1.0 / per_second);
        let mut next = Instant::now() + period.mul_f64(self.random.between(0, 100) as f64 / 100.0);
        while !self.workload.is_over.load(Ordering::Relaxed) {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            // The client drops the requests that it could not send in time.
            next = (next + period).max(Instant::now());
            self.act();
        }
        self.remember_cancelled();
        for known in std::mem::take(&mut self.recurring) {
            self.cancel(&known);
        }
    }

    /// After a fail-over, remembers the cancelled schedules as live, so that the client cancels them again.
    fn remember_cancelled(&mut self) {
        let failovers = self.workload.failovers.load(Ordering::Relaxed);
        if failovers != self.failovers {
            self.failovers = failovers;
            self.recurring.append(&mut self.cancelled);
        }
    }

    fn act(&mut self) {
        let now = now_millis();
        self.remember_cancelled();
        if let Some(at) = self.recurring.iter().position(|known| known.until_ms <= now) {
            let known = self.recurring.swap_remove(at);
            self.cancel(&known);
            self.cancelled.retain(|cancelled| cancelled.until_ms + UNDONE_MS > now);
            return self.cancelled.push(known);
        }
        self.known.retain(|known| known.at_ms.is_none_or(|at| at > now + NEAR_MS));
        match self.random.between(1, 100) {
            1..=62 => self.create(None),
            63..=77 => {
                let id = format!("chosen-{}", self.token());
                self.create(Some(id));
            }
            78..=79 => self.create_recurring(),
            80..=89 => match self.take_known() {
                Some(known) => self.cancel(&known),
                None => self.create(None),
            },
            _ => match self.take_known() {
                Some(known) => self.reschedule(known),
                None => self.create(None),
            },
        }
    }

    fn take_known(&mut self) -> Option<Known> {
        let last = u64::try_from(self.known.len()).ok()?.checked_sub(1)?;
        let at = usize::try_from(self.random.between(0, last)).ok()?;
        Some(self.known.swap_remove(at))
    }

    /// Returns the name of the schedule that this client creates next.
    fn token(&self) -> String {
        format!("{}-{}", self.number, self.count + 1)
    }

    /// Returns a random due instant. With a probability of 50%, the instant is within the next 5 s. Otherwise, it is
    /// within the next `ahead_ms` milliseconds.
    fn due(&mut self) -> u64 {
        let most = self.workload.ahead_ms;
        let ahead = if self.random.percent(50) { most.min(5_000) } else { most };
        now_millis() + self.random.between(1_000.min(ahead), ahead)
    }

    fn create(&mut self, id: Option<String>) {
        let token = self.token();
        self.count += 1;
        let at_ms = self.due();
        let id_text = id.clone().unwrap_or_default();
        let known = Known { token, id: id_text, version: 1, at_ms: Some(at_ms), cron: None, until_ms: 0 };
        let mut body = self.body(&known);
        if let Some(id) = &id {
            body["id"] = json!(id);
        }
        // A repeated request without an id would create another schedule, so the client sends this request only once.
        let tries_max = if id.is_some() { TRIES_MAX } else { 1 };
        for _ in 0..tries_max {
            let request = self.request(Operation::Create, &known, "POST", "/v1/schedules", &body.to_string());
            if request.answer == Answer::Unknown {
                continue;
            }
            if let Some(id) = request.id.or(id).filter(|_| self.known.len() < REMEMBERED_MAX) {
                self.known.push(Known { id, ..known });
            }
            return;
        }
    }

    fn create_recurring(&mut self) {
        let token = self.token();
        self.count += 1;
        let lifetime_ms = self.random.between(RECURRING_MS.0, RECURRING_MS.1);
        let until_ms = now_millis() + lifetime_ms;
        let cron = self.random.percent(50).then(|| self.cron(lifetime_ms));
        let known = Known { id: format!("recurring-{token}"), token, version: 0, at_ms: None, cron, until_ms };
        if let Some(known) = self.put(known) {
            self.recurring.push(known);
        }
    }

    /// Returns a random cron expression, which probably fires several times within the lifetime, and its time zone.
    fn cron(&mut self, lifetime_ms: u64) -> (String, String) {
        let zone = self.random.pick(&ZONES).expect("the oracle knows some time zones");
        let [now_secs, span_secs] = [now_millis(), lifetime_ms].map(|ms| i64::try_from(ms / 1_000).unwrap_or(0));
        let expression = Expression::draw(zone, now_secs, span_secs, |below| self.random.between(0, below - 1));
        (expression.to_string(), zone.name.to_owned())
    }

    fn reschedule(&mut self, known: Known) {
        let at_ms = Some(self.due());
        if let Some(known) = self.put(Known { at_ms, ..known }) {
            self.known.push(known);
        }
    }

    /// Creates or replaces a schedule. Each try sends a new version, because the version of an earlier try may already
    /// have fired.
    fn put(&mut self, mut known: Known) -> Option<Known> {
        let path = format!("/v1/schedules/{}", known.id);
        for _ in 0..TRIES_MAX {
            known.version += 1;
            let body = self.body(&known).to_string();
            let request = self.request(Operation::Put, &known, "PUT", &path, &body);
            if request.answer != Answer::Unknown {
                return Some(known);
            }
        }
        // A member may have created the recurring schedule although the client received no response. The client
        // therefore remembers the schedule and cancels it later.
        known.at_ms.is_none().then_some(known)
    }

    fn cancel(&mut self, known: &Known) {
        let path = format!("/v1/schedules/{}", known.id);
        // A recurring schedule does not end by itself, so the client tries its cancellation more often.
        let tries_max = if known.at_ms.is_none() { 4 * TRIES_MAX } else { TRIES_MAX };
        for _ in 0..tries_max {
            let request = self.request(Operation::Cancel, known, "DELETE", &path, "");
            if request.answer != Answer::Unknown {
                return;
            }
        }
    }

    fn body(&mut self, known: &Known) -> Value {
        let target = self.workload.target(&mut self.random);
        let payload = json!({ "token": known.token, "version": known.version });
        let retry = json!({ "attempts_max": 20, "backoff": "500ms", "backoff_max": "2s" });
        let mut body = json!({ "target": target, "payload": payload, "retry": retry });
        match (known.at_ms, &known.cron) {
            (Some(at_ms), _) => body["at"] = json!(instant::text(at_ms)),
            (None, Some((expression, zone))) => {
                body["cron"] = json!(expression);
                body["zone"] = json!(zone);
            }
            (None, None) => body["every"] = json!(format!("{}s", EVERY_MS / 1_000)),
        }
        body
    }

    /// Sends a request to a member and logs the result.
    fn request(&mut self, operation: Operation, known: &Known, method: &str, path: &str, body: &str) -> Request {
        let (member, address) = self.member();
        let asked_ms = now_millis();
        let response = self.send(member, address, method, path, body);
        let answered_ms = now_millis();
        let mut request = Request {
            token: known.token.clone(),
            operation,
            version: known.version,
            at_ms: known.at_ms,
            every_ms: (known.at_ms.is_none() && known.cron.is_none()).then_some(EVERY_MS),
            cron: known.cron.clone(),
            member: member.to_owned(),
            asked_ms,
            answered_ms,
            answer: Answer::Unknown,
            status: 0,
            id: None,
            next_ms: None,
            decided_by_ms: None,
            is_kept: false,
            too_late: false,
            said: None,
        };
        match response {
            Ok(message) => read_response(&mut request, &message),
            Err(error) => {
                self.connections.remove(member);
                self.avoided.insert(member, Instant::now() + AVOID);
                request.said = Some(error.to_string());
            }
        }
        self.workload.log.write(&request);
        self.workload.requests.fetch_add(1, Ordering::Relaxed);
        if request.answer == Answer::Unknown {
            self.workload.unknown.fetch_add(1, Ordering::Relaxed);
        }
        request
    }

    /// Waits until the list of members is not empty, and returns a random member. If possible, this is a member that
    /// the client does not avoid.
    fn member(&mut self) -> (&'static str, SocketAddr) {
        loop {
            let members: Vec<_> =
                self.workload.lock_members().iter().map(|(name, address)| (*name, *address)).collect();
            let now = Instant::now();
            self.avoided.retain(|_, until| *until > now);
            let near: Vec<_> = members.iter().filter(|(name, _)| !self.avoided.contains_key(name)).copied().collect();
            if let Some(member) = self.random.pick(&near).or_else(|| self.random.clone().pick(&members)) {
                return *member;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn send(
        &mut self,
        member: &'static str,
        address: SocketAddr,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<Message> {
        if !self.connections.contains_key(member) {
            self.connections.insert(member, connect(address)?);
        }
        let connection = self.connections.get_mut(member).expect("the client has a connection to this member");
        let message = connection.exchange(&self.workload.request(method, path, body))?;
        if message.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.connections.remove(member);
        }
        Ok(message)
    }
}

/// Opens a connection to one member.
///
/// # Errors
/// Returns an error if no process responds at the address. In this case the client has sent no request.
pub(super) fn connect(address: SocketAddr) -> std::io::Result<Connection> {
    Connection::new(TcpStream::connect_timeout(&address, CONNECT_TIME)?)?.with_timeout(REQUEST_TIMEOUT)
}

fn read_response(request: &mut Request, message: &Message) {
    let body = message.json();
    request.status = message.status().unwrap_or(0);
    let instant_of = |name: &str| instant::parse(body[name].as_str()?);
    request.answer = match (request.operation, request.status) {
        (Operation::Create | Operation::Put, 201) | (Operation::Put, 200) => {
            request.id = body["id"].as_str().map(str::to_owned);
            request.next_ms = instant_of("next");
            request.too_late = body["too_late"] == true;
            Answer::Acknowledged
        }
        (Operation::Create, 409) => Answer::Exists,
        (Operation::Cancel, 200) if body["result"] == "cancelled" => Answer::Cancelled,
        (Operation::Cancel, 200) if body["result"] == "too_late" => Answer::TooLate,
        (Operation::Cancel, 202) => {
            request.decided_by_ms = instant_of("decided_by");
            Answer::Pending
        }
        (Operation::Cancel, 404) => Answer::NotFound,
        (_, 500..=599) => Answer::Unknown,
        _ => Answer::Strange,
    };
    if matches!(request.answer, Answer::Unknown | Answer::Strange) {
        request.said = Some(String::from_utf8_lossy(&message.body).chars().take(300).collect());
    }
}

//! Message bus of the single-node and cluster scenarios. Some of their schedules have a topic as target.
//!
//! Each member sends its records through the real transport ([`BusDeliver`]) and through its own connection to one bus
//! in memory. Requests to the bus take time. With some seeds, single requests fail, the bus opens producers slowly, or it
//! stores a record but its response is lost. For some seconds, the bus is away for one member or for all members, or it responds to none of
//! their requests. The records survive the crashes of members.
//!
//! At the end, [`Topics::collect`] reads the topics. Each record must belong to an attempt, with the headers, the key
//! and the value of this attempt. The history checks the instants of the records. This module also checks:
//!
//! - If an attempt ended with the position of its record, the topic has the record at this position.
//! - A topic that the tenant's policy does not list has no record.
//! - The transport gives the producer no record at or after the deadline of its attempt.

mod bus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::bus::memory::{MemoryBus, MemoryOptions};
use ::bus::{Admin as _, Bus as _, Header, Record, TopicName, TopicOptions};
use callback::{BusDeliver, BusOptions};
use domain::{AttemptResult, BusTarget, CloudEvent, CloudEventMode, Egress, Schedule, Target};
use futures_util::future::BoxFuture;
use runtime::{Monotonic, Runtime};
use scheduler::{Deliver as _, Delivered, Delivery};

use self::bus::WatchedBus;
use crate::single_node::Mutant;
use crate::{CallbackId, Handle, History, Random};

/// Topics that the policy of the tenant lists.
const LISTED: [&str; 2] = ["orders", "orders-eu"];
/// Topic that the policy of the tenant does not list.
const UNLISTED: &str = "payments";
const PARTITIONS: u32 = 3;

/// Returns the egress policy of the tenant.
pub(crate) fn egress() -> Egress {
    let listed = "orders*".parse().expect("the pattern is valid");
    Egress { allow_topics: vec![listed], ..Egress::default() }
}

/// Returns a random topic as the target of a schedule. The policy of the tenant lists most of these topics. A recurring
/// schedule gets no other topic, because its runs would wait for the circuit of this topic at the end.
pub(crate) fn target(random: &mut Random, is_recurring: bool) -> Target {
    let topic = match random.below(16) {
        0 if !is_recurring => UNLISTED,
        number => LISTED[usize::from(number % 2 == 0)],
    };
    let key = random.coin().then(|| format!("customer-{}", random.below(4)));
    let mode = [None, None, Some(CloudEventMode::Binary), Some(CloudEventMode::Structured)][random.index(4)];
    let cloud_event = mode.map(|mode| CloudEvent { mode, kind: "com.example.due".to_owned(), source: None });
    let timeout = Duration::from_secs([1, 2, 5][random.index(3)]);
    Target::Bus(BusTarget { topic: topic.to_owned(), key, headers: Vec::new(), cloud_event, timeout })
}

/// Bus of a scenario. A clone is cheap.
#[derive(Clone)]
pub(crate) struct Topics {
    sim: Handle,
    history: History,
    mutant: Option<Mutant>,
    /// Connection of the scenario itself. No outage affects it.
    bus: Arc<MemoryBus>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Attempts that members have made. One key has several attempts only if an owner repeats an attempt under its
    /// term.
    attempts: BTreeMap<AttemptKey, Vec<Attempt>>,
    /// Connection of each member, since its last start.
    connections: BTreeMap<String, Arc<MemoryBus>>,
    outage: Option<Outage>,
    /// True if the bus opens producers slowly, and often rejects to open one.
    opens_slowly: bool,
    violations: BTreeSet<String>,
}

/// Failure of the connections to the bus.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outage {
    /// Only affected member; `None` if the outage affects all members.
    member: Option<String>,
    /// True if the bus still receives the requests. Their responses are lost.
    loses_responses: bool,
}

/// Id of the run, number of the attempt, and term of the owner.
type AttemptKey = (String, u16, u64);

struct Attempt {
    callback: CallbackId,
    schedule: Arc<Schedule>,
    deadline: Monotonic,
    began_at: Duration,
    /// Partition and offset in the result of the attempt.
    result: Option<(u32, u64)>,
    /// Partition and offset of the record in the topic.
    record: Option<(u32, u64)>,
    /// True if the transport sent nothing, because the deadline of the attempt had passed.
    is_withdrawn: bool,
}

impl Topics {
    /// Creates the bus and its topics. The seed determines the delays and the failures.
    pub(crate) async fn new(sim: &Handle, history: &History, mutant: Option<Mutant>) -> Topics {
        let slowest = Duration::from_millis(sim.draw(|random| [2, 20, 60, 200][random.index(4)]));
        let fail_one_in = sim.draw(|random| random.coin().then_some(20));
        let options =
            MemoryOptions { latency: Some(Duration::ZERO..=slowest), fail_one_in, ..MemoryOptions::default() };
        let bus = Arc::new(MemoryBus::new(sim.outside(), options));
        for topic in names() {
            while bus.describe_topic(&topic).await.is_err() {
                // The response may be lost after the bus has created the topic.
                drop(bus.create_topic(&topic, TopicOptions::with_partitions(PARTITIONS)).await);
            }
        }
        Topics { sim: sim.clone(), history: history.clone(), mutant, bus, state: Arc::default() }
    }

    /// Connects a member that starts.
    pub(crate) fn connect(&self, member: &str, runtime: &Runtime) -> Sender {
        let connection = Arc::new(self.bus.reopen(runtime.clone()));
        let mut state = self.state();
        if let Some(outage) = state.outage.as_ref().filter(|outage| outage.affects(member)) {
            outage.begin(&connection);
        }
        state.connections.insert(member.to_owned(), connection.clone());
        drop(state);
        let watched = WatchedBus { topics: self.clone(), runtime: runtime.clone(), inner: connection };
        let deliver = BusDeliver::new(runtime, Arc::new(watched), BusOptions::default());
        Sender { topics: self.clone(), member: member.to_owned(), deliver }
    }

    /// Injects outages until the true time `until`. With some seeds, the bus also opens producers slowly until then. When
    /// this function returns, the last outage has ended.
    pub(crate) async fn disturb(&self, until: Duration) {
        self.state().opens_slowly = self.sim.draw(|random| random.coin());
        while self.sim.elapsed() < until {
            let (calm, length) = self.sim.draw(|random| (random.below(5_000), 100 + random.below(3_000)));
            self.sim.sleep(Duration::from_millis(calm)).await;
            let names: Vec<String> = self.state().connections.keys().cloned().collect();
            let outage = self.sim.draw(|random| Outage {
                member: random.coin().then(|| names[random.index(names.len())].clone()),
                loses_responses: random.coin(),
            });
            self.sim.note(&format!("the bus has an outage: {outage:?}"));
            self.begin(outage);
            self.sim.sleep(Duration::from_millis(length)).await;
            self.restore();
        }
        self.state().opens_slowly = false;
    }

    fn begin(&self, outage: Outage) {
        let mut state = self.state();
        let affected = state.connections.iter().filter(|(member, _)| outage.affects(member));
        affected.for_each(|(_, connection)| outage.begin(connection));
        state.outage = Some(outage);
    }

    fn restore(&self) {
        let connections: Vec<Arc<MemoryBus>> = {
            let mut state = self.state();
            state.outage = None;
            state.connections.values().cloned().collect()
        };
        connections.iter().for_each(|connection| connection.cut(false));
    }

    /// Reads all topics, and reports the records to the history. The scenario calls this function after all members
    /// have stopped, and before it computes the verdict.
    pub(crate) async fn collect(&self) {
        for topic in names() {
            let ends = loop {
                if let Ok(ends) = self.bus.stored_ends(&topic).await {
                    break ends;
                }
            };
            let mut missing: u64 = ends.iter().map(|end| end.0).sum();
            let reader = loop {
                if let Ok(reader) = self.bus.reader(&topic).await {
                    break reader;
                }
            };
            while missing > 0 {
                let batch = reader.next().await.expect("a reader in memory repeats its requests");
                missing = missing.saturating_sub(batch.records.len() as u64);
                for record in &batch.records {
                    if let Err(problem) = self.assign(&topic, batch.partition.index, record) {
                        let place = format!("{topic}/{}/{}", batch.partition.index, record.offset.0);
                        self.violate(format!("{problem}: the record at {place} has the headers {:?}", record.headers));
                    }
                }
            }
        }
    }

    /// Assigns a record to its attempt. Returns the problem of a wrong record.
    fn assign(&self, topic: &TopicName, partition: u32, record: &Record) -> Result<(), &'static str> {
        let key = key_of(&record.headers).ok_or("unreadable record")?;
        let stored_at = record.timestamp.since(self.sim.epoch());
        let mut state = self.state();
        let attempts = state.attempts.get_mut(&key).ok_or("record without an attempt")?;
        let position = (partition, record.offset.0);
        let free = attempts.iter_mut().filter(|attempt| attempt.record.is_none());
        let attempt =
            free.max_by_key(|attempt| attempt.rank(position, stored_at)).ok_or("two records of one attempt")?;
        attempt.record = Some(position);
        // The time of a record has no fractions of milliseconds.
        self.history.record_stored(attempt.callback, stored_at.max(attempt.began_at));
        let Target::Bus(target) = &attempt.schedule.spec.target else { return Err("record of an HTTP callback") };
        if target.topic != topic.as_str() {
            return Err("record in a wrong topic");
        }
        if target.topic == UNLISTED {
            return Err("record in a topic that the policy does not list");
        }
        check_content(&key.0, target, &attempt.schedule, record)
    }

    /// Asserts that each record and each result of an attempt was correct. The scenario calls this function after
    /// [`Topics::collect`].
    ///
    /// # Panics
    /// Panics with a list of the violations.
    pub(crate) fn check(&self) {
        let state = self.state();
        let mut violations = state.violations.clone();
        for ((run, attempt, term), attempts) in &state.attempts {
            let results: BTreeSet<_> = attempts.iter().filter_map(|attempt| attempt.result).collect();
            let records: BTreeSet<_> = attempts.iter().filter_map(|attempt| attempt.record).collect();
            for (partition, offset) in results.difference(&records) {
                violations.insert(format!(
                    "unstored: attempt {attempt} of {run} under term {term} ended with the position \
                     {partition}/{offset}, but its records are at {records:?}"
                ));
            }
        }
        drop(state);
        assert!(violations.is_empty(), "violations of bus targets: {violations:#?}");
    }

    fn violate(&self, violation: String) {
        self.sim.note(&violation);
        self.state().violations.insert(violation);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Returns a higher value if the record at `position` belongs to this attempt with a higher probability.
    fn rank(&self, position: (u32, u64), stored_at: Duration) -> (bool, bool, bool, Duration) {
        let has_other_result = self.result.is_some_and(|result| result != position);
        let had_begun = stored_at + Duration::from_millis(1) >= self.began_at;
        (self.result == Some(position), !has_other_result && !self.is_withdrawn, had_begun, self.began_at)
    }
}

impl Outage {
    fn affects(&self, member: &str) -> bool {
        self.member.as_deref().is_none_or(|only| only == member)
    }

    fn begin(&self, connection: &MemoryBus) {
        if self.loses_responses { connection.cut_answers() } else { connection.cut(true) }
    }
}

/// Transport of one member to the topics.
pub(crate) struct Sender {
    topics: Topics,
    member: String,
    deliver: BusDeliver,
}

impl Sender {
    /// Makes an attempt, and reports it to the history.
    pub(crate) fn deliver(&self, mut delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let topics = self.topics.clone();
        let callback = topics.history.attempt_to_topic_began(&self.member, delivery.occurrence, delivery.attempt);
        let key = (delivery.occurrence.run_id().to_string(), delivery.attempt, delivery.term.0);
        let attempt = Attempt {
            callback,
            schedule: delivery.schedule.clone(),
            deadline: delivery.deadline,
            began_at: topics.sim.elapsed(),
            result: None,
            record: None,
            is_withdrawn: false,
        };
        topics.state().attempts.entry(key.clone()).or_default().push(attempt);
        match topics.mutant {
            Some(Mutant::IgnoresTheTopicPolicy) => {
                let anything = "*".parse().expect("the pattern is valid");
                Arc::make_mut(&mut delivery.tenant).egress.allow_topics = vec![anything];
            }
            Some(Mutant::SendsAfterTheDeadline) => delivery.deadline = delivery.deadline + Duration::from_secs(3_600),
            _ => {}
        }
        let delivering = self.deliver.deliver(delivery);
        Box::pin(async move {
            let delivered = delivering.await;
            let result = delivered.as_ref().map(|delivered| &delivered.result);
            topics.sim.note(&format!("attempt {} of {} ends: {result:?}", key.1, key.0));
            match result {
                Some(result) => topics.history.callback_ended(callback, result.is_success()),
                None => topics.history.callback_withdrawn(callback),
            }
            let mut state = topics.state();
            let mut attempts = state.attempts.get_mut(&key).into_iter().flatten();
            let attempt = attempts.find(|attempt| attempt.callback == callback);
            let attempt = attempt.expect("the code above has added the attempt");
            attempt.is_withdrawn = result.is_none();
            if let Some(AttemptResult::Stored { partition, offset }) = result {
                attempt.result = Some((*partition, *offset));
            }
            drop(state);
            delivered
        })
    }
}

fn names() -> impl Iterator<Item = TopicName> {
    LISTED.into_iter().chain([UNLISTED]).map(|name| TopicName::new(name).expect("the name is valid"))
}

/// Returns the value of a header that a record has exactly once.
fn header<'a>(headers: &'a [Header], name: &str) -> Option<&'a str> {
    let mut found = headers.iter().filter(|header| header.name == name);
    let value = found.next()?.value.as_ref()?;
    if found.next().is_some() { None } else { std::str::from_utf8(value).ok() }
}

fn key_of(headers: &[Header]) -> Option<AttemptKey> {
    let run = header(headers, "webhook-id")?.to_owned();
    let number = header(headers, "reveille-attempt")?.parse().ok()?;
    Some((run, number, header(headers, "reveille-term")?.parse().ok()?))
}

/// Checks the key, the value and the other headers of a record of the run `run`.
fn check_content(run: &str, target: &BusTarget, schedule: &Schedule, record: &Record) -> Result<(), &'static str> {
    let of = |name| header(&record.headers, name);
    let mode = target.cloud_event.as_ref().map(|event| event.mode);
    let value = record.value.as_deref().unwrap_or_default();
    let has_value = match mode {
        Some(CloudEventMode::Structured) => {
            std::str::from_utf8(value).is_ok_and(|text| text.contains(&format!("\"id\":\"{run}\"")))
        }
        Some(CloudEventMode::Binary) | None => value == schedule.spec.payload,
    };
    let is_event = (mode == Some(CloudEventMode::Binary)).then_some(run) == of("ce_id");
    let is_of_run = of("reveille-run-id") == Some(run) && of("reveille-schedule-id") == Some(schedule.id.as_str());
    let is_signed = of("webhook-signature").is_some() && of("webhook-timestamp").is_some();
    let has_key = record.key.as_deref() == target.key.as_ref().map(String::as_bytes);
    match has_value && is_event && is_of_run && is_signed && has_key {
        true => Ok(()),
        false => Err("wrong content"),
    }
}

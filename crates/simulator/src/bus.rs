//! Scenario with the members of one group of consumers. Each member runs a [`Processor`] on the bus in memory.
//!
//! Members crash, pause, lose their connections, and stop and start again, while a producer sends records. With some
//! seeds, random requests to the bus fail, including commits. The handlers take random times, and some calls fail or
//! panic. With some seeds, failed records wait in retry topics and then become dead letters, or a call has several
//! records. Processors pause and resume. The scenario checks:
//!
//! - Each record is handled or becomes a dead letter. No record is committed before a handler has finished it, or before
//!   the bus has acknowledged a copy of it.
//! - Without retry topics, no handler starts a record before all earlier records of its key are finished.
//! - A member that was assigned a partition after a commit does not handle the records of this commit again.
//! - No handler continues after its member has released or lost the partition.
//! - The number of records in hand is bounded.
//!
//! Out of scope: topics that grow, and failures of the bus itself.

mod history;
mod mutant;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::processor::{BatchHandler, Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{Bus, ConsumerOptions, NewRecord, Producer, ProducerOptions, TopicName, TopicOptions};
use futures_util::future::BoxFuture;
use runtime::Runtime;

use self::history::{AssignmentId, History};
pub use self::mutant::Mutant;
use self::mutant::WatchedBus;
use crate::{Handle, Simulation, Suite};

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const SESSION: Duration = Duration::from_secs(2);
const GROUP: &str = "billing";
const DEAD_LETTERS: &str = "dead";
/// Largest number of records in hand of a member, without the records of one batch.
const RECORDS_MAX: usize = 40;
const BATCH: usize = 15;
/// Longest time until all records are handled after the last fault.
const RECOVERY: Duration = Duration::from_secs(300);

pub(crate) fn add_to(suite: Suite) -> Suite {
    suite.with("bus", run)
}

/// Runs the scenario once, with the seed of `sim`.
///
/// # Panics
/// Panics if a check fails.
pub fn run(sim: &Simulation) {
    run_with(sim, None);
}

/// Runs the scenario with a deliberate bug.
///
/// # Panics
/// Panics if a check fails.
pub fn run_with(sim: &Simulation, mutant: Option<Mutant>) {
    sim.set_time_limit(Duration::from_secs(900));
    // The handlers panic on purpose.
    sim.tolerate_panics();
    let handle: Handle = (**sim).clone();
    sim.run_until(async move {
        let scene = Scene::new(&handle, mutant).await;
        for name in MEMBERS {
            scene.start(name, handle.member(name)).await;
        }
        let keys: Vec<String> = (0..handle.draw(|random| 1 + random.below(12))).map(|key| format!("k{key}")).collect();
        let mut sent = 0;
        for _ in 0..handle.draw(|random| 4 + random.below(10)) {
            let count = handle.draw(|random| random.below(30));
            scene.send(&keys, sent..sent + count).await;
            sent += count;
            scene.fault().await;
            scene.check();
        }
        scene.recover().await;
        let total = keys.len() * usize::try_from(sent).expect("a small number");
        handle.wait_until("all records are handled", RECOVERY, || scene.history.done() == total).await;
        for name in MEMBERS {
            scene.stop(name).await;
        }
        scene.check();
        scene.check_committed().await;
    });
}

struct Scene {
    sim: Handle,
    mutant: Option<Mutant>,
    /// Connection of the scenario itself, which never fails.
    bus: MemoryBus,
    producer: Arc<dyn Producer>,
    topic: TopicName,
    history: Arc<History>,
    options: ProcessorOptions,
    /// Largest number of records in a call; `None` if the members do not use batches.
    batch_max: Option<usize>,
    members: Mutex<BTreeMap<&'static str, Member>>,
}

struct Member {
    bus: Arc<MemoryBus>,
    processor: Processor,
}

impl Scene {
    async fn new(sim: &Handle, mutant: Option<Mutant>) -> Self {
        let latency = Some(Duration::ZERO..=Duration::from_millis(sim.draw(|random| 1 + random.below(30))));
        let fail_one_in = sim.draw(|random| random.coin().then_some(40));
        let options = MemoryOptions { latency, fail_one_in, ..MemoryOptions::default() };
        let bus = MemoryBus::new(sim.outside(), options);
        let topic = TopicName::new("orders").expect("the name is valid");
        let partitions = sim.draw(|random| 1 + u32::try_from(random.below(5)).expect("a small number"));
        while bus.describe_topic(&topic).await.is_err() {
            // The response may be lost after the bus has created the topic.
            drop(bus.create_topic(&topic, TopicOptions::with_partitions(partitions)).await);
        }
        let producer = loop {
            if let Ok(producer) =
                bus.producer(ProducerOptions { delivery_timeout: RECOVERY, ..ProducerOptions::default() }).await
            {
                break producer;
            }
        };
        let consumer = ConsumerOptions {
            session_timeout: SESSION,
            revoke_timeout: sim.draw(|random| Duration::from_millis(200 + random.below(4_000))),
            batch_records_max: BATCH,
            ..ConsumerOptions::new(GROUP, vec![topic.clone()])
        };
        let first_wait = Duration::from_millis(20);
        let options = ProcessorOptions {
            concurrency: sim.draw(|random| 4 + random.index(30)),
            records_max: RECORDS_MAX,
            uncommitted_max: RECORDS_MAX,
            commit_interval: sim.draw(|random| Duration::from_millis(20 + random.below(1_000))),
            drain_timeout: sim.draw(|random| Duration::from_millis(100 + random.below(4_000))),
            retry: Retry::Blocking { first_wait, wait_max: first_wait * 20, calls_max: None },
            ..ProcessorOptions::new(consumer)
        };
        let has_copies = sim.draw(|random| random.below(3)) == 0;
        let options = if has_copies { with_copies(sim, options) } else { options };
        let mut path = Vec::new();
        if has_copies {
            let retries = (0..options.retry_waits.len()).map(|step| format!("{topic}-{GROUP}-retry-{step}"));
            path.extend([topic.to_string()].into_iter().chain(retries).chain([DEAD_LETTERS.to_owned()]));
        }
        let history = Arc::new(History::new(sim, path));
        let batch_max = sim.draw(|random| (random.below(3) == 0).then(|| 2 + random.index(5)));
        let (sim, members) = (sim.clone(), Mutex::default());
        Scene { sim, mutant, bus, producer, topic, history, options, batch_max, members }
    }

    /// Sends the numbers for each of the keys.
    async fn send(&self, keys: &[String], numbers: std::ops::Range<u64>) {
        for number in numbers {
            let record = |key: &String| NewRecord::new(&self.topic, key.clone(), number.to_string());
            let outcomes = self.producer.send(keys.iter().map(record).collect()).await;
            assert!(outcomes.iter().all(Result::is_ok), "the producer repeats its requests: {outcomes:?}");
        }
    }

    /// Starts the processor of a member, and tries again while the connection fails.
    async fn start(&self, name: &'static str, runtime: Runtime) {
        loop {
            let bus = Arc::new(self.bus.reopen(runtime.clone()));
            let watched = WatchedBus::new(&runtime, bus.clone(), name, self.history.clone(), self.mutant);
            let handler = TestHandler {
                sim: self.sim.clone(),
                runtime: runtime.clone(),
                member: name,
                history: self.history.clone(),
            };
            let (starting, options, batch_max) = (runtime.clone(), self.options.clone(), self.batch_max);
            let started = self.sim.call(name, async move {
                let handler = Arc::new(handler);
                let started = match batch_max {
                    Some(max) => Processor::start_batches(&starting, &watched, options, max, handler).await,
                    None => Processor::start(&starting, &watched, options, handler).await,
                };
                started.ok()
            });
            match started.await {
                Some(Some(processor)) => {
                    let member = Member { bus, processor };
                    self.members.lock().expect("no holder of this lock panics").insert(name, member);
                    return;
                }
                // A request failed.
                Some(None) => {}
                None => panic!("the member {name} went down during its start"),
            }
        }
    }

    fn take(&self, name: &str) -> Option<Member> {
        self.members.lock().expect("no holder of this lock panics").remove(name)
    }

    fn set_paused(&self, name: &str, is_paused: bool) {
        let members = self.members.lock().expect("no holder of this lock panics");
        let processor = &members[name].processor;
        if is_paused { processor.pause() } else { processor.resume() }
    }

    fn bus_of(&self, name: &str) -> Arc<MemoryBus> {
        self.members.lock().expect("no holder of this lock panics")[name].bus.clone()
    }

    async fn stop(&self, name: &'static str) {
        if let Some(Member { processor, .. }) = self.take(name) {
            // The last commit or the request to leave may fail. Then other members process some records again.
            drop(self.sim.call(name, processor.stop()).await);
            self.history.end(name);
        }
    }

    /// Injects one random fault, and waits for a random time.
    async fn fault(&self) {
        let name = MEMBERS[self.sim.draw(|random| random.index(MEMBERS.len()))];
        let length = Duration::from_millis(self.sim.draw(|random| random.below(5_000)));
        match self.sim.draw(|random| random.below(7)) {
            0 => {
                self.sim.crash(name);
                drop(self.take(name));
                self.history.end(name);
                self.sim.sleep(length).await;
                self.start(name, self.sim.restart(name)).await;
            }
            1 => {
                self.sim.pause(name, length);
                self.sim.sleep(length / 2).await;
            }
            2 => {
                self.stop(name).await;
                self.sim.sleep(length / 2).await;
                self.start(name, self.sim.member(name)).await;
            }
            3 => {
                self.bus_of(name).cut_answers();
                self.sim.sleep(length).await;
                self.bus_of(name).cut(false);
            }
            4 => {
                let other = MEMBERS[self.sim.draw(|random| random.index(MEMBERS.len()))];
                [name, other].iter().for_each(|name| self.bus_of(name).cut(true));
                self.sim.sleep(length).await;
                [name, other].iter().for_each(|name| self.bus_of(name).cut(false));
            }
            5 => {
                self.set_paused(name, true);
                self.sim.sleep(length).await;
                self.set_paused(name, false);
            }
            _ => self.sim.sleep(length).await,
        }
    }

    async fn recover(&self) {
        MEMBERS.iter().for_each(|name| self.bus_of(name).cut(false));
        self.sim.sleep(SESSION * 3).await;
    }

    fn check(&self) {
        self.history.check();
        let members = self.members.lock().expect("no holder of this lock panics");
        for (name, member) in &*members {
            let count = member.processor.records_in_hand();
            // Records that wait in retry topics stay in hand when the shares of the partitions shrink.
            let waiting_max = if self.options.retry_waits.is_empty() { 0 } else { RECORDS_MAX };
            assert!(count <= RECORDS_MAX + waiting_max + BATCH, "unbounded: {name} has {count} records in hand");
        }
    }

    /// Asserts that no member handles a committed record again.
    async fn check_committed(&self) {
        let name = MEMBERS[0];
        self.start(name, self.sim.member(name)).await;
        self.sim.sleep(SESSION * 4).await;
        self.stop(name).await;
        self.check();
    }
}

/// Adds retry topics and dead letters to the options.
fn with_copies(sim: &Handle, options: ProcessorOptions) -> ProcessorOptions {
    let wait = Duration::from_millis(50);
    let calls_max = sim.draw(|random| 1 + u32::try_from(random.below(2)).expect("a small number"));
    ProcessorOptions {
        retry: Retry::Blocking { first_wait: wait, wait_max: wait, calls_max: Some(calls_max) },
        retry_waits: vec![wait * 4; sim.draw(|random| random.index(3))],
        dead_letters: Some(TopicName::new(DEAD_LETTERS).expect("the name is valid")),
        ..options
    }
}

/// Handler that takes a random time, and sometimes fails or panics.
struct TestHandler {
    sim: Handle,
    runtime: Runtime,
    member: &'static str,
    history: Arc<History>,
}

impl TestHandler {
    /// Handles a record. Returns the assignment in which the call started.
    async fn handle_one(&self, delivery: &Delivery) -> Result<Option<AssignmentId>, HandlerError> {
        let (millis, kind) = self.sim.draw(|random| {
            let longest = if random.below(20) == 0 { 4_000 } else { 200 };
            (random.below(longest), random.below(20))
        });
        let started = self.history.start(self.member, delivery);
        self.runtime.sleep(Duration::from_millis(millis)).await;
        match kind {
            0 => Err(HandlerError::retriable("a deliberate failure")),
            // Unlike `panic!`, this function prints nothing.
            1 => std::panic::resume_unwind(Box::new("a deliberate panic")),
            _ => {
                self.history.finish(self.member, delivery, started);
                Ok(started)
            }
        }
    }
}

impl Handler for TestHandler {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let started = self.handle_one(&delivery).await?;
            self.history.report(&delivery, started);
            Ok(())
        })
    }
}

impl BatchHandler for TestHandler {
    fn handle(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Result<(), HandlerError>>> {
        Box::pin(async move {
            let (mut failed, mut outcomes) = (BTreeSet::new(), Vec::new());
            for delivery in &deliveries {
                let key = delivery.record.key.clone();
                let outcome = match failed.contains(&key) {
                    true => Err(HandlerError::retriable("an earlier record of the key has failed")),
                    false => self.handle_one(delivery).await,
                };
                if outcome.is_err() {
                    failed.insert(key);
                }
                outcomes.push(outcome);
            }
            let report = |(delivery, outcome): (&Delivery, Result<_, _>)| {
                outcome.map(|started| self.history.report(delivery, started))
            };
            deliveries.iter().zip(outcomes).map(report).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{assert_caught, run_seeds};

    #[test]
    fn group_neither_loses_a_record_nor_inverts_a_key() {
        run_seeds("bus", 0..60, run);
    }

    #[test]
    fn deliberate_bugs_are_caught() {
        for (mutant, symptoms) in Mutant::ALL {
            assert_caught(mutant, symptoms, 0..60, |sim: &Simulation| run_with(sim, Some(mutant)));
        }
    }
}

//! Tests of the election of a leader by a topic, in simulations.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions, Leadership};
use bus::memory::{MemoryBus, MemoryOptions};
use bus::{
    Admin as _, Answer, Bus, BusError, Capabilities, Commit, Consumer, ConsumerOptions, Event, Offset, Partition,
    Producer, ProducerOptions, Reader, Revocation, TopicDescription, TopicName, TopicOptions,
};
use futures_util::FutureExt as _;
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use simulator::Simulation;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::processor::simulate;

const SESSION: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(5);

fn topic() -> TopicName {
    TopicName::new("leaders").unwrap()
}

fn options(name: &str) -> LeaderOptions {
    let margin = Duration::from_millis(200);
    LeaderOptions { session_timeout: SESSION, margin, grace: GRACE, ..LeaderOptions::new(topic(), "mail", name) }
}

async fn new_bus(sim: &Simulation) -> MemoryBus {
    let latency = Some(Duration::ZERO..=Duration::from_millis(20));
    let bus = MemoryBus::new(sim.outside(), MemoryOptions { latency, ..MemoryOptions::default() });
    bus.create_topic(&topic(), TopicOptions::with_partitions(1)).await.unwrap();
    bus
}

async fn candidate(runtime: &Runtime, bus: Arc<dyn Bus>, name: &str) -> LeaderCandidate {
    loop {
        match LeaderCandidate::open(runtime, bus.clone(), options(name)).await {
            Ok(candidate) => return candidate,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        runtime.sleep(STEP).await;
    }
}

/// Times in which a candidate saw a valid leadership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reign {
    term: Offset,
    from: Monotonic,
    to: Monotonic,
}

/// Keeps a leadership for at most `limit`.
async fn reign(runtime: &Runtime, leadership: Leadership, limit: Duration) -> Reign {
    let leading = leadership.leading();
    let from = runtime.monotonic();
    let mut to = from;
    while leading.is_valid() && !leading.closing.is_cancelled() && to.since(from) < limit {
        to = runtime.monotonic();
        runtime.sleep(STEP).await;
    }
    leadership.release().await;
    Reign { term: leading.term, from, to }
}

/// Lets three candidates lead in turn while `disturb` runs and for some time after it. Asserts that no two of them led at the
/// same time, that the terms rise, and that a candidate leads at the end. The arguments of `disturb` are the connections
/// of the candidates.
async fn check_leaders(sim: &Simulation, bus: &MemoryBus, disturb: impl AsyncFnOnce(&[Arc<MemoryBus>])) {
    let runtime = sim.outside();
    let reigns = Arc::new(Mutex::new(Vec::<Reign>::new()));
    let tasks = TaskSet::new(&runtime);
    let mut handles = Vec::new();
    for name in ["a", "b", "c"] {
        let handle = Arc::new(bus.reopen(runtime.clone()));
        handles.push(handle.clone());
        let (runtime, reigns) = (runtime.clone(), reigns.clone());
        tasks.spawn("candidate", async move {
            let candidate = candidate(&runtime, handle, name).await;
            loop {
                let leadership = candidate.lead().await.unwrap();
                let limit = Duration::from_millis(runtime.random() % 10_000);
                let reign = reign(&runtime, leadership, limit).await;
                reigns.lock().unwrap().push(reign);
            }
        });
    }
    disturb(&handles).await;
    runtime.sleep(Duration::from_secs(15)).await;
    drop(tasks);
    let mut reigns = reigns.lock().unwrap().clone();
    reigns.sort_by_key(|reign| reign.from);
    assert!(reigns.len() > 8, "only {} leaderships: {reigns:?}", reigns.len());
    for pair in reigns.windows(2) {
        assert!(pair[0].to < pair[1].from, "two leaders at the same time: {pair:?}");
        assert!(pair[0].term < pair[1].term, "a later term is not greater: {pair:?}");
    }
    let last = reigns.last().unwrap();
    assert!(runtime.monotonic().since(last.to) < Duration::from_secs(14), "no candidate leads without faults");
}

#[test]
fn at_most_one_candidate_leads_and_terms_rise() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), new_bus(sim).await);
        check_leaders(sim, &bus, async |handles| {
            for _ in 0..30 {
                let pause = Duration::from_millis(runtime.random() % 4_000);
                let handle = &handles[usize::try_from(runtime.random() % 3).unwrap()];
                if runtime.random().is_multiple_of(2) {
                    handle.cut(true)
                } else {
                    handle.cut_answers()
                }
                runtime.sleep(pause).await;
                handle.cut(false);
                runtime.sleep(pause / 2).await;
            }
        })
        .await;
    });
}

#[test]
fn topic_that_has_grown_has_one_leader() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), new_bus(sim).await);
        check_leaders(sim, &bus, async |_| {
            runtime.sleep(SESSION * 2).await;
            bus.grow_topic(&topic(), 3).await.unwrap();
            runtime.sleep(SESSION * 40).await;
        })
        .await;
    });
}

#[test]
fn released_leadership_passes_to_the_next_candidate_at_once() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), new_bus(sim).await);
        let open = async |name| candidate(&runtime, Arc::new(bus.reopen(runtime.clone())), name).await;
        let (first, second) = (open("a").await, open("b").await);
        let leadership = first.lead().await.unwrap();
        let waiting = async {
            let next = second.lead().await.unwrap();
            (runtime.monotonic(), next)
        };
        let releasing = async {
            runtime.sleep(SESSION * 3).await;
            let leading = leadership.leading();
            assert!(leading.is_valid(), "the leader lost its leadership without a fault");
            let released = runtime.monotonic();
            leadership.release().await;
            assert!(!leading.is_valid() && leading.over.is_cancelled());
            released
        };
        let ((began, next), released) = futures_util::join!(waiting, releasing);
        let took = began.since(released);
        assert!(took < SESSION / 4, "the hand-over took {took:?}");
        next.release().await;
    });
}

#[test]
fn leader_without_contact_ends_before_the_next_one_begins() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), new_bus(sim).await);
        let cut = Arc::new(bus.reopen(runtime.clone()));
        let first = candidate(&runtime, cut.clone(), "a").await;
        let second = candidate(&runtime, Arc::new(bus.reopen(runtime.clone())), "b").await;
        let leadership = first.lead().await.unwrap();
        cut.cut(true);
        let began = runtime.monotonic();
        let leading = leadership.leading();
        let ending = async {
            leading.over.cancelled().await;
            runtime.monotonic()
        };
        let following = async {
            let next = second.lead().await.unwrap();
            (runtime.monotonic(), next)
        };
        let (ended, (next_began, next)) = futures_util::join!(ending, following);
        assert!(ended < next_began, "the leader ended at {ended:?}, the next began at {next_began:?}");
        assert!(next_began.since(began) < SESSION * 2, "the next leader began after {:?}", next_began.since(began));
        assert!(next.leading().term > leading.term);
        drop(leadership);
        next.release().await;
    });
}

/// Bus whose consumers report a revocation after a notification. The engine in memory revokes the partition of a leader
/// only if it has another reason to move it.
struct Revoking {
    bus: Arc<MemoryBus>,
    revoke: Arc<Notify>,
    released: Arc<Mutex<Option<Monotonic>>>,
    runtime: Runtime,
}

struct RevokingConsumer {
    inner: Arc<dyn Consumer>,
    revoke: Arc<Notify>,
    released: Arc<Mutex<Option<Monotonic>>>,
    runtime: Runtime,
}

impl Bus for Revoking {
    fn capabilities(&self) -> Capabilities {
        self.bus.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.bus.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.bus.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.bus.grow_topic(topic, partitions)
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        self.bus.producer(options)
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        async {
            let (revoke, released, runtime) = (self.revoke.clone(), self.released.clone(), self.runtime.clone());
            let inner = self.bus.consumer(options).await?;
            Ok(Arc::new(RevokingConsumer { inner, revoke, released, runtime }) as Arc<dyn Consumer>)
        }
        .boxed()
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.bus.reader(topic)
    }
}

impl Consumer for RevokingConsumer {
    fn next(&self) -> Answer<'_, Event> {
        async {
            tokio::select! {
                biased;
                () = self.revoke.notified() => {
                    let partition = Partition { topic: topic(), index: 0 };
                    let deadline = self.runtime.monotonic() + SESSION;
                    let (revocation, receiver) = Revocation::new(vec![partition], deadline);
                    let (runtime, released) = (self.runtime.clone(), self.released.clone());
                    drop(self.runtime.spawn("release", async move {
                        drop(receiver.await);
                        *released.lock().unwrap() = Some(runtime.monotonic());
                    }));
                    Ok(Event::Revoked(revocation))
                }
                event = self.inner.next() => event,
            }
        }
        .boxed()
    }

    fn commit(&self, commits: Vec<Commit>) -> Answer<'_, ()> {
        self.inner.commit(commits)
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        self.inner.seek(partition, offset);
    }

    fn pause(&self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

/// A task that ends within the grace is not interrupted, and a slower task is dropped. The partition is released only
/// after the end of the task.
#[test]
fn revoked_leader_finishes_within_the_grace_and_is_then_interrupted() {
    simulate(async |sim| {
        for (needs, finishes) in [(GRACE / 2, true), (GRACE * 2, false)] {
            let (runtime, bus) = (sim.outside(), Arc::new(new_bus(sim).await));
            let (revoke, released) = (Arc::new(Notify::new()), Arc::new(Mutex::new(None)));
            let revoking =
                Revoking { bus, revoke: revoke.clone(), released: released.clone(), runtime: runtime.clone() };
            let candidate = candidate(&runtime, Arc::new(revoking), "a").await;
            let stop = CancellationToken::new();
            let (ends, finished) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(false)));
            let running = candidate.run(&stop, |leading| {
                let (runtime, finished) = (runtime.clone(), finished.clone());
                let ending = Ending { runtime: runtime.clone(), ends: ends.clone(), stop: stop.clone() };
                async move {
                    let _ending = ending;
                    leading.closing.cancelled().await;
                    runtime.sleep(needs).await;
                    assert!(leading.is_valid(), "the leader was not allowed to finish");
                    *finished.lock().unwrap() = true;
                }
            });
            let revoking = async {
                runtime.sleep(SESSION).await;
                revoke.notify_one();
            };
            let (outcome, ()) = futures_util::join!(running, revoking);
            outcome.unwrap();
            assert_eq!(*finished.lock().unwrap(), finishes);
            let ended = *ends.lock().unwrap().first().unwrap();
            let released = released.lock().unwrap().expect("the partition is released");
            assert!(ended <= released, "the partition was released before the end of the task");
        }
    });
}

/// Part of a task. Its drop stores the time, and stops the candidate.
struct Ending {
    runtime: Runtime,
    ends: Arc<Mutex<BTreeSet<Monotonic>>>,
    stop: CancellationToken,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends.lock().unwrap().insert(self.runtime.monotonic());
        self.stop.cancel();
    }
}

#[test]
fn candidate_that_cannot_send_its_term_reports_the_error() {
    simulate(async |sim| {
        let defaults = MemoryOptions::default();
        let capabilities = Capabilities { record_bytes_max: 20, ..defaults.capabilities.clone() };
        let bus = Arc::new(MemoryBus::new(sim.outside(), MemoryOptions { capabilities, ..defaults }));
        bus.create_topic(&topic(), TopicOptions::with_partitions(1)).await.unwrap();
        let runtime = sim.outside();
        let candidate = candidate(&runtime, bus, "a name that is longer than a record").await;
        let led = runtime.timeout(SESSION * 10, candidate.lead()).await.expect("the candidate waits for ever");
        assert!(matches!(led, Err(BusError::RecordTooLarge { .. })), "{led:?}");
    });
}

#[test]
fn topic_and_times_of_a_leader_are_checked() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), Arc::new(new_bus(sim).await));
        let open = async |options| LeaderCandidate::open(&runtime, bus.clone(), options).await.err();
        let missing = TopicName::new("missing").unwrap();
        let unknown = open(LeaderOptions::new(missing.clone(), "mail", "a")).await;
        assert_eq!(unknown, Some(BusError::UnknownTopic(missing)));
        let wide = TopicName::new("wide").unwrap();
        bus.create_topic(&wide, TopicOptions::with_partitions(2)).await.unwrap();
        let wide = open(LeaderOptions::new(wide, "mail", "a")).await.unwrap().to_string();
        assert!(wide.contains("1 partition"), "{wide}");
        let long = open(LeaderOptions { grace: SESSION, ..options("a") }).await.unwrap().to_string();
        assert!(long.contains("shorter than the session timeout"), "{long}");
        let long = open(options(&"a".repeat(5_000))).await.unwrap().to_string();
        assert!(long.contains("has 5000 bytes") && long.contains("use a shorter name"), "{long}");
        for name in ["", "a\0b"] {
            let rejected = open(options(name)).await.unwrap().to_string();
            assert!(rejected.contains("is empty or contains a NUL"), "{rejected}");
        }
    });
}

#[test]
fn stopped_candidate_leaves_the_group_and_the_commit_names_the_leader() {
    simulate(async |sim| {
        let (runtime, bus) = (sim.outside(), new_bus(sim).await);
        let open = async |name| candidate(&runtime, Arc::new(bus.reopen(runtime.clone())), name).await;
        let (first, second) = (open("a").await, open("b").await);
        let leadership = first.lead().await.unwrap();
        let stop = CancellationToken::new();
        let stopping = async {
            runtime.sleep(SESSION).await;
            let described = bus.describe_group("mail").await.unwrap();
            let names: Vec<&str> = described.members.iter().map(|member| member.name.as_str()).collect();
            assert_eq!(names, ["a", "b"]);
            let committed = described.committed.values().next().unwrap();
            assert_eq!((committed.offset, &*committed.metadata), (leadership.leading().term.next(), "a"));
            stop.cancel();
        };
        let running = second.run(&stop, async |_| panic!("the first candidate leads"));
        let (ran, ()) = futures_util::join!(running, stopping);
        ran.unwrap();
        assert_eq!(bus.describe_group("mail").await.unwrap().members.len(), 1);
        leadership.release().await;
        assert_eq!(bus.describe_group("mail").await.unwrap().members, []);
    });
}

//! Test cluster. Each member is a process with the real scheduler. All members use one store and one coordination
//! engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{ShardId, Target, Tenant};
use futures_util::future::BoxFuture;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership::{Ownership, Profile};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery, Options, Peering, Registry, Scheduler};
use store::memory::{MemoryOptions, MemoryStore};
use store::{Inbox, Store};

use super::application::Specs;
use super::mutant::Mutant;
use super::net::{Net, Wire};
use super::record::{Record, is_beyond};
use super::remote::{RemoteOwnership, RemoteStore};
use super::{CLOCK_OFFSET_MAX, StoreKind};
use crate::single_node::mutant::{Memory, Mutated};
use crate::topics::{Sender, Topics};
use crate::{Handle, History, user};

/// Longest duration of a member's start. After this time, the test cluster kills the member's process and starts the
/// member again.
const BOOT_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest duration of an orderly stop of a member, even if all of its links are cut.
const STOP_TIME_MAX: Duration = Duration::from_secs(40);
/// Longest time for which a user waits for a response.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(6);

pub(super) struct TestCluster {
    pub(super) sim: Handle,
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) history: History,
    pub(super) topics: Topics,
    pub(super) mutant: Option<Mutant>,
    pub(super) kind: StoreKind,
    store: MemoryStore,
    /// Handle to the store of the members. The checks of the scenario use this handle, because it adds no failures
    /// and no delays.
    local_store: MemoryStore,
    engine: MemoryOwnership,
    lease: Duration,
    mutant_memory: Arc<Mutex<Memory>>,
    specs: Specs,
    members: Mutex<BTreeMap<String, State>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The member should run. If the member is down, the test cluster may start it at the instant `from`.
    Wanted { from: Duration },
    /// An orderly stop of the member is in progress.
    Stopping,
    /// The member was removed, so it never starts again.
    Removed,
}

pub(super) fn tenant() -> Tenant {
    user::tenant(8)
}

impl TestCluster {
    pub(super) async fn new(sim: &Handle, kind: StoreKind, mutant: Option<Mutant>) -> TestCluster {
        // With a slow store, members need a longer lease.
        let lease = Duration::from_secs(match Pace::of(sim.seed()) {
            Pace::Quick => 1,
            Pace::Slow => 2,
            Pace::Sluggish => 6,
        });
        let net = Net::new(sim);
        let record = Record::new(sim, &net, lease);
        let options = store_options(kind, sim.seed());
        let local = MemoryOptions { latency: None, fail_one_in: None, ..options.clone() };
        let store = MemoryStore::new(sim.outside(), options);
        let local_store = store.reopen(sim.outside()).with_options(local);
        user::put_tenant(&local_store, tenant()).await.expect("the store without faults never fails");
        let engine_options = EngineOptions {
            latency: Some(Duration::from_micros(200)..=Duration::from_millis(10)),
            fail_one_in: Some(100),
            ..EngineOptions::default()
        };
        // Longest time that a write and its retries take without interruptions.
        let history = History::new(sim, Duration::from_secs(3));
        TestCluster {
            sim: sim.clone(),
            topics: Topics::new(sim, &history, mutant.and_then(Mutant::single_node)).await,
            history,
            engine: MemoryOwnership::new(sim.outside(), engine_options),
            members: Mutex::default(),
            mutant_memory: Arc::default(),
            specs: Specs::default(),
            net,
            record,
            mutant,
            kind,
            store,
            local_store,
            lease,
        }
    }

    pub(super) fn local_store(&self) -> &MemoryStore {
        &self.local_store
    }

    pub(super) fn specs(&self) -> &Specs {
        &self.specs
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the names of the members that were not removed.
    pub(super) fn names(&self) -> Vec<String> {
        self.lock().iter().filter(|(_, state)| **state != State::Removed).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn serving(&self) -> Vec<String> {
        let is_serving = |name: &String| self.sim.is_up(name) && self.net.scheduler(name).is_some();
        self.names().into_iter().filter(is_serving).collect()
    }

    /// Returns true if a member runs, and all running members report that they are well.
    pub(super) fn reports_well(&self) -> bool {
        let reports_well = |name: &String| {
            let scheduler = self.net.scheduler(name);
            scheduler.is_some_and(|scheduler| user::reports_well(&self.sim, name, &scheduler))
        };
        let up = self.up();
        !up.is_empty() && up.iter().all(reports_well)
    }

    /// Returns the names of the members whose process runs.
    pub(super) fn up(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| self.sim.is_up(name)).collect()
    }

    /// Adds a member. The next call of [`TestCluster::start_due_members`] starts it.
    pub(super) fn add(&self) {
        let name = format!("m{}", self.lock().len());
        drop(self.sim.member(&name));
        self.lock().insert(name, State::Wanted { from: self.sim.elapsed() });
    }

    /// Records that a member went down, and plans its next start after the time `wait`.
    pub(super) fn restart_after(&self, name: &str, wait: Duration) {
        self.net.attach(name, None);
        self.schedule_start(name, self.sim.elapsed() + wait);
    }

    /// Plans a start of the member. The next call of [`TestCluster::start_due_members`] starts the member, unless it
    /// already runs.
    pub(super) fn start_soon(&self, name: &str) {
        self.schedule_start(name, self.sim.elapsed());
    }

    fn schedule_start(&self, name: &str, from: Duration) {
        let mut members = self.lock();
        let state = members.get_mut(name).expect("the test cluster contains the member");
        if *state != State::Removed {
            *state = State::Wanted { from };
        }
    }

    /// Starts the members that are down and should run.
    pub(super) async fn start_due_members(&self) {
        let now = self.sim.elapsed();
        let is_due = |state: &State| matches!(state, State::Wanted { from } if *from <= now);
        let due: Vec<String> =
            self.lock().iter().filter(|(_, state)| is_due(state)).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.start(&name).await;
        }
    }

    /// Starts all members, and repeats the starts that fail.
    ///
    /// # Panics
    /// Panics if a member does not start in 100 attempts.
    pub(super) async fn start_members(&self) {
        for _ in 0..100 {
            self.start_due_members().await;
            if self.serving().len() == self.names().len() {
                return;
            }
        }
        panic!("stuck: a member does not start although no fault is in progress");
    }

    async fn start(&self, name: &str) {
        if !self.sim.is_up(name) {
            self.net.attach(name, None);
            drop(self.sim.restart(name));
        }
        if self.net.scheduler(name).is_some() {
            return;
        }
        let joining = self.open(name);
        let started = self.sim.outside().timeout(BOOT_TIME_MAX, self.sim.call(name, joining)).await;
        match started.flatten().flatten() {
            Some((scheduler, inbox)) => {
                self.net.attach(name, Some(scheduler.clone()));
                let read_spec = self.specs.reader();
                let moving = async move { scheduler.move_inbox(inbox, read_spec).await };
                // The task ends when the scheduler stops or the member's process ends.
                if self.sim.is_up(name) {
                    drop(self.sim.member(name).spawn("inbox", moving));
                }
            }
            // The start failed or took too long. The next call of this function starts the member again.
            None => self.sim.kill(name),
        }
    }

    /// Starts the scheduler of a member. Also returns the member's access to the inbox.
    fn open(&self, name: &str) -> impl Future<Output = Option<(Scheduler, Arc<dyn Inbox>)>> + Send + 'static {
        let runtime = self.sim.member(name);
        let mutant = self.mutant;
        let store: Arc<dyn Store> = Arc::new(Mutated {
            store: Arc::new(self.store.reopen(runtime.clone())),
            mutant: mutant.and_then(Mutant::single_node),
            runtime: runtime.clone(),
            history: self.history.clone(),
            memory: self.mutant_memory.clone(),
        });
        let (net, record, name) = (self.net.clone(), self.record.clone(), name.to_owned());
        let store = Arc::new(RemoteStore {
            net: net.clone(),
            record: record.clone(),
            runtime: runtime.clone(),
            name: name.clone(),
            store,
            inbox: Arc::new(self.store.reopen(runtime.clone())),
            mutant,
        });
        let inbox: Arc<dyn Inbox> = store.clone();
        let ownership: Arc<dyn Ownership> = Arc::new(RemoteOwnership {
            net: net.clone(),
            record: record.clone(),
            name: name.clone(),
            runtime: runtime.clone(),
            ownership: Arc::new(self.engine.reopen(runtime.clone())),
            mutant,
        });
        let receiver = Receiver {
            sender: self.topics.connect(&name, &runtime),
            sim: self.sim.clone(),
            record,
            member: runtime.clone(),
            name: name.clone(),
            history: self.history.clone(),
        };
        let peering = Peering {
            ownership,
            peers: Arc::new(Wire { net, runtime: runtime.clone(), name: name.clone(), mutant }),
            profile: Profile { name: name.clone(), address: name, owns: true, build: "simulated".to_owned() },
            options: membership::Options {
                clock_offset_max: CLOCK_OFFSET_MAX,
                ..membership::Options::with_lease(self.lease)
            },
            registry: Registry::default(),
        };
        let options = Options { in_flight_per_target: 8, ..Options::default() };
        async move {
            let scheduler = Scheduler::join(&runtime, store, Arc::new(receiver), options, peering).await.ok()?;
            Some((scheduler, inbox))
        }
    }

    /// Stops a member in an orderly way. Its process continues without the scheduler. Returns false if the member went
    /// down first.
    pub(super) async fn stop(&self, name: &str) -> bool {
        let Some(scheduler) = self.net.scheduler(name) else { return false };
        let before = self.lock().insert(name.to_owned(), State::Stopping);
        assert!(
            matches!(before, Some(State::Wanted { .. })),
            "the caller stops only a member that should run, but the state was {before:?}"
        );
        let stopping = self.sim.call(name, async move { scheduler.stop().await });
        match self.sim.outside().timeout(STOP_TIME_MAX, stopping).await {
            Some(Some(())) => {
                self.net.attach(name, None);
                self.record.record_stop(name);
                true
            }
            // The member went down during the stop.
            Some(None) => false,
            None => panic!("stuck: member {name} does not stop within {STOP_TIME_MAX:?}"),
        }
    }

    pub(super) fn may_stop(&self, name: &str) -> bool {
        self.net.scheduler(name).is_some() && matches!(self.lock().get(name), Some(State::Wanted { .. }))
    }

    /// Marks a member as removed, so that it never starts again.
    pub(super) fn remove_member(&self, name: &str) {
        self.lock().insert(name.to_owned(), State::Removed);
    }

    /// Sets the offset of a member's clock from true time.
    pub(super) fn set_clock(&self, name: &str, ahead_millis: i64) {
        let present = self.sim.clock(name).as_millis() - self.sim.outside().now().as_millis();
        self.sim.jump_clock(name, ahead_millis - present);
        self.record.record_clock_error(name, is_beyond(ahead_millis));
    }

    /// Runs `call` at a member. Returns `None` if the member went down or did not respond in time.
    pub(super) async fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        name: &str,
        call: impl FnOnce(Scheduler) -> F,
    ) -> Option<T> {
        let scheduler = self.net.scheduler(name)?;
        let response = self.sim.call(name, call(scheduler));
        self.sim.outside().timeout(RESPONSE_TIME_MAX, response).await.flatten()
    }

    /// Waits until the running members own equal shares of all shards.
    ///
    /// # Panics
    /// Panics if the members do not own equal shares in time.
    pub(super) async fn wait_until_balanced(&self, within: Duration) {
        let started = self.sim.elapsed();
        loop {
            let mut counts: BTreeMap<String, usize> = self.serving().into_iter().map(|name| (name, 0)).collect();
            let owners = self.record.owners();
            for owner in owners.values().flatten() {
                *counts.entry(owner.clone()).or_default() += 1;
            }
            let most = counts.values().max().copied().unwrap_or(0);
            let least = counts.values().min().copied().unwrap_or(0);
            if counts.values().sum::<usize>() == usize::from(domain::id::SHARDS) && most - least <= 1 {
                return;
            }
            let waited = self.sim.elapsed() - started;
            assert!(
                waited < within,
                "unbalanced: after {waited:?} without faults, the members own these numbers of shards: {counts:?}"
            );
            self.sim.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the current owner of each shard. If a shard has several owners, returns one of them.
    pub(super) fn owners(&self) -> BTreeMap<ShardId, String> {
        self.record
            .owners()
            .into_iter()
            .filter_map(|(shard, owners)| Some((shard, owners.into_iter().next()?)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        self.members.lock().expect("no holder of this lock panics")
    }
}

/// Duration of each step of the weak store.
enum Pace {
    Quick,
    Slow,
    /// The store's steps are so slow that an owner may advance `closed` between two steps of a creator.
    Sluggish,
}

impl Pace {
    fn of(seed: u64) -> Pace {
        match seed % 8 {
            0 => Pace::Sluggish,
            2 | 4 | 6 => Pace::Slow,
            _ => Pace::Quick,
        }
    }
}

fn store_options(kind: StoreKind, seed: u64) -> MemoryOptions {
    let most = Duration::from_millis(match Pace::of(seed) {
        Pace::Quick => 4,
        Pace::Slow => 40,
        Pace::Sluggish => 200,
    });
    match kind {
        StoreKind::Weak => {
            MemoryOptions { latency: Some(Duration::ZERO..=most), fail_one_in: Some(200), ..MemoryOptions::weak() }
        }
        StoreKind::Atomic => MemoryOptions {
            latency: Some(Duration::ZERO..=Duration::from_millis(3)),
            fail_one_in: Some(500),
            ..MemoryOptions::default()
        },
    }
}

/// Receiver of the callbacks of one member.
struct Receiver {
    sim: Handle,
    record: Record,
    member: Runtime,
    name: String,
    history: History,
    /// Transport to the topics of bus targets.
    sender: Sender,
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let is_late = self.member.monotonic() >= delivery.deadline;
        let is_bus = matches!(delivery.schedule.spec.target, Target::Bus(_));
        if is_late && is_bus {
            // The transport must notice this.
            return self.sender.deliver(delivery);
        }
        if is_late {
            return Box::pin(std::future::ready(None));
        }
        let shard = delivery.schedule.poller.shard();
        self.record.record_home(delivery.occurrence.incarnation, shard);
        self.record.check_start(&self.name, shard, delivery.occurrence.nominal);
        self.sim
            .note(&format!("{} starts {:?} attempt {} {shard:?}", self.name, delivery.occurrence, delivery.attempt));
        if is_bus {
            return self.sender.deliver(delivery);
        }
        let callback = self.history.callback_began(&self.name, delivery.occurrence, delivery.attempt);
        let (sim, member, history) = (self.sim.clone(), self.member.clone(), self.history.clone());
        Box::pin(async move {
            let takes = sim.draw(user::response_time);
            member.sleep(takes).await;
            let response = sim.draw(|random| random.below(20));
            sim.note(&format!(
                "attempt {} of {:?} ended with the result {response}",
                delivery.attempt, delivery.occurrence
            ));
            history.callback_ended(callback, response > 2);
            Some(Delivered { result: user::result_of(response), retry_after: None, excerpt: None })
        })
    }
}

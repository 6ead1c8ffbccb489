//! The members, each a process with the real scheduler in it, over one store and one coordination engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{ShardId, Tenant};
use futures_util::future::BoxFuture;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership::{Ownership, Profile};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery, Options, Peering, Registry, Scheduler};
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};

use super::far::{FarOwnership, FarStore};
use super::mutant::Mutant;
use super::net::{Net, Wire};
use super::record::{Record, is_beyond};
use super::{CLOCK_OFFSET_MAX, StoreKind};
use crate::spine::mutant::{Memory, Mutated};
use crate::{Handle, Ledger, user};

/// How long a start may take before it is tried again.
const BOOT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a member may take to stop, cut from everything or not.
const STOP_TIME_MAX: Duration = Duration::from_secs(40);
/// How long a user waits for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(6);

pub(super) struct Town {
    pub(super) sim: Handle,
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) ledger: Ledger,
    pub(super) mutant: Option<Mutant>,
    store: MemoryStore,
    /// As the store, without failures: for the scenario itself.
    near_store: MemoryStore,
    engine: MemoryOwnership,
    lease: Duration,
    mutant_memory: Arc<Mutex<Memory>>,
    members: Mutex<BTreeMap<String, State>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It should serve. If it does not, it is started from then on.
    Wanted { from: Duration },
    /// It is being stopped in good order.
    Stopping,
    /// It was stopped for good.
    Gone,
}

pub(super) fn tenant() -> Tenant {
    user::tenant(8)
}

impl Town {
    pub(super) async fn new(sim: &Handle, kind: StoreKind, mutant: Option<Mutant>) -> Town {
        // A slow store needs patience.
        let lease = Duration::from_secs(match Pace::of(sim.seed()) {
            Pace::Quick => 1,
            Pace::Slow => 2,
            Pace::Sluggish => 6,
        });
        let net = Net::new(sim);
        let record = Record::new(sim, &net, lease);
        let options = store_options(kind, sim.seed());
        let near = MemoryOptions { latency: None, fail_one_in: None, ..options.clone() };
        let store = MemoryStore::new(sim.outside(), options);
        let near_store = store.reopen(sim.outside()).with_options(near);
        user::put_tenant(&near_store, tenant()).await.expect("it never fails");
        let engine_options = EngineOptions {
            latency: Some(Duration::from_micros(200)..=Duration::from_millis(10)),
            fail_one_in: Some(100),
            ..EngineOptions::default()
        };
        Town {
            sim: sim.clone(),
            // The slowest write, with its retries, while nothing is interrupted.
            ledger: Ledger::new(sim, Duration::from_secs(3)),
            engine: MemoryOwnership::new(sim.outside(), engine_options),
            members: Mutex::default(),
            mutant_memory: Arc::default(),
            net,
            record,
            mutant,
            store,
            near_store,
            lease,
        }
    }

    pub(super) fn near_store(&self) -> &MemoryStore {
        &self.near_store
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Those who should serve, or do.
    pub(super) fn names(&self) -> Vec<String> {
        self.lock().iter().filter(|(_, state)| **state != State::Gone).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn serving(&self) -> Vec<String> {
        let is_serving = |name: &String| self.sim.is_up(name) && self.net.scheduler(name).is_some();
        self.names().into_iter().filter(is_serving).collect()
    }

    /// Those whose process runs, whatever it does.
    pub(super) fn up(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| self.sim.is_up(name)).collect()
    }

    /// A further member, which is started at the next look.
    pub(super) fn add(&self) {
        let name = format!("m{}", self.lock().len());
        drop(self.sim.member(&name));
        self.lock().insert(name, State::Wanted { from: self.sim.elapsed() });
    }

    /// It went down, and is started again after so long.
    pub(super) fn restart_after(&self, name: &str, wait: Duration) {
        self.net.attach(name, None);
        self.want(name, self.sim.elapsed() + wait);
    }

    /// Whatever was planned: if it does not serve, it is started at the next look.
    pub(super) fn want_now(&self, name: &str) {
        self.want(name, self.sim.elapsed());
    }

    fn want(&self, name: &str, from: Duration) {
        let mut members = self.lock();
        let state = members.get_mut(name).expect("there is such a member");
        if *state != State::Gone {
            *state = State::Wanted { from };
        }
    }

    /// Starts those that are down and should not be.
    pub(super) async fn start_those_due(&self) {
        let now = self.sim.elapsed();
        let is_due = |state: &State| matches!(state, State::Wanted { from } if *from <= now);
        let due: Vec<String> =
            self.lock().iter().filter(|(_, state)| is_due(state)).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.start(&name).await;
        }
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
        let answer = self.sim.outside().timeout(BOOT_TIME_MAX, self.sim.call(name, joining)).await.flatten().flatten();
        match answer {
            Some(scheduler) => self.net.attach(name, Some(scheduler)),
            // The next look starts it again.
            None => self.sim.kill(name),
        }
    }

    fn open(&self, name: &str) -> impl Future<Output = Option<Scheduler>> + Send + 'static {
        let runtime = self.sim.member(name);
        let mutant = self.mutant;
        let mut store: Arc<dyn Store> = Arc::new(self.store.reopen(runtime.clone()));
        if let Some(mutant) = mutant.and_then(Mutant::of_spine) {
            store = Arc::new(Mutated { store, mutant, runtime: runtime.clone(), memory: self.mutant_memory.clone() });
        }
        let (net, record, name) = (self.net.clone(), self.record.clone(), name.to_owned());
        let store: Arc<dyn Store> = Arc::new(FarStore {
            net: net.clone(),
            record: record.clone(),
            runtime: runtime.clone(),
            name: name.clone(),
            store,
            mutant,
        });
        let ownership: Arc<dyn Ownership> = Arc::new(FarOwnership {
            net: net.clone(),
            record: record.clone(),
            name: name.clone(),
            ownership: Arc::new(self.engine.reopen(runtime.clone())),
        });
        let receiver = Receiver {
            sim: self.sim.clone(),
            record,
            member: runtime.clone(),
            name: name.clone(),
            ledger: self.ledger.clone(),
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
        async move { Scheduler::join(&runtime, store, Arc::new(receiver), options, peering).await.ok() }
    }

    /// Stops a member in good order; nothing of it is left but its process. Whether it came to that.
    pub(super) async fn stop(&self, name: &str) -> bool {
        let Some(scheduler) = self.net.scheduler(name) else { return false };
        let before = self.lock().insert(name.to_owned(), State::Stopping);
        assert!(matches!(before, Some(State::Wanted { .. })), "a member is stopped once, and not {before:?}");
        let stopping = self.sim.call(name, async move { scheduler.stop().await });
        match self.sim.outside().timeout(STOP_TIME_MAX, stopping).await {
            Some(Some(())) => {
                self.net.attach(name, None);
                self.record.stopped(name);
                true
            }
            // It went down.
            Some(None) => false,
            None => panic!("stuck: {name} does not stop"),
        }
    }

    pub(super) fn may_stop(&self, name: &str) -> bool {
        self.net.scheduler(name).is_some() && matches!(self.lock().get(name), Some(State::Wanted { .. }))
    }

    /// It is not started again.
    pub(super) fn forget(&self, name: &str) {
        self.lock().insert(name.to_owned(), State::Gone);
    }

    /// Sets how far a member's clock is ahead of true time.
    pub(super) fn set_clock(&self, name: &str, ahead_millis: i64) {
        let present = self.sim.clock(name).as_millis() - self.sim.outside().now().as_millis();
        self.sim.jump_clock(name, ahead_millis - present);
        self.record.clock_is_off(name, is_beyond(ahead_millis));
    }

    /// Runs `call` at a member; `None` if it went down meanwhile, or did not answer in time.
    pub(super) async fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        name: &str,
        call: impl FnOnce(Scheduler) -> F,
    ) -> Option<T> {
        let scheduler = self.net.scheduler(name)?;
        let answer = self.sim.call(name, call(scheduler));
        self.sim.outside().timeout(ANSWER_TIME_MAX, answer).await.flatten()
    }

    /// Waits until those who serve share all shards evenly.
    ///
    /// # Panics
    /// If they do not, in good time.
    pub(super) async fn settle(&self, within: Duration) {
        let begun = self.sim.elapsed();
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
            let waited = self.sim.elapsed() - begun;
            assert!(waited < within, "unshared: after {waited:?} without faults, the members own {counts:?}");
            self.sim.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Who owns each shard now; one of them, if there are more.
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

/// How long the steps of the weak store take.
enum Pace {
    Quick,
    Slow,
    /// A stretch may be closed between two steps of a creator.
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

/// Whom the callbacks go to.
struct Receiver {
    sim: Handle,
    record: Record,
    member: Runtime,
    name: String,
    ledger: Ledger,
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        if self.member.monotonic() >= delivery.deadline {
            return Box::pin(std::future::ready(None));
        }
        let shard = delivery.schedule.poller.shard();
        self.record.lives_at(delivery.occurrence.incarnation, shard);
        self.record.begins(&self.name, shard);
        self.sim
            .note(&format!("{} begins {:?} attempt {} {shard:?}", self.name, delivery.occurrence, delivery.attempt));
        let callback = self.ledger.callback_began(&self.name, delivery.occurrence, delivery.attempt);
        let (sim, member, ledger) = (self.sim.clone(), self.member.clone(), self.ledger.clone());
        Box::pin(async move {
            let takes = sim.draw(user::answer_time);
            member.sleep(takes).await;
            let answer = sim.draw(|random| random.below(20));
            sim.note(&format!("{:?} attempt {} is answered, {answer}", delivery.occurrence, delivery.attempt));
            ledger.callback_ended(callback, answer > 2);
            Some(Delivered { result: user::answer(answer), retry_after: None })
        })
    }
}

//! Member under test. It runs the scheduler over one kind of store. The scenario starts the member again whenever it is
//! down.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Incarnation, Tenant};
use runtime::{Runtime, TaskSet};
use scheduler::{Options, Registry, Scheduler};
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};
use store_embedded::{EmbeddedStore, IndexKind};

use super::MEMBER;
use super::mutant::{Memory, Mutant, Mutated, Unsynced};
use super::receiver::Receiver;
use crate::topics::Topics;
use crate::{Handle, History, user};

const CAPACITY_BYTES: u64 = 64 << 20;
const BOOT_TIME_MAX: Duration = Duration::from_secs(60);
const RUNS_MAX: usize = 10_000;
/// Folder of the embedded store.
const DATA: &str = "/data";

/// Kind of store that the member uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// In-memory store with delays, failures and the weakest guarantees that the store port permits.
    Weak,
    /// In-memory store that applies each item of a call in one step.
    Atomic,
    /// Embedded store on the simulated disk.
    Embedded,
}

pub(super) struct Engine {
    sim: Handle,
    kind: EngineKind,
    mutant: Option<Mutant>,
    history: History,
    topics: Topics,
    memory_store: Mutex<Option<MemoryStore>>,
    mutant_memory: Arc<Mutex<Memory>>,
    instance: Mutex<Option<Instance>>,
}

/// Components of the member. Each start of the member creates them again.
#[derive(Clone)]
struct Instance {
    runtime: Runtime,
    scheduler: Scheduler,
    store: Arc<dyn Store>,
    _tasks: Arc<TaskSet>,
}

pub(super) fn tenant() -> Tenant {
    user::tenant(3)
}

impl Engine {
    pub(super) async fn new(sim: Handle, kind: EngineKind, mutant: Option<Mutant>, history: History) -> Engine {
        let topics = Topics::new(&sim, &history, mutant).await;
        let engine = Engine {
            sim,
            kind,
            mutant,
            history,
            topics,
            memory_store: Mutex::new(None),
            mutant_memory: Arc::default(),
            instance: Mutex::new(None),
        };
        drop(engine.sim.member(MEMBER));
        engine.empty_disk();
        engine
    }

    pub(super) fn topics(&self) -> &Topics {
        &self.topics
    }

    /// Returns true if the member reports that it is well.
    pub(super) fn reports_well(&self) -> bool {
        let instance = self.lock().clone();
        instance.is_some_and(|instance| user::reports_well(&self.sim, MEMBER, &instance.scheduler))
    }

    pub(super) fn empty_disk(&self) {
        self.sim.volume(MEMBER).set_capacity(CAPACITY_BYTES);
    }

    /// Reduces the free space of the disk to less than 300 KiB, so that the store rejects the writes of users.
    pub(super) fn fill_disk(&self) {
        let volume = self.sim.volume(MEMBER);
        volume.set_capacity(volume.used_bytes() + self.sim.draw(|random| random.below(300 << 10)));
    }

    /// Sometimes damages a block of due rows on the embedded store's disk. The member must be down, because its index
    /// reads the file only when it starts.
    pub(super) fn damage_due_rows(&self) {
        if self.kind != EngineKind::Embedded || self.sim.draw(|random| random.below(2)) == 0 {
            return;
        }
        let (volume, file) = (self.sim.volume(MEMBER), store_embedded::due_file(Path::new(DATA)));
        let positions = store_embedded::block_bytes(&volume.read(&file).unwrap_or_default());
        if !positions.is_empty() {
            let place = positions.start + self.sim.draw(|random| random.index(positions.len()));
            volume.flip_bit(&file, place as u64, self.sim.draw(|random| u32::try_from(random.below(8)).unwrap_or(0)));
        }
    }

    /// Starts the member, and repeats the start until the scheduler runs.
    pub(super) async fn start(&self) {
        for attempt in 0..1_000 {
            if !self.sim.is_up(MEMBER) {
                drop(self.lock().take());
                drop(self.sim.restart(MEMBER));
            }
            if self.lock().is_some() {
                return;
            }
            match self.boot().await {
                Some(instance) => *self.lock() = Some(instance),
                // The member went down, or could not start on a failing disk. The scenario starts the member again, as
                // a supervisor does.
                None => {
                    if attempt == 3 {
                        self.empty_disk(); // The scenario frees space, as an operator does.
                    }
                    self.sim.kill(MEMBER);
                    self.sim.outside().sleep(Duration::from_millis(50)).await;
                }
            }
        }
        panic!("lost: the member did not start in 1,000 attempts");
    }

    async fn boot(&self) -> Option<Instance> {
        let runtime = self.sim.member(MEMBER);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let boot = self.open(runtime.clone());
        drop(runtime.spawn("boot", async move {
            let _outside_is_gone = sender.send(boot.await);
        }));
        // If the disk is full, the member waits for free space, so the scenario limits the duration of the start.
        self.sim.outside().timeout(BOOT_TIME_MAX, receiver).await?.ok().flatten()
    }

    fn open(&self, runtime: Runtime) -> impl Future<Output = Option<Instance>> + Send + 'static {
        let memory = (self.kind != EngineKind::Embedded).then(|| self.memory_store(&runtime));
        let (mutant, mutant_memory) = (self.mutant, self.mutant_memory.clone());
        let sim = self.sim.clone();
        let history = self.history.clone();
        let sender = self.topics.connect(MEMBER, &runtime);
        let receiver = Receiver { sim: sim.clone(), member: runtime.clone(), history: history.clone(), sender };
        async move {
            let disk_world = match mutant {
                Some(Mutant::AcknowledgesBeforeFsync) => Unsynced::runtime(&runtime),
                _ => runtime.clone(),
            };
            let tasks = Arc::new(TaskSet::new(&disk_world));
            let mut store: Arc<dyn Store> = match memory {
                Some(memory) => Arc::new(memory),
                None => Arc::new(open_embedded(&sim, &disk_world, &tasks, mutant).await?),
            };
            store = Arc::new(Mutated { store, mutant, runtime: runtime.clone(), history, memory: mutant_memory });
            if store.tenants().await.ok()?.is_empty() {
                user::put_tenant(&*store, tenant()).await.ok()?;
            }
            let options = options(sim.seed());
            let scheduler =
                Scheduler::start(&runtime, store.clone(), Arc::new(receiver), options, Registry::default()).await;
            let scheduler = scheduler.inspect_err(|error| sim.note(&format!("start failed: {error}"))).ok()?;
            Some(Instance { runtime, scheduler, store, _tasks: tasks })
        }
    }

    fn memory_store(&self, runtime: &Runtime) -> MemoryStore {
        let options = match self.kind {
            EngineKind::Weak => MemoryOptions {
                // With delays of up to 300 ms, an owner may advance `closed` between two steps of a creator.
                latency: Some(
                    Duration::ZERO..=Duration::from_millis(if self.sim.seed().is_multiple_of(2) { 300 } else { 5 }),
                ),
                fail_one_in: Some(100),
                ..MemoryOptions::weak()
            },
            EngineKind::Atomic | EngineKind::Embedded => {
                MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(3)), ..MemoryOptions::default() }
            }
        };
        let mut first = self.memory_store.lock().expect("no holder of this lock panics");
        first.get_or_insert_with(|| MemoryStore::new(runtime.clone(), options)).reopen(runtime.clone())
    }

    /// Runs `call` on the member. Returns `None` if the member went down or did not respond in time.
    pub(super) async fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Scheduler) -> F,
    ) -> Option<T> {
        let instance = self.lock().clone()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let call = call(instance.scheduler.clone());
        drop(instance.runtime.spawn("call", async move {
            let _client_is_gone = sender.send(call.await);
        }));
        let outside = self.sim.outside();
        outside.timeout(Duration::from_secs(30), receiver).await?.ok()
    }

    /// Stops the scheduler in an orderly way, so that no attempt remains in flight.
    pub(super) async fn stop(&self) {
        self.call(|scheduler| async move { scheduler.stop().await })
            .await
            .expect("lost: the member went down or did not stop its scheduler within 30 s");
    }

    /// Reports the stored runs of these schedules to the history.
    pub(super) async fn report_outcomes(&self, incarnations: &BTreeSet<Incarnation>) {
        for incarnation in incarnations {
            let incarnation = *incarnation;
            let runs = loop {
                self.start().await;
                let store = self.lock().clone().expect("`start` returns after the member has started").store;
                let operation = move |_: Scheduler| async move { store.runs(incarnation, None, RUNS_MAX).await };
                if let Some(Ok(runs)) = self.call(operation).await {
                    break runs;
                }
            };
            for run in runs {
                self.history.outcome(run.occurrence, run.state);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instance>> {
        self.instance.lock().expect("no holder of this lock panics")
    }
}

/// Returns true if callbacks often wait for their target for so long that the owner defers them.
pub(super) fn callbacks_wait_long(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

fn options(seed: u64) -> Options {
    if callbacks_wait_long(seed) {
        Options {
            in_flight_per_target: 1,
            parked_for: Duration::from_millis(400),
            defer_max: Duration::from_secs(10),
            ..Options::default()
        }
    } else {
        Options { in_flight_per_target: 8, ..Options::default() }
    }
}

async fn open_embedded(
    sim: &Handle,
    runtime: &Runtime,
    tasks: &TaskSet,
    mutant: Option<Mutant>,
) -> Option<EmbeddedStore> {
    // With these small sizes, the store often recycles segments and writes checkpoints.
    let options = store_embedded::Options {
        index: IndexKind::Map,
        journal: store_embedded::journal::Options {
            segment_bytes: 32 << 10,
            entry_bytes_max: 8 << 10,
            batch_bytes_max: 8 << 10,
            ..store_embedded::journal::Options::default()
        },
        checkpoint_bytes: 6 << 10,
        free_bytes_floor: 1 << 20,
        entry_bytes: 4 << 10,
        hides_damage: mutant == Some(Mutant::HidesDamagedRows),
        ..store_embedded::Options::default()
    };
    match EmbeddedStore::open(runtime, tasks, Path::new(DATA), options).await {
        Ok(store) => Some(store),
        Err(error) => {
            let damaged = matches!(
                error,
                store_embedded::OpenError::Damaged { .. }
                    | store_embedded::OpenError::Journal(store_embedded::journal::OpenError::Damaged { .. })
            );
            sim.note(&format!("cannot open the store: {error}"));
            assert!(!damaged, "lost: the store does not open, although the scenario damaged only due rows: {error}");
            None
        }
    }
}

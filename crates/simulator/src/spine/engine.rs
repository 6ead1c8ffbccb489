//! The member under test: a store of one kind, and the scheduler on it, started again whenever it is down.

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
use crate::{Handle, Ledger, user};

const CAPACITY_BYTES: u64 = 64 << 20;
const BOOT_TIME_MAX: Duration = Duration::from_secs(60);
const RUNS_MAX: usize = 10_000;

/// What the scheduler stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// The store in memory as the least that the port allows, with delays and failures.
    Weak,
    /// The store in memory that does each item in one step.
    Atomic,
    /// The embedded store, on the simulated disk.
    Embedded,
}

pub(super) struct Engine {
    sim: Handle,
    kind: EngineKind,
    mutant: Option<Mutant>,
    ledger: Ledger,
    memory_store: Mutex<Option<MemoryStore>>,
    mutant_memory: Arc<Mutex<Memory>>,
    life: Mutex<Option<Life>>,
}

/// One start of the member.
#[derive(Clone)]
struct Life {
    runtime: Runtime,
    scheduler: Scheduler,
    store: Arc<dyn Store>,
    _tasks: Arc<TaskSet>,
}

pub(super) fn tenant() -> Tenant {
    user::tenant(3)
}

impl Engine {
    pub(super) fn new(sim: Handle, kind: EngineKind, mutant: Option<Mutant>, ledger: Ledger) -> Engine {
        let engine = Engine {
            sim,
            kind,
            mutant,
            ledger,
            memory_store: Mutex::new(None),
            mutant_memory: Arc::default(),
            life: Mutex::new(None),
        };
        drop(engine.sim.member(MEMBER));
        engine.empty_disk();
        engine
    }

    pub(super) fn empty_disk(&self) {
        self.sim.volume(MEMBER).set_capacity(CAPACITY_BYTES);
    }

    /// Leaves so little space that users' writes are refused.
    pub(super) fn fill_disk(&self) {
        let volume = self.sim.volume(MEMBER);
        volume.set_capacity(volume.used_bytes() + (300 << 10));
    }

    /// Sees to it that the member is up and serves.
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
                Some(life) => *self.lock() = Some(life),
                // It went down, or could not start on a disk that fails: a supervisor starts it again.
                None => {
                    if attempt == 3 {
                        self.empty_disk(); // The operator comes.
                    }
                    self.sim.kill(MEMBER);
                    self.sim.outside().sleep(Duration::from_millis(50)).await;
                }
            }
        }
        panic!("lost: the member does not come up any more");
    }

    async fn boot(&self) -> Option<Life> {
        let runtime = self.sim.member(MEMBER);
        let (tell, told) = tokio::sync::oneshot::channel();
        let boot = self.open(runtime.clone());
        drop(runtime.spawn("boot", async move {
            let _outside_is_gone = tell.send(boot.await);
        }));
        // On a full disk it waits for room.
        self.sim.outside().timeout(BOOT_TIME_MAX, told).await?.ok().flatten()
    }

    fn open(&self, runtime: Runtime) -> impl Future<Output = Option<Life>> + Send + 'static {
        let memory = (self.kind != EngineKind::Embedded).then(|| self.memory_store(&runtime));
        let (mutant, mutant_memory) = (self.mutant, self.mutant_memory.clone());
        let sim = self.sim.clone();
        let receiver = Receiver { sim: self.sim.clone(), member: runtime.clone(), ledger: self.ledger.clone() };
        async move {
            let disk_world = match mutant {
                Some(Mutant::AcknowledgesBeforeFsync) => Unsynced::runtime(&runtime),
                _ => runtime.clone(),
            };
            let tasks = Arc::new(TaskSet::new(&disk_world));
            let mut store: Arc<dyn Store> = match memory {
                Some(memory) => Arc::new(memory),
                None => Arc::new(open_embedded(&sim, &disk_world, &tasks).await?),
            };
            if let Some(mutant) = mutant {
                store = Arc::new(Mutated { store, mutant, runtime: runtime.clone(), memory: mutant_memory });
            }
            if store.tenants().await.ok()?.is_empty() {
                user::put_tenant(&*store, tenant()).await.ok()?;
            }
            let options = Options { in_flight_per_target: 8, ..Options::default() };
            let scheduler =
                Scheduler::start(&runtime, store.clone(), Arc::new(receiver), options, Registry::default()).await;
            let scheduler = scheduler.inspect_err(|error| sim.note(&format!("no start: {error}"))).ok()?;
            Some(Life { runtime, scheduler, store, _tasks: tasks })
        }
    }

    fn memory_store(&self, runtime: &Runtime) -> MemoryStore {
        let options = match self.kind {
            EngineKind::Weak => MemoryOptions {
                // On a slow one, a stretch may be closed between two steps of a creator.
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

    /// Runs `call` on the member; `None` if the member went down meanwhile, or did not answer in time.
    pub(super) async fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Scheduler) -> F,
    ) -> Option<T> {
        let life = self.lock().clone()?;
        let (tell, told) = tokio::sync::oneshot::channel();
        let call = call(life.scheduler.clone());
        drop(life.runtime.spawn("call", async move {
            let _client_is_gone = tell.send(call.await);
        }));
        let outside = self.sim.outside();
        outside.timeout(Duration::from_secs(30), told).await?.ok()
    }

    /// Stops the scheduler in good order, so that nothing is in flight any more.
    pub(super) async fn stop(&self) {
        self.call(|scheduler| async move { scheduler.stop().await }).await.expect("lost: the member does not stop");
    }

    /// Tells the ledger what the store has of these schedules.
    pub(super) async fn tell_outcomes(&self, incarnations: &BTreeSet<Incarnation>) {
        for incarnation in incarnations {
            let incarnation = *incarnation;
            let runs = loop {
                self.start().await;
                let store = self.lock().clone().expect("it was started").store;
                let asked = move |_: Scheduler| async move { store.runs(incarnation, None, RUNS_MAX).await };
                if let Some(Ok(runs)) = self.call(asked).await {
                    break runs;
                }
            };
            for run in runs {
                self.ledger.outcome(run.occurrence, run.state);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Life>> {
        self.life.lock().expect("no holder of this lock panics")
    }
}

async fn open_embedded(sim: &Handle, runtime: &Runtime, tasks: &TaskSet) -> Option<EmbeddedStore> {
    // Small, so that segments are recycled and checkpoints made all the time.
    let options = store_embedded::Options {
        index: IndexKind::Map,
        journal: store_embedded::journal::Options {
            segment_bytes: 64 << 10,
            entry_bytes_max: 32 << 10,
            batch_bytes_max: 32 << 10,
            ..store_embedded::journal::Options::default()
        },
        checkpoint_bytes: 96 << 10,
        free_bytes_floor: 1 << 20,
        entry_bytes: 16 << 10,
        ..store_embedded::Options::default()
    };
    match EmbeddedStore::open(runtime, tasks, Path::new("/data"), options).await {
        Ok(store) => Some(store),
        Err(error) => {
            let damaged = matches!(
                error,
                store_embedded::OpenError::Damaged { .. }
                    | store_embedded::OpenError::Journal(store_embedded::journal::OpenError::Damaged { .. })
            );
            sim.note(&format!("no store: {error}"));
            assert!(!damaged, "lost: nothing was flipped, and the store is found damaged: {error}");
            None
        }
    }
}

//! Tests that the engine on a coordination tree keeps the promises of the port `Ownership`. The tests run on the
//! in-memory tree, in real and in simulated time, and on ZooKeeper.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coordination::memory::{MemoryOptions, MemoryTrees};
use coordination::tree::{Acl, NodePath, Trees};
use coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use membership::Ownership;
use membership_conformance::Case;
use membership_conformance::Subject;
use membership_tree::TreeOwnership;
use runtime::Runtime;
use test_servers::zookeeper::Zookeeper;

mod real {
    use super::*;

    membership_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
    }
}

/// Runs the conformance suite in simulated time. The seed determines the order of concurrent calls.
mod simulated {
    use super::*;

    membership_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        let latency = Some(Duration::ZERO..=Duration::from_millis(8));
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            let slow = MemoryOptions { latency: latency.clone(), ..MemoryOptions::default() };
            sim.run_until(async { case.run(&Memory::new(sim.outside(), slow)).await });
        }
    }
}

/// Runs the conformance suite on a ZooKeeper ensemble of three servers.
mod zookeeper {
    use std::sync::OnceLock;

    use super::*;

    membership_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        static ENSEMBLE: OnceLock<Zookeeper> = OnceLock::new();
        let servers =
            ENSEMBLE.get_or_init(|| Zookeeper::start(3).expect("Java and Maven are installed, and ZooKeeper starts"));
        on_real(async |runtime| case.run(&Ensemble::new(runtime, servers)).await);
    }
}

fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

fn open(runtime: &Runtime, trees: Arc<dyn Trees>) -> Arc<dyn Ownership> {
    let root = NodePath::new("/cluster/one").unwrap();
    Arc::new(TreeOwnership::new(runtime, trees, &root, Acl::Open, Vec::new()).unwrap())
}

/// The in-memory tree.
struct Memory {
    runtime: Runtime,
    trees: MemoryTrees,
}

impl Memory {
    fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        Memory { trees: MemoryTrees::new(runtime.clone(), options), runtime }
    }
}

impl Subject for Memory {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn leases_may_grow(&self) -> bool {
        false
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        async { open(&self.runtime, Arc::new(self.trees.reopen(self.runtime.clone()))) }.boxed()
    }
}

/// Subject of the conformance suite on ZooKeeper, with a separate root path for each test case.
struct Ensemble {
    runtime: Runtime,
    servers: &'static Zookeeper,
    root: String,
    /// Number of processes that the test case has opened. Each process connects to the next server of the ensemble.
    processes: AtomicUsize,
}

impl Ensemble {
    fn new(runtime: Runtime, servers: &'static Zookeeper) -> Self {
        let root = format!("test-{:032x}", runtime.random_u128());
        Ensemble { runtime, servers, root, processes: AtomicUsize::new(0) }
    }
}

impl Subject for Ensemble {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// ZooKeeper permits a shorter lease of two ticks, but the cases need more time.
    fn lease(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn leases_may_grow(&self) -> bool {
        false
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        async {
            let at = self.processes.fetch_add(1, Ordering::Relaxed) % self.servers.count();
            let url = format!("zookeeper://127.0.0.1:{}/{}", self.servers.port(at), self.root);
            open(&self.runtime, Arc::new(ZookeeperTrees::new(self.runtime.clone(), ZookeeperUrl::parse(&url).unwrap())))
        }
        .boxed()
    }
}

//! ZooKeeper as a subject of the suite.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination::Ownership;
use coordination::conformance;
use coordination::conformance::tree::{Process, Subject};
use coordination::recipes::TreeOwnership;
use coordination::tree::{Acl, NodePath, SessionOptions, Tree, TreeError, Trees};
use coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use engines::Proxy;
use engines::zookeeper::Zookeeper;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

/// The ensemble of three of this process.
pub(crate) fn ensemble() -> &'static Zookeeper {
    static ENSEMBLE: OnceLock<Zookeeper> = OnceLock::new();
    ENSEMBLE.get_or_init(|| Zookeeper::start(3).expect("Java and Maven are installed, and ZooKeeper starts"))
}

/// Trees of a root of their own.
pub(crate) struct Forest {
    runtime: Runtime,
    servers: &'static Zookeeper,
    root: String,
    /// Each process has the next server.
    processes: AtomicUsize,
}

impl Forest {
    pub(crate) fn new(runtime: Runtime, servers: &'static Zookeeper) -> Self {
        let root = format!("test-{:032x}", runtime.random_u128());
        Forest { runtime, servers, root, processes: AtomicUsize::new(0) }
    }
}

impl Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        let at = self.processes.fetch_add(1, Ordering::Relaxed) % self.servers.count();
        let proxy = Proxy::start(([127, 0, 0, 1], self.servers.port(at)).into()).unwrap();
        let url = ZookeeperUrl::parse(&format!("zookeeper://{}/{}", proxy.address(), self.root)).unwrap();
        let trees = ZookeeperTrees::new(self.runtime.clone(), url);
        async { Arc::new(Connected { proxy, trees }) as Arc<dyn Process> }.boxed()
    }
}

/// Ownership in a root of its own.
impl conformance::Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Two ticks and a half would be ZooKeeper's least.
    fn lease(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn leases_may_grow(&self) -> bool {
        false
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        let at = self.processes.fetch_add(1, Ordering::Relaxed) % self.servers.count();
        let url = format!("zookeeper://127.0.0.1:{}/{}", self.servers.port(at), self.root);
        let trees = Arc::new(ZookeeperTrees::new(self.runtime.clone(), ZookeeperUrl::parse(&url).unwrap()));
        let root = NodePath::new("/cluster").unwrap();
        let ownership = TreeOwnership::new(&self.runtime, trees, &root, Acl::Open, Vec::new()).unwrap();
        async { Arc::new(ownership) as Arc<dyn Ownership> }.boxed()
    }
}

struct Connected {
    proxy: Proxy,
    trees: ZookeeperTrees,
}

impl Trees for Connected {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        self.trees.open(options)
    }
}

impl Process for Connected {
    fn cut(&self, is_cut: bool) {
        self.proxy.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.proxy.cut_answers();
    }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

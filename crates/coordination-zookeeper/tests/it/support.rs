//! ZooKeeper as a subject of the suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use coordination::conformance::tree::Subject;
use coordination::tree::{SessionId, SessionOptions, Tree, Trees as _};
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
    /// Each session has its own way, and the next server.
    opened: Mutex<BTreeMap<SessionId, Proxy>>,
    killed: Mutex<Vec<Arc<dyn Tree>>>,
}

impl Forest {
    pub(crate) fn new(runtime: Runtime, servers: &'static Zookeeper) -> Self {
        let root = format!("test-{:032x}", runtime.random_u128());
        Forest { runtime, servers, root, opened: Mutex::default(), killed: Mutex::default() }
    }
}

impl Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Arc<dyn Tree>> {
        async {
            let at = self.opened.lock().unwrap().len() % self.servers.count();
            let proxy = Proxy::start(([127, 0, 0, 1], self.servers.port(at)).into()).unwrap();
            let url = ZookeeperUrl::parse(&format!("zookeeper://{}/{}", proxy.address(), self.root)).unwrap();
            let tree = ZookeeperTrees::new(self.runtime.clone(), url).open(options).await.unwrap();
            self.opened.lock().unwrap().insert(tree.session().id(), proxy);
            tree
        }
        .boxed()
    }

    fn kill(&self, tree: Arc<dyn Tree>) -> BoxFuture<'_, ()> {
        self.opened.lock().unwrap()[&tree.session().id()].cut();
        self.killed.lock().unwrap().push(tree);
        async {}.boxed()
    }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

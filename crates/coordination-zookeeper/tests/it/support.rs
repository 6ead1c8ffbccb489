//! Implements the conformance suite's trait `Subject` for ZooKeeper.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use coordination::tree::{Acl, CreateMode, NodePath, SessionOptions, Tree, TreeError, Trees};
use coordination_conformance::tree::{Process, Subject};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};
use runtime::{Runtime, TaskSet};
use test_servers::Proxy;
use test_servers::zookeeper::{USERS, Zookeeper, shared_secure};
use tokio::sync::OnceCell;

/// Returns the ensemble of three servers that all tests of this process share.
pub(crate) fn ensemble() -> &'static Zookeeper {
    static ENSEMBLE: OnceLock<Zookeeper> = OnceLock::new();
    ENSEMBLE.get_or_init(|| Zookeeper::start(3).expect("Java and Maven must be installed, and ZooKeeper must start"))
}

/// Engine whose trees lie below a root node that no other `Forest` uses.
pub(crate) struct Forest {
    runtime: Runtime,
    /// Start of the URLs, with a user.
    scheme: String,
    /// Host name in the URLs.
    host: &'static str,
    ports: Vec<u16>,
    root: String,
    /// Parameters at the end of the URLs.
    parameters: String,
    /// True if the root exists.
    has_root: OnceCell<()>,
    /// Number of processes that the test has opened. This number determines the server to which the next process
    /// connects.
    processes: AtomicUsize,
    is_roaming: bool,
}

impl Forest {
    pub(crate) fn new(runtime: Runtime, servers: &'static Zookeeper) -> Self {
        Forest {
            scheme: "zookeeper://".to_owned(),
            host: "127.0.0.1",
            ports: (0..servers.count()).map(|at| servers.port(at)).collect(),
            root: format!("test-{:032x}", runtime.random_u128()),
            parameters: String::new(),
            has_root: OnceCell::new(),
            processes: AtomicUsize::new(0),
            is_roaming: false,
            runtime,
        }
    }

    /// Creates a [`Forest`] on the server that requires a user. All connections use TLS and authenticate.
    pub(crate) fn secure(runtime: Runtime) -> Self {
        let servers = shared_secure();
        Forest {
            scheme: secure_scheme(),
            host: "localhost",
            ports: vec![servers.secure_port()],
            parameters: secure_parameters(servers),
            ..Forest::new(runtime, servers)
        }
    }

    /// Lets each process connect to all servers. After a lost connection, the process may continue on another server.
    pub(crate) fn roaming(self) -> Self {
        Forest { is_roaming: true, ..self }
    }

    /// Creates a [`Forest`] with a short root, for cases in which the length of paths matters.
    pub(crate) fn with_short_paths(runtime: Runtime, servers: &'static Zookeeper) -> Self {
        let root = format!("{:08x}", runtime.random_u128() >> 96);
        Forest { root, ..Forest::new(runtime, servers) }
    }

    /// Returns the URL of the servers at `ports`.
    fn url(&self, ports: impl Iterator<Item = u16>, root: &str) -> ZookeeperUrl {
        let servers: Vec<String> = ports.map(|port| format!("{}:{port}", self.host)).collect();
        let url = format!("{}{}/{root}{}", self.scheme, servers.join(","), self.parameters);
        ZookeeperUrl::parse(&url).unwrap()
    }

    /// Creates the root, because the suite expects it before the first node. The response of each server shows that the
    /// server knows the root.
    async fn create_root(&self) {
        let root = NodePath::new(&format!("/{}", self.root)).unwrap();
        for port in &self.ports {
            let url = self.url([*port].into_iter(), "");
            let tree = ZookeeperTrees::new(self.runtime.clone(), url).open(SessionOptions::default()).await.unwrap();
            let created = tree.create(&root, Bytes::new(), CreateMode::Persistent, Acl::Open).await;
            assert!(created.is_ok() || created == Err(TreeError::NodeExists), "{created:?}");
            tree.close().await.unwrap();
        }
    }
}

/// Returns the start of a URL with TLS and a user of the tests' secure servers.
pub(crate) fn secure_scheme() -> String {
    let (user, password) = USERS[0];
    format!("zookeeper+tls://{user}:{}@", password.replace(' ', "%20"))
}

/// Returns the parameters of a URL with a certificate for the client.
pub(crate) fn secure_parameters(server: &Zookeeper) -> String {
    let path = |name| server.certificate(name).display().to_string();
    format!("?sslrootcert={}&sslcert={}&sslkey={}", path("root.crt"), path("client.crt"), path("client.key"))
}

impl Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        let (first, count) = (self.processes.fetch_add(1, Ordering::Relaxed), self.ports.len());
        let known = if self.is_roaming { count } else { 1 };
        let ports = (first..first + known).map(|at| self.ports[at % count]);
        let proxies: Vec<Proxy> = ports.map(|port| Proxy::start(([127, 0, 0, 1], port).into()).unwrap()).collect();
        let url = self.url(proxies.iter().map(|proxy| proxy.address().port()), &self.root);
        let trees = ZookeeperTrees::new(self.runtime.clone(), url);
        async {
            self.has_root.get_or_init(|| self.create_root()).await;
            Arc::new(Connected { proxies, trees }) as Arc<dyn Process>
        }
        .boxed()
    }
}

struct Connected {
    proxies: Vec<Proxy>,
    trees: ZookeeperTrees,
}

impl Trees for Connected {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        self.trees.open(options)
    }
}

impl Process for Connected {
    fn cut(&self, is_cut: bool) {
        self.proxies.iter().for_each(|proxy| proxy.cut(is_cut));
    }

    fn cut_answers(&self) {
        self.proxies.iter().for_each(Proxy::cut_answers);
    }
}

/// Forest in which [`Process::cut`] kills the leader of the ensemble. While a server is down, [`Process::cut`]
/// disconnects the process from all servers instead.
pub(crate) struct MortalForest {
    forest: Forest,
    servers: Arc<Servers>,
}

struct Servers {
    ensemble: &'static Zookeeper,
    /// True if all servers run. At most one server is down at a time.
    is_whole: AtomicBool,
    deaths: AtomicUsize,
    tasks: TaskSet,
}

struct Mortal {
    process: Arc<dyn Process>,
    servers: Arc<Servers>,
    killed: Mutex<Option<usize>>,
}

impl MortalForest {
    pub(crate) fn new(runtime: Runtime) -> Self {
        // The test kills servers of this ensemble, so it does not use the ensemble that the other tests share.
        static ENSEMBLE: OnceLock<Zookeeper> = OnceLock::new();
        let ensemble = ENSEMBLE.get_or_init(|| Zookeeper::start(3).expect("Java and Maven must be installed"));
        let (is_whole, deaths) = (AtomicBool::new(true), AtomicUsize::new(0));
        let servers = Servers { ensemble, is_whole, deaths, tasks: TaskSet::new(&runtime) };
        MortalForest { forest: Forest::new(runtime, ensemble).roaming(), servers: Arc::new(servers) }
    }

    pub(crate) fn deaths(&self) -> usize {
        self.servers.deaths.load(Ordering::Relaxed)
    }
}

impl Subject for MortalForest {
    fn runtime(&self) -> Runtime {
        self.forest.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        async {
            let (process, servers) = (self.forest.process().await, self.servers.clone());
            Arc::new(Mortal { process, servers, killed: Mutex::default() }) as Arc<dyn Process>
        }
        .boxed()
    }
}

impl Trees for Mortal {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        self.process.open(options)
    }
}

impl Process for Mortal {
    fn cut(&self, is_cut: bool) {
        let (servers, mut killed) = (&self.servers, self.killed.lock().unwrap());
        if is_cut && servers.is_whole.swap(false, Ordering::AcqRel) {
            // If the ensemble has no leader, this function kills the first server.
            let leader = servers.ensemble.leader().unwrap_or(0);
            servers.ensemble.kill(leader).unwrap();
            servers.deaths.fetch_add(1, Ordering::Relaxed);
            *killed = Some(leader);
        } else if is_cut {
            self.process.cut(true);
        } else if let Some(at) = killed.take() {
            let up = servers.clone();
            servers.tasks.spawn_thread("server", async move {
                up.ensemble.restart(at).unwrap();
                up.is_whole.store(true, Ordering::Release);
            });
        } else {
            self.process.cut(false);
        }
    }

    fn cut_answers(&self) {
        self.process.cut_answers();
    }
}

pub(crate) fn with_real_runtime<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

/// Returns the number of messages that the servers have received in this session, and the number of messages that they
/// have sent.
pub(crate) fn messages(session: &str) -> (u64, u64) {
    let connections = connections(ensemble());
    let line = connections.iter().find(|line| line.contains(&format!("sid={session},")));
    let line = line.unwrap_or_else(|| panic!("no connection has the session {session}: {connections:?}"));
    (number(line, "recved="), number(line, "sent="))
}

/// Returns a line for each connection that has a session.
pub(crate) fn connections(ensemble: &Zookeeper) -> Vec<String> {
    let texts: String = (0..ensemble.count()).map(|at| ensemble.ask(at, "cons").unwrap()).collect();
    texts.lines().filter(|line| line.contains("sid=")).map(str::to_owned).collect()
}

/// Returns the number after `name` in the line of a connection.
pub(crate) fn number(line: &str, name: &str) -> u64 {
    let number = line.split(name).nth(1).and_then(|rest| rest.split(',').next());
    number.and_then(|number| number.parse().ok()).expect(line)
}

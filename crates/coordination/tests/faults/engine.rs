//! Engines of the fault tests, and routes to these engines. The tests can cut the routes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use reveille_coordination::recipes::{Candidate, Client, LeaderSelector, Trust};
use reveille_coordination::tree::{NodePath, SessionOptions, Tree, TreeError, Trees};
use runtime::Runtime;
use test_servers::Proxy;
use test_servers::postgres::Postgres;
use test_servers::zookeeper::Zookeeper;

enum Servers {
    /// ZooKeeper ensemble of three servers.
    Zookeeper(Zookeeper),
    Postgres(Postgres),
}

/// Tree of one test. Other tests may use the same servers at the same time.
pub(crate) struct Engine {
    servers: &'static Servers,
    /// Name of the test's root node on ZooKeeper, or of the test's database on PostgreSQL.
    name: String,
    /// Lock that a test holds while it has exclusive use of the servers. Such a test may stop the servers.
    _exclusive: Option<MutexGuard<'static, ()>>,
}

/// Route through proxies to all servers of an engine.
pub(crate) struct Route {
    pub(crate) url: String,
    proxies: Vec<Proxy>,
}

type Shared = OnceLock<Servers>;

/// ZooKeeper ensembles of the tests. All tests share the first ensemble. Only one test at a time uses the second
/// ensemble, and this test may stop its servers.
static ZOOKEEPER: [Shared; 2] = [const { OnceLock::new() }; 2];
static POSTGRES: [Shared; 2] = [const { OnceLock::new() }; 2];
static EXCLUSIVE: LazyLock<[Mutex<()>; 2]> = LazyLock::new(Default::default);

fn zookeeper_of(shared: &'static Shared) -> &'static Servers {
    shared.get_or_init(|| Servers::Zookeeper(Zookeeper::start(3).expect("Java and Maven must be installed")))
}

fn postgres_of(shared: &'static Shared) -> &'static Servers {
    shared.get_or_init(|| Servers::Postgres(Postgres::start().expect("PostgreSQL must be installed")))
}

fn lock_exclusively(at: usize) -> Option<MutexGuard<'static, ()>> {
    // A failed test may have poisoned the lock. This test still works if the failed test has left the servers running.
    Some(EXCLUSIVE[at].lock().unwrap_or_else(PoisonError::into_inner))
}

impl Engine {
    pub(crate) fn zookeeper() -> Self {
        Engine::on(zookeeper_of(&ZOOKEEPER[0]), None)
    }

    pub(crate) fn postgres() -> Self {
        Engine::on(postgres_of(&POSTGRES[0]), None)
    }

    /// Returns an engine of the same kind on servers that no other test uses at the same time.
    pub(crate) fn exclusive(&self) -> Self {
        match self.servers {
            Servers::Zookeeper(_) => {
                let exclusive = lock_exclusively(0);
                Engine::on(zookeeper_of(&ZOOKEEPER[1]), exclusive)
            }
            Servers::Postgres(_) => {
                let exclusive = lock_exclusively(1);
                Engine::on(postgres_of(&POSTGRES[1]), exclusive)
            }
        }
    }

    fn on(servers: &'static Servers, exclusive: Option<MutexGuard<'static, ()>>) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = match servers {
            Servers::Zookeeper(_) => format!("criteria-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            Servers::Postgres(server) => {
                let url = server.create_database().unwrap();
                let migrated = url.clone();
                // The migration runs on a separate thread, because the caller may already run inside a tokio runtime.
                let migrating = || {
                    with_real_runtime(async move |runtime| {
                        coordination_connect::migrate(&runtime, &migrated, None).await
                    })
                };
                thread::spawn(migrating).join().unwrap().unwrap();
                url.rsplit_once('/').unwrap().1.to_owned()
            }
        };
        Engine { servers, name, _exclusive: exclusive }
    }

    pub(crate) fn url(&self) -> String {
        match self.servers {
            Servers::Zookeeper(servers) => format!("zookeeper://{}/{}", servers.addresses(), self.name),
            Servers::Postgres(server) => server.url(&self.name),
        }
    }

    /// Opens a route to the engine. The route's proxies listen at the address `host` of this machine.
    pub(crate) fn route_at(&self, host: Ipv4Addr) -> Route {
        let proxy = |port: u16| Proxy::start_at(IpAddr::V4(host), ([127, 0, 0, 1], port).into()).unwrap();
        match self.servers {
            Servers::Zookeeper(servers) => {
                let proxies: Vec<Proxy> = (0..servers.count()).map(|at| proxy(servers.port(at))).collect();
                let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
                Route { url: format!("zookeeper://{}/{}", addresses.join(","), self.name), proxies }
            }
            Servers::Postgres(server) => {
                let proxy = proxy(server.port());
                let direct: SocketAddr = ([127, 0, 0, 1], server.port()).into();
                let url = server.url(&self.name).replace(&direct.to_string(), &proxy.address().to_string());
                Route { url, proxies: vec![proxy] }
            }
        }
    }

    pub(crate) fn route(&self) -> Route {
        self.route_at(Ipv4Addr::LOCALHOST)
    }

    /// Kills all servers, and starts them again with their durable data.
    pub(crate) fn restart(&self) {
        match self.servers {
            Servers::Zookeeper(servers) => servers.restart_all().unwrap(),
            Servers::Postgres(server) => {
                server.kill().unwrap();
                server.restart().unwrap();
            }
        }
    }

    /// Pauses or resumes all servers. Connections to paused servers stay open but get no response.
    pub(crate) fn pause(&self, is_paused: bool) {
        match (self.servers, is_paused) {
            (Servers::Zookeeper(servers), true) => (0..servers.count()).for_each(|at| servers.pause(at).unwrap()),
            (Servers::Zookeeper(servers), false) => (0..servers.count()).for_each(|at| servers.resume(at).unwrap()),
            (Servers::Postgres(server), true) => server.pause().unwrap(),
            (Servers::Postgres(server), false) => server.resume().unwrap(),
        }
    }

    /// Kills and restarts the server that orders the changes: the leader of the ZooKeeper ensemble, or the PostgreSQL
    /// server.
    pub(crate) fn restart_leader(&self) {
        match self.servers {
            Servers::Zookeeper(servers) => servers.restart(servers.leader().unwrap()).unwrap(),
            Servers::Postgres(_) => self.restart(),
        }
    }

    pub(crate) async fn peer(&self, runtime: &Runtime, timeout: Duration) -> Peer {
        Peer::open(runtime, &self.url(), timeout).await
    }
}

impl Route {
    pub(crate) fn cut(&self, is_cut: bool) {
        self.proxies.iter().for_each(|proxy| proxy.cut(is_cut));
    }

    /// Drops the response to the next request that contains the text `to`, and all later responses until the test calls
    /// `cut(false)`.
    pub(crate) fn lose_response(&self, to: &str) {
        self.proxies.iter().for_each(|proxy| proxy.lose_answer(to));
    }

    pub(crate) fn has_lost_response(&self) -> bool {
        self.proxies.iter().any(Proxy::has_lost_answer)
    }

    pub(crate) async fn peer(&self, runtime: &Runtime, timeout: Duration) -> Peer {
        Peer::open(runtime, &self.url, timeout).await
    }
}

/// Client that acts as a separate process, but runs inside the test process.
pub(crate) struct Peer {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
}

impl Peer {
    /// Opens the tree at `url`. Repeats this while a busy server does not respond in time.
    async fn open(runtime: &Runtime, url: &str, timeout: Duration) -> Peer {
        let begin = runtime.monotonic();
        loop {
            match coordination_connect::trees(runtime, url, None).await {
                Ok(trees) => return Peer::on(runtime, trees, timeout),
                Err(error) => assert!(runtime.monotonic().since(begin) < crate::TIMEOUT, "{error}"),
            }
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn on(runtime: &Runtime, trees: Arc<dyn Trees>, timeout: Duration) -> Peer {
        let client = Client::new(runtime, trees, SessionOptions { timeout, credentials: Vec::new() });
        Peer { runtime: runtime.clone(), client }
    }

    pub(crate) fn selector(&self, id: &str, trust: Trust) -> LeaderSelector {
        let candidate = Candidate { trust, ..Candidate::new(id) };
        LeaderSelector::new(&self.client, path("/group"), candidate)
    }

    pub(crate) async fn tree(&self) -> Arc<dyn Tree> {
        self.retry("a session is open", async || self.client.session().await).await
    }

    /// Closes the session. If a busy server does not respond in time, the session expires by itself.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.client.close().await {
            assert!(matches!(error, TreeError::Disconnected(_) | TreeError::SessionLost), "{error}");
        }
    }

    /// Returns the ids of all candidates. The leader is the first.
    pub(crate) async fn candidate_ids(&self) -> Vec<String> {
        let request = async || {
            self.client.session().await?.sync().await?;
            self.selector("", Trust::default()).participants().await
        };
        self.retry("the participants are listed", request).await.into_iter().map(|one| one.id).collect()
    }

    /// Returns the names of the nodes in the leader group.
    pub(crate) async fn nodes(&self) -> Vec<String> {
        let request = async || {
            let tree = self.client.session().await?;
            tree.sync().await?;
            match tree.children(&path("/group")).await {
                Ok(children) => Ok(children.names),
                Err(TreeError::NoNode) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        self.retry("the nodes of the leader group are listed", request).await
    }

    /// Repeats a request while a busy server does not respond in time. Uses another session if the session is lost.
    async fn retry<T>(&self, event: &str, request: impl AsyncFn() -> Result<T, TreeError>) -> T {
        let retrying = async {
            loop {
                match request().await {
                    Ok(answer) => return answer,
                    Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {}
                    Err(error) => panic!("waiting until {event}: {error}"),
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(event, retrying).await
    }

    pub(crate) async fn until(&self, event: &str, mut condition: impl AsyncFnMut() -> bool) {
        let looking = async {
            while !condition().await {
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(event, looking).await;
    }

    pub(crate) async fn within<T>(&self, event: &str, future: impl Future<Output = T>) -> T {
        let limited = self.runtime.timeout(crate::TIMEOUT, future).await;
        limited.unwrap_or_else(|| panic!("timed out waiting until {event}"))
    }
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn with_real_runtime<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

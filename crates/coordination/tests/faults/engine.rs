//! The engines that the criteria are held up against, and ways to them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use coordination::recipes::{Candidate, Client, LeaderSelector, Trust};
use coordination::tree::{Acl, NodePath, SessionOptions, Tree, TreeError, Trees};
use runtime::Runtime;
use test_servers::Proxy;
use test_servers::postgres::Postgres;
use test_servers::zookeeper::Zookeeper;

enum Servers {
    /// An ensemble of three.
    Zookeeper(Zookeeper),
    Postgres(Postgres),
}

/// A tree of a test's own, on servers that it may share with others.
pub(crate) struct Engine {
    servers: &'static Servers,
    /// The root's name, or the database's.
    name: String,
    /// Who may stop the servers has them alone.
    _alone: Option<MutexGuard<'static, ()>>,
}

/// A way to all servers of an engine, which can be cut.
pub(crate) struct Way {
    pub(crate) url: String,
    proxies: Vec<Proxy>,
}

type Shared = OnceLock<Servers>;

/// Those that go on, and those that are stopped by one test at a time.
static ZOOKEEPER: [Shared; 2] = [const { OnceLock::new() }; 2];
static POSTGRES: [Shared; 2] = [const { OnceLock::new() }; 2];
static ALONE: LazyLock<[Mutex<()>; 2]> = LazyLock::new(Default::default);

fn zookeeper_of(shared: &'static Shared) -> &'static Servers {
    shared.get_or_init(|| Servers::Zookeeper(Zookeeper::start(3).expect("Java and Maven are installed")))
}

fn postgres_of(shared: &'static Shared) -> &'static Servers {
    shared.get_or_init(|| Servers::Postgres(Postgres::start().expect("PostgreSQL is installed")))
}

fn alone(at: usize) -> Option<MutexGuard<'static, ()>> {
    // A test that has failed leaves servers that run, or the next fails, too.
    Some(ALONE[at].lock().unwrap_or_else(PoisonError::into_inner))
}

impl Engine {
    pub(crate) fn zookeeper() -> Self {
        Engine::on(zookeeper_of(&ZOOKEEPER[0]), None)
    }

    pub(crate) fn postgres() -> Self {
        Engine::on(postgres_of(&POSTGRES[0]), None)
    }

    /// Of the same kind, on servers that nobody else uses now.
    pub(crate) fn alone(&self) -> Self {
        match self.servers {
            Servers::Zookeeper(_) => {
                let alone = alone(0);
                Engine::on(zookeeper_of(&ZOOKEEPER[1]), alone)
            }
            Servers::Postgres(_) => {
                let alone = alone(1);
                Engine::on(postgres_of(&POSTGRES[1]), alone)
            }
        }
    }

    fn on(servers: &'static Servers, alone: Option<MutexGuard<'static, ()>>) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = match servers {
            Servers::Zookeeper(_) => format!("criteria-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            Servers::Postgres(server) => {
                let url = server.create_database().unwrap();
                let migrated = url.clone();
                // A thread of its own: this may be called from within a runtime.
                let migrating =
                    || on_real(async move |runtime| coordination_connect::migrate(&runtime, &migrated, None).await);
                thread::spawn(migrating).join().unwrap().unwrap();
                url.rsplit_once('/').unwrap().1.to_owned()
            }
        };
        Engine { servers, name, _alone: alone }
    }

    pub(crate) fn url(&self) -> String {
        match self.servers {
            Servers::Zookeeper(servers) => format!("zookeeper://{}/{}", servers.addresses(), self.name),
            Servers::Postgres(server) => server.url(&self.name),
        }
    }

    /// A way to it, from this address of the machine.
    pub(crate) fn way_at(&self, host: Ipv4Addr) -> Way {
        let proxy = |port: u16| Proxy::start_at(IpAddr::V4(host), ([127, 0, 0, 1], port).into()).unwrap();
        match self.servers {
            Servers::Zookeeper(servers) => {
                let proxies: Vec<Proxy> = (0..servers.count()).map(|at| proxy(servers.port(at))).collect();
                let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
                Way { url: format!("zookeeper://{}/{}", addresses.join(","), self.name), proxies }
            }
            Servers::Postgres(server) => {
                let proxy = proxy(server.port());
                let direct: SocketAddr = ([127, 0, 0, 1], server.port()).into();
                let url = server.url(&self.name).replace(&direct.to_string(), &proxy.address().to_string());
                Way { url, proxies: vec![proxy] }
            }
        }
    }

    pub(crate) fn way(&self) -> Way {
        self.way_at(Ipv4Addr::LOCALHOST)
    }

    /// All servers are killed, and started again on what they have called durable.
    pub(crate) fn restart(&self) {
        match self.servers {
            Servers::Zookeeper(servers) => servers.restart_all().unwrap(),
            Servers::Postgres(server) => {
                server.kill().unwrap();
                server.restart().unwrap();
            }
        }
    }

    /// All servers stand still: connections stay open, and nobody answers.
    pub(crate) fn pause(&self, is_paused: bool) {
        match (self.servers, is_paused) {
            (Servers::Zookeeper(servers), true) => (0..servers.count()).for_each(|at| servers.pause(at).unwrap()),
            (Servers::Zookeeper(servers), false) => (0..servers.count()).for_each(|at| servers.resume(at).unwrap()),
            (Servers::Postgres(server), true) => server.pause().unwrap(),
            (Servers::Postgres(server), false) => server.resume().unwrap(),
        }
    }

    /// The server that most depends on is killed, and comes back: the ensemble's leader, or the database.
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

impl Way {
    pub(crate) fn cut(&self, is_cut: bool) {
        self.proxies.iter().for_each(|proxy| proxy.cut(is_cut));
    }

    /// Of whichever server it goes to.
    pub(crate) fn lose_answer(&self, to: &str) {
        self.proxies.iter().for_each(|proxy| proxy.lose_answer(to));
    }

    pub(crate) fn has_lost_answer(&self) -> bool {
        self.proxies.iter().any(Proxy::has_lost_answer)
    }

    pub(crate) async fn peer(&self, runtime: &Runtime, timeout: Duration) -> Peer {
        Peer::open(runtime, &self.url, timeout).await
    }
}

/// A process's part, in the test's own process.
pub(crate) struct Peer {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
}

impl Peer {
    async fn open(runtime: &Runtime, url: &str, timeout: Duration) -> Peer {
        let trees = coordination_connect::trees(runtime, url, None).await.unwrap();
        Peer::on(runtime, trees, timeout)
    }

    pub(crate) fn on(runtime: &Runtime, trees: Arc<dyn Trees>, timeout: Duration) -> Peer {
        let client = Client::new(runtime, trees, SessionOptions { timeout, credentials: Vec::new() });
        Peer { runtime: runtime.clone(), client }
    }

    pub(crate) fn selector(&self, id: &str, trust: Trust) -> LeaderSelector {
        let candidate = Candidate { acl: Acl::Open, trust, ..Candidate::new(id) };
        LeaderSelector::new(&self.client, path("/group"), candidate)
    }

    pub(crate) async fn tree(&self) -> Arc<dyn Tree> {
        self.answered("a session", async || self.client.session().await).await
    }

    /// Closes the session. The session expires by itself if a busy server does not answer in time.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.client.close().await {
            assert!(matches!(error, TreeError::Disconnected(_) | TreeError::SessionLost), "{error}");
        }
    }

    /// Who stands for leader, the leader first: as it is now.
    pub(crate) async fn standing(&self) -> Vec<String> {
        let ask = async || {
            self.client.session().await?.sync().await?;
            self.selector("", Trust::default()).participants().await
        };
        self.answered("the participants", ask).await.into_iter().map(|one| one.id).collect()
    }

    /// The names of the group's nodes.
    pub(crate) async fn nodes(&self) -> Vec<String> {
        let ask = async || {
            let tree = self.client.session().await?;
            tree.sync().await?;
            match tree.children(&path("/group")).await {
                Ok(children) => Ok(children.names),
                Err(TreeError::NoNode) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        self.answered("the names of the group's nodes", ask).await
    }

    /// Asks again while a busy server does not answer in time, in another session if this one is lost by that.
    async fn answered<T>(&self, what: &str, ask: impl AsyncFn() -> Result<T, TreeError>) -> T {
        let asking = async {
            loop {
                match ask().await {
                    Ok(answer) => return answer,
                    Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {}
                    Err(error) => panic!("{what}: {error}"),
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(what, asking).await
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let looking = async {
            while !is_so().await {
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(what, looking).await;
    }

    pub(crate) async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        let limited = self.runtime.timeout(crate::PATIENCE, future).await;
        limited.unwrap_or_else(|| panic!("it never came: {what}"))
    }
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

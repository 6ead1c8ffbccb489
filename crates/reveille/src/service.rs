//! Complete service of the commands `serve` and `demo`: store, callbacks, scheduler and HTTP server.
//!
//! Invariants: a stop has these steps in this order. The server accepts no new requests, the scheduler starts no new
//! attempts, the scheduler writes the outcomes of attempts in flight, and the store flushes the written data. Each part
//! of the service stops only after the parts that call it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use callback::{BusDeliver, BusOptions, HttpDeliver, Route};
use domain::Egress;
use domain::egress::Class;
use domain::limits::Limits;
use peers::{Identity, Listener};
use prometheus_client::metrics::info::Info;
use runtime::{DiskLock, LowPriorityThreads, Runtime, TaskSet};
use scheduler::{Registry, Scheduler};
use server::{Readiness, Server};
use store::Keyring;
use store_embedded::EmbeddedStore;
use store_postgres::PostgresStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::authority::{self, FollowingIdentity};
use crate::cluster::{self, MemberArguments, Parts, Role};
use crate::data_folder::{explain_open, make_private, store_path};
use crate::engine::{Engine, PostgresEngine};
use crate::message_bus::BusArguments;
use crate::store_key::{StoreKeyArguments, Unlocked};
use crate::tls::Certificate;
use crate::{control, header_binding, identity, inbox, store_key};

/// Options of the service that an operator may set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) data: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) member: MemberArguments,
    pub(crate) server: server::Options,
    pub(crate) scheduler: scheduler::Options,
    pub(crate) callback: callback::Options,
    pub(crate) bus: BusArguments,
    pub(crate) store: store_embedded::Options,
    pub(crate) store_key: StoreKeyArguments,
    /// Number of threads that run requests; `None` for one thread per core.
    pub(crate) request_threads: Option<usize>,
    /// TLS certificate of the listener. `None` means plain HTTP.
    pub(crate) certificate: Option<Certificate>,
}

impl Options {
    /// Returns the limits of a schedule.
    fn limits(&self) -> Limits {
        Limits { has_bus: self.bus.is_some(), ..self.server.limits.clone() }
    }
}

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// True if the listener uses TLS.
    pub(crate) is_secured: bool,
    stop_certificate: CancellationToken,
    server: Server,
    /// Threads that run the server. Many requests delay callbacks only little, because the threads that send callbacks
    /// have a higher priority (docs/decisions/0202-run-requests-on-threads-of-their-own.md).
    request_threads: LowPriorityThreads,
    scheduler: Scheduler,
    store: OpenStore,
    tasks: TaskSet,
}

/// Open store, with the handles that the service needs to stop the store.
enum OpenStore {
    Embedded {
        store: Arc<EmbeddedStore>,
        /// Sender whose drop stops the control socket.
        control: watch::Sender<()>,
    },
    Postgres {
        store: Arc<PostgresStore>,
        stop_peers: CancellationToken,
        /// Token that [`watch_folder`] cancels if the member's data folder or its lock file was removed, moved or
        /// replaced.
        folder_lost: CancellationToken,
    },
}

impl Service {
    /// Opens all parts of the service and starts to send callbacks. The server responds to requests only after the call
    /// of [`Service::run_until`].
    ///
    /// # Errors
    /// Returns an error if a part of the service cannot start. The error names the next step for the operator.
    pub(crate) async fn start(runtime: &Runtime, options: Options) -> anyhow::Result<Self> {
        let data = &options.data;
        make_private(runtime, data).await?;
        match &options.engine {
            Engine::Embedded => Service::start_embedded(runtime, &options).await,
            Engine::Postgres(engine) => Service::start_member(runtime, engine, &options).await,
        }
    }

    async fn start_embedded(runtime: &Runtime, options: &Options) -> anyhow::Result<Self> {
        let data = &options.data;
        if let Some(cluster) = identity::known_cluster(data)? {
            anyhow::bail!(
                "{} belongs to the cluster {cluster}: it is the folder of a member, or its data was exported to this \
                 cluster. Name the cluster's database with --store, or choose another folder with --data",
                data.display()
            );
        }
        let tasks = TaskSet::new(runtime);
        let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), options.store.clone()).await;
        let store = Arc::new(opened.map_err(|error| explain_open(error, data))?);
        let started = async {
            let egress = first_egress(options.server.listen.ip());
            let unlocked = store_key::unlock(runtime, store.clone(), &options.store_key.path(data), true).await?;
            identity::create_first(runtime, &unlocked, data, options.scheduler.pollers, &egress).await?;
            header_binding::migrate(runtime, &unlocked).await?;
            let mut registry = build_registry();
            store.register(&mut registry);
            let deliver = Arc::new(deliver(runtime, options, &unlocked, &mut registry).await?);
            let keyring = unlocked.keyring.clone();
            let started = Scheduler::start(runtime, unlocked.store, deliver, options.scheduler.clone(), registry).await;
            let scheduler = started.context("cannot start the scheduler")?;
            Ok((Front::bind(&scheduler, options, keyring).await?, scheduler))
        };
        match started.await {
            Ok((front, scheduler)) => {
                let (control, stopped) = watch::channel(());
                control::listen(runtime, &tasks, data, store.clone(), stopped);
                let store = OpenStore::Embedded { store, control };
                Ok(Service::new(runtime, options, front, scheduler, store, tasks))
            }
            Err(error) => {
                // The threads of the store wait on the clock of the runtime, so they must end before the runtime ends.
                store.close().await;
                tasks.join().await;
                Err(error)
            }
        }
    }

    async fn start_member(runtime: &Runtime, engine: &PostgresEngine, options: &Options) -> anyhow::Result<Self> {
        let lock = identity::lock_member(runtime, &options.data).await?;
        let tasks = TaskSet::new(runtime);
        let store = cluster::open(runtime, &tasks, engine, &options.data).await?;
        let mut registry = build_registry();
        let unlocked = store_key::unlock(runtime, store.clone(), &options.store_key.path(&options.data), false).await?;
        unlocked.register_key(runtime).await?;
        ensure!(
            header_binding::is_complete(&*unlocked.store, &unlocked.keyring).await?,
            "the headers in this store are not bound to their targets yet: stop all members, and run `reveille store \
             migrate --store …`"
        );
        authority::ensure(runtime, &store, &unlocked.keyring).await?;
        let following = FollowingIdentity::read(runtime, &store, &unlocked.keyring).await?;
        let identity = following.identity.clone();
        // The join may wait for the coordination engine, and the authorities may change in the meantime.
        let stop_peers = CancellationToken::new();
        let (stop, follow) =
            (stop_peers.clone(), following.follow(runtime.clone(), store.clone(), unlocked.keyring.clone()));
        tasks.spawn("authorities", async move {
            stop.run_until_cancelled(follow).await;
        });
        let deliver = Arc::new(deliver(runtime, options, &unlocked, &mut registry).await?);
        let keyring = unlocked.keyring.clone();
        let parts = Parts { store: &store, encrypted: unlocked.store, identity: identity.clone(), deliver };
        let joined = cluster::join(runtime, engine, &options.member, parts, options.scheduler.clone(), registry);
        let cluster::Member { scheduler, listener } = joined.await?;
        tasks.spawn("peers", serve_peers(listener, identity, scheduler.clone(), stop_peers.clone()));
        let front = Front::bind(&scheduler, options, keyring).await?;
        let limits = options.limits();
        let (mover, inbox) = (scheduler.clone(), store.clone());
        tasks.spawn("inbox", async move { mover.move_inbox(inbox, inbox::read_spec(limits)).await });
        let folder_lost = CancellationToken::new();
        let watch = watch_folder(runtime.clone(), lock, stop_peers.clone(), folder_lost.clone());
        tasks.spawn_thread("data folder", watch);
        let store = OpenStore::Postgres { store, stop_peers, folder_lost };
        Ok(Service::new(runtime, options, front, scheduler, store, tasks))
    }

    fn new(
        runtime: &Runtime,
        options: &Options,
        front: Front,
        scheduler: Scheduler,
        store: OpenStore,
        tasks: TaskSet,
    ) -> Self {
        let Front { server, request_threads } = front;
        let (address, stop_certificate) = (server.local_addr(), CancellationToken::new());
        if let Some(certificate) = options.certificate.clone() {
            let (runtime, stop) = (runtime.clone(), stop_certificate.clone());
            tasks.spawn_thread("certificate", async move {
                stop.run_until_cancelled(certificate.follow(runtime)).await;
            });
        }
        let is_secured = options.certificate.is_some();
        Service { address, is_secured, stop_certificate, server, request_threads, scheduler, store, tasks }
    }

    /// Returns `true` if the service is a member of a cluster.
    pub(crate) fn is_member(&self) -> bool {
        matches!(self.store, OpenStore::Postgres { .. })
    }

    /// Returns the address of the listener for metrics, if metrics have a listener of their own.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.server.metrics_addr()
    }

    /// Returns the readiness that `/readyz` reports.
    pub(crate) fn readiness(&self) -> Readiness {
        self.server.readiness()
    }

    /// Returns a token that is cancelled if the data folder of a member or its lock file was removed, moved or replaced.
    /// The journal of a single process stops the process by itself in this case.
    pub(crate) fn folder_lost(&self) -> CancellationToken {
        match &self.store {
            OpenStore::Embedded { .. } => CancellationToken::new(),
            OpenStore::Postgres { folder_lost, .. } => folder_lost.clone(),
        }
    }

    /// Serves requests until `stop` resolves. Then stops the server, the scheduler and the store, in this order.
    pub(crate) async fn run_until(self, stop: impl Future<Output = ()> + Send + 'static) {
        let served = self.request_threads.runtime.detached("server", self.server.serve_until(stop)).await;
        served.expect("the task of the server does not panic");
        drop(self.request_threads);
        tracing::info!("the server is stopping: it starts no new callbacks, but callbacks in flight may complete");
        self.scheduler.stop().await;
        self.stop_certificate.cancel();
        match self.store {
            OpenStore::Embedded { store, control } => {
                drop(control);
                store.close().await;
            }
            OpenStore::Postgres { store, stop_peers, .. } => {
                stop_peers.cancel();
                store.close();
            }
        }
        self.tasks.join().await;
    }
}

/// Returns the egress policy of the first tenant of a server that listens on `address`. If the server listens on
/// loopback, the policy allows callbacks to loopback. All users of such a server are already on this machine, so these
/// callbacks give the users no additional access.
fn first_egress(address: IpAddr) -> Egress {
    let allow = if address.is_loopback() { BTreeSet::from([Class::Loopback]) } else { BTreeSet::new() };
    Egress { allow, ..Egress::default() }
}

/// Verifies the lock of a member's data folder once per second, and holds the lock until the member has stopped.
async fn watch_folder(
    runtime: Runtime,
    lock: Box<dyn DiskLock>,
    stopped: CancellationToken,
    folder_lost: CancellationToken,
) {
    const PERIOD: Duration = Duration::from_secs(1);
    while runtime.timeout(PERIOD, stopped.cancelled()).await.is_none() {
        if let Err(error) = lock.verify().await {
            tracing::error!(%error, "this member stops, because its data folder is lost");
            folder_lost.cancel();
            stopped.cancelled().await;
        }
    }
}

async fn serve_peers(listener: Listener, identity: Identity, scheduler: Scheduler, stop: CancellationToken) {
    let sessions = scheduler.clone();
    let is_me: peers::IsCurrentSession = Arc::new(move |id| sessions.is_member(id));
    let handler: peers::Handler = Arc::new(move |operation, request| {
        let scheduler = scheduler.clone();
        Box::pin(async move { scheduler.handle(&operation, &request).await })
    });
    listener.serve_until(identity, is_me, handler, async move { stop.cancelled().await }).await;
}

/// Creates a registry of metrics that contains a metric with the version of the build.
fn build_registry() -> Registry {
    let mut registry = Registry::default();
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("reveille_build", "Version of this Reveille build", build);
    registry
}

async fn deliver(
    runtime: &Runtime,
    options: &Options,
    unlocked: &Unlocked,
    registry: &mut Registry,
) -> anyhow::Result<Route> {
    let keyring = &unlocked.keyring;
    let callback = callback::Options { keyring: keyring.clone(), ..options.callback.clone() };
    let http = HttpDeliver::new(runtime, callback).context("cannot start the HTTP client for callbacks")?;
    http.register(registry);
    let bus_options =
        BusOptions { compression: options.bus.compression(), keyring: keyring.clone(), ..BusOptions::default() };
    let bus = options.bus.open(runtime).await?.map(|bus| BusDeliver::new(runtime, bus, bus_options));
    Ok(Route { http, bus })
}

/// Bound server, with the threads that will run it.
struct Front {
    server: Server,
    request_threads: LowPriorityThreads,
}

impl Front {
    /// Binds the listener of the server. If the bind fails, the function stops the scheduler.
    async fn bind(scheduler: &Scheduler, options: &Options, keyring: Arc<Keyring>) -> anyhow::Result<Self> {
        let bound = async {
            let request_threads = LowPriorityThreads::start("requests", options.request_threads)
                .context("cannot start the threads that run requests")?;
            let tls = options.certificate.as_ref().map(|certificate| certificate.tls.clone());
            let server = server::Options {
                answers_users: options.member.has(Role::Api),
                tls,
                batch_folder: options.data.clone(),
                limits: options.limits(),
                keyring,
                ..options.server.clone()
            };
            let server = Server::bind(request_threads.runtime.clone(), scheduler.clone(), server).await?;
            Ok(Front { server, request_threads })
        };
        let bound = bound.await;
        if bound.is_err() {
            scheduler.stop().await;
        }
        bound
    }
}

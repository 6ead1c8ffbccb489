//! The service put together: store, callbacks, scheduler, HTTP. What `serve` and `demo` start.
//!
//! Always true here: it stops from the front to the back (no new requests, no new attempts, what is in flight is
//! booked, what is written is flushed), and each part outlives what calls it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use callback::HttpDeliver;
use peers::{ClusterSecret, Listener};
use runtime::{Runtime, TaskSet};
use scheduler::Scheduler;
use server::Server;
use store_embedded::EmbeddedStore;
use store_postgres::PostgresStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, MemberArguments, Role};
use crate::engine::{Engine, PostgresEngine};
use crate::{control, identity, inbox};

/// What an operator may set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) data: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) member: MemberArguments,
    pub(crate) server: server::Options,
    pub(crate) scheduler: scheduler::Options,
    pub(crate) callback: callback::Options,
    pub(crate) store: store_embedded::Options,
}

/// Where the embedded store lies in a data folder; beside it are the keys and the operator's socket.
pub(crate) fn store_path(data: &Path) -> PathBuf {
    data.join("store")
}

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// The first start of this data folder: its key has just been made.
    pub(crate) is_new: bool,
    server: Server,
    scheduler: Scheduler,
    store: Standing,
    tasks: TaskSet,
}

/// What the service stands on.
enum Standing {
    Embedded {
        store: Arc<EmbeddedStore>,
        /// Dropped, it ends the taking of orders.
        orders: watch::Sender<()>,
    },
    Postgres {
        store: Arc<PostgresStore>,
        stop_peers: CancellationToken,
        /// Held for as long as the member is there.
        _lock: File,
    },
}

impl Service {
    /// Opens everything and begins to fire. Requests are answered from [`Service::run_until`] on.
    ///
    /// # Errors
    /// With the next step for the operator.
    pub(crate) async fn start(runtime: &Runtime, options: Options) -> anyhow::Result<Self> {
        let data = &options.data;
        make_private(data).with_context(|| format!("cannot make the data folder {}", data.display()))?;
        match &options.engine {
            Engine::Embedded => Service::start_embedded(runtime, &options).await,
            Engine::Postgres(engine) => Service::start_member(runtime, engine, &options).await,
        }
    }

    async fn start_embedded(runtime: &Runtime, options: &Options) -> anyhow::Result<Self> {
        let data = &options.data;
        if let Some(cluster) = identity::known_cluster(data)? {
            anyhow::bail!(
                "{} belongs to the cluster {cluster}, as a member's folder or because it was exported there: say with --store \
                 where that is, or choose another folder with --data",
                data.display()
            );
        }
        let tasks = TaskSet::new(runtime);
        let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), options.store.clone()).await;
        let store = Arc::new(opened.map_err(|error| explain_open(error, data))?);
        let front = async {
            let made = identity::make_first(runtime, &*store, data, options.scheduler.pollers).await?;
            let deliver = Arc::new(deliver(runtime, options)?);
            let started = Scheduler::start(runtime, store.clone(), deliver, options.scheduler.clone()).await;
            let scheduler = started.context("cannot take over the schedules")?;
            Ok((made.tenant, bind(runtime, &scheduler, options).await?, scheduler))
        };
        match front.await {
            Ok((is_new, server, scheduler)) => {
                let (orders, stopped) = watch::channel(());
                control::listen(runtime, &tasks, data, store.clone(), stopped);
                let address = server.local_addr();
                let store = Standing::Embedded { store, orders };
                Ok(Service { address, is_new, server, scheduler, store, tasks })
            }
            Err(error) => {
                // The store's threads must not be there when the clock that they wait by is gone.
                store.close().await;
                tasks.join().await;
                Err(error)
            }
        }
    }

    async fn start_member(runtime: &Runtime, engine: &PostgresEngine, options: &Options) -> anyhow::Result<Self> {
        let lock = identity::lock_member(&options.data)?;
        let tasks = TaskSet::new(runtime);
        let store = cluster::open(runtime, &tasks, engine, &options.data).await?;
        let deliver = Arc::new(deliver(runtime, options)?);
        let joined = cluster::join(runtime, engine, &options.member, &store, deliver, options.scheduler.clone());
        let cluster::Member { scheduler, listener } = joined.await?;
        let stop_peers = CancellationToken::new();
        let secret = cluster::secret(&store)?;
        tasks.spawn("peers", answer_peers(listener, secret, scheduler.clone(), stop_peers.clone()));
        let server = bind(runtime, &scheduler, options).await?;
        let limits = options.server.limits.clone();
        let inbox = inbox::keep_empty(runtime.clone(), store.clone(), scheduler.clone(), limits, stop_peers.clone());
        tasks.spawn("inbox", inbox);
        let address = server.local_addr();
        let store = Standing::Postgres { store, stop_peers, _lock: lock };
        Ok(Service { address, is_new: false, server, scheduler, store, tasks })
    }

    /// Of a cluster.
    pub(crate) fn is_member(&self) -> bool {
        matches!(self.store, Standing::Postgres { .. })
    }

    /// Serves until `stop` resolves, then stops in order.
    pub(crate) async fn run_until(self, stop: impl Future<Output = ()> + Send + 'static) {
        self.server.serve_until(stop).await;
        tracing::info!("stopping: no new callbacks are started, those under way are waited for");
        self.scheduler.stop().await;
        match self.store {
            Standing::Embedded { store, orders } => {
                drop(orders);
                store.close().await;
            }
            Standing::Postgres { store, stop_peers, _lock } => {
                stop_peers.cancel();
                store.close();
            }
        }
        self.tasks.join().await;
    }
}

async fn answer_peers(listener: Listener, secret: ClusterSecret, scheduler: Scheduler, stop: CancellationToken) {
    let asked = scheduler.clone();
    let is_me: peers::IsMe = Arc::new(move |id| asked.is_member(id));
    let handler: peers::Handler = Arc::new(move |ask| {
        let scheduler = scheduler.clone();
        Box::pin(async move { scheduler.answer(ask).await })
    });
    listener.serve_until(secret, is_me, handler, async move { stop.cancelled().await }).await;
}

fn deliver(runtime: &Runtime, options: &Options) -> anyhow::Result<HttpDeliver> {
    HttpDeliver::new(runtime, options.callback.clone()).context("cannot start the side that calls back")
}

/// If it fails, the scheduler has stopped.
async fn bind(runtime: &Runtime, scheduler: &Scheduler, options: &Options) -> anyhow::Result<Server> {
    let server = server::Options { answers_users: options.member.has(Role::Api), ..options.server.clone() };
    match Server::bind(runtime.clone(), scheduler.clone(), server).await {
        Ok(server) => Ok(server),
        Err(error) => {
            scheduler.stop().await;
            Err(error.into())
        }
    }
}

/// Schedules hold other people's payloads: the folder is for its owner only.
pub(crate) fn make_private(data: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data)
}

/// What the operator should do about a store that does not open.
pub(crate) fn explain_open(error: store_embedded::OpenError, data: &Path) -> anyhow::Error {
    if let store_embedded::OpenError::Journal(journal::OpenError::Locked { lock }) = &error {
        let holder = holder_of(lock).map_or_else(String::new, |pid| format!(" (process {pid})"));
        let data = data.display();
        return anyhow::anyhow!(
            "{data} is in use by another Reveille{holder}: stop that one, or choose another folder with --data"
        );
    }
    let denied = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied);
    let error = anyhow::Error::new(error);
    match denied {
        true => error.context(format!(
            "no permission for {}: run as its owner, or choose another folder with --data",
            data.display()
        )),
        false => error,
    }
}

/// The process that holds a lock on this file, from the kernel's table (`proc_locks(5)`).
fn holder_of(lock: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(lock).ok()?.ino().to_string();
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let of_this_file = |line: &&str| {
        let place = line.split_ascii_whitespace().find(|field| field.matches(':').count() == 2);
        place.is_some_and(|place| place.rsplit(':').next() == Some(&inode))
    };
    let fields = table.lines().find(of_this_file)?.split_ascii_whitespace();
    fields.skip(4).find_map(|field| field.parse().ok())
}

//! One member of a cluster whose data are in PostgreSQL: opening what it stands on, and joining.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use membership::Profile;
use peers::{ClusterSecret, HttpPeers, Listener, ListenerOptions, PeersOptions};
use runtime::{Runtime, TaskSet};
use scheduler::{Deliver, Peering, Registry, Scheduler};
use store::{SealedStore, Store};
use store_postgres::PostgresStore;

use crate::data_folder::store_path;
use crate::engine::PostgresEngine;
use crate::identity;

/// What a member does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Answers users' requests.
    Api,
    /// Owns shards, and makes the callbacks that are due there.
    Pollers,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MemberArguments {
    /// What this member does; with `pollers` alone it answers only /healthz, /readyz and /metrics
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["api", "pollers"], env = "REVEILLE_ROLES")]
    roles: Vec<Role>,
    /// Where the other members reach this one
    #[arg(long, default_value = "127.0.0.1:0", env = "REVEILLE_PEER_LISTEN")]
    peer_listen: SocketAddr,
    /// What the others are told to connect to, HOST:PORT, if that is not the address listened on
    #[arg(long, env = "REVEILLE_PEER_ADVERTISE")]
    peer_advertise: Option<String>,
    /// What people call this member [default: the machine's name and the peer port]
    #[arg(long, env = "REVEILLE_NAME")]
    name: Option<String>,
    /// Seconds for which a member that is dead keeps its shards; too few lose shards to a stall of the database [1 to 60]
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=60), env = "REVEILLE_LEASE")]
    lease: u64,
    /// Days for which runs, and schedules that are over, are kept [1 to 100]
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=100), env = "REVEILLE_HISTORY_DAYS")]
    history_days: u64,
}

impl Default for MemberArguments {
    fn default() -> Self {
        MemberArguments {
            roles: vec![Role::Api, Role::Pollers],
            peer_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            peer_advertise: None,
            name: None,
            lease: 6,
            history_days: 30,
        }
    }
}

impl MemberArguments {
    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(self.lease)
    }

    pub(crate) fn history(&self) -> Duration {
        Duration::from_secs(self.history_days * 86_400)
    }

    /// # Errors
    /// If the others could not reach it at what they would be told.
    fn profile(&self, listening: SocketAddr) -> anyhow::Result<Profile> {
        ensure!(
            self.peer_advertise.is_some() || !listening.ip().is_unspecified(),
            "the other members cannot connect to {listening}: say with --peer-advertise HOST:PORT where they reach this one"
        );
        let address = self.peer_advertise.clone().unwrap_or_else(|| listening.to_string());
        let is_address = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        ensure!(is_address(&address), "--peer-advertise is HOST:PORT, and not {address}");
        if listening.ip().is_loopback() && self.peer_advertise.is_none() {
            tracing::info!("only members on this machine reach this one; for others, see --peer-listen");
        }
        let name = self.name.clone().unwrap_or_else(|| {
            let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{machine}:{}", listening.port())
        });
        let build = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Profile { name, address, owns: self.has(Role::Pollers), build })
    }
}

/// The store, open, for a process whose data folder is `data`.
///
/// # Errors
/// With the next step for the operator.
pub(crate) async fn open(
    runtime: &Runtime,
    tasks: &TaskSet,
    engine: &PostgresEngine,
    data: &Path,
) -> anyhow::Result<Arc<PostgresStore>> {
    ensure!(
        !store_path(data).exists(),
        "{} holds the schedules of a single process: if that is not done, copy them with `reveille export --data {0} --store \
         …`; and give this member another folder with --data",
        data.display()
    );
    let options = store_postgres::Options { cluster: identity::known_cluster(data)?, ..engine.store_options() };
    let opened = PostgresStore::open(runtime, tasks, engine.store.as_str(), options).await;
    let store = match opened {
        Err(error @ store_postgres::OpenError::OtherCluster { .. }) => {
            return Err(anyhow::Error::new(error).context(format!(
                "{} belongs to another cluster; if this member is to change clusters, give it another folder with --data",
                data.display()
            )));
        }
        opened => opened.context("cannot open the store")?,
    };
    identity::know_cluster(data, &store.cluster().id)?;
    let tenants = store.tenants().await.context("cannot read the tenants")?;
    ensure!(!tenants.is_empty(), "the store has no tenant yet; make the first with `reveille store migrate --store …`");
    Ok(Arc::new(store))
}

/// A member that has joined, and the side of it that its peers see.
pub(crate) struct Member {
    pub(crate) scheduler: Scheduler,
    pub(crate) listener: Listener,
}

/// The database as its engine knows it, and under its key.
pub(crate) struct Stores<'a> {
    pub(crate) postgres: &'a PostgresStore,
    pub(crate) sealed: Arc<SealedStore>,
}

/// # Errors
/// With the next step for the operator.
pub(crate) async fn join(
    runtime: &Runtime,
    engine: &PostgresEngine,
    arguments: &MemberArguments,
    stores: Stores<'_>,
    deliver: Arc<dyn Deliver>,
    options: scheduler::Options,
    mut registry: Registry,
) -> anyhow::Result<Member> {
    let Stores { postgres: store, sealed } = stores;
    let secret = secret(store)?;
    let listener = Listener::bind(runtime, arguments.peer_listen, ListenerOptions::default()).await?;
    let profile = arguments.profile(listener.local_addr())?;
    let meeting = engine.meeting(runtime, arguments.lease(), store).await?;
    tracing::info!(member = profile.name, peers = profile.address, cluster = store.cluster().id, "joining");
    let peers = HttpPeers::new(runtime, secret, &profile.name, PeersOptions::default());
    store.register(&mut registry);
    listener.register(&mut registry);
    let peering = Peering {
        ownership: meeting.ownership,
        peers: Arc::new(peers),
        profile,
        registry,
        options: membership::Options::with_lease(arguments.lease()),
    };
    let options = scheduler::Options { history: arguments.history(), ..options };
    let joined = Scheduler::join(runtime, sealed, deliver, options, peering).await;
    Ok(Member { scheduler: joined.context("cannot join the cluster")?, listener })
}

/// # Errors
/// If what the database holds is no secret.
pub(crate) fn secret(store: &PostgresStore) -> anyhow::Result<ClusterSecret> {
    let bytes = store.cluster().peer_secret.0.as_slice();
    let bytes = bytes.try_into().context("the cluster's secret in reveille.meta does not have 32 bytes")?;
    Ok(ClusterSecret::new(bytes))
}

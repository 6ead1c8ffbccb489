//! Member of a cluster whose data is in PostgreSQL. This module opens the member's store and joins the cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use membership::Profile;
use peers::{HttpPeers, Identity, Listener, ListenerOptions, PeersOptions};
use runtime::{Runtime, TaskSet};
use scheduler::{Deliver, Peering, Registry, Scheduler};
use store::{EncryptedStore, Store};
use store_postgres::PostgresStore;

use crate::data_folder::store_path;
use crate::engine::PostgresEngine;
use crate::{identity, stop};

/// Task of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Respond to requests of users
    Api,
    /// Own shards and send their due callbacks
    Pollers,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MemberArguments {
    /// Tasks of this member; with `pollers` alone, the member responds only to /healthz, /readyz and /metrics
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["api", "pollers"], env = "REVEILLE_ROLES")]
    roles: Vec<Role>,
    /// Listen address for connections from other members
    #[arg(long, default_value = "127.0.0.1:0", env = "REVEILLE_PEER_LISTEN")]
    peer_listen: SocketAddr,
    /// Address HOST:PORT at which other members reach this member, if it differs from the listen address
    #[arg(long, env = "REVEILLE_PEER_ADVERTISE")]
    peer_advertise: Option<String>,
    /// Name of this member in logs and tables [default: the machine's name and the peer port]
    #[arg(long, env = "REVEILLE_NAME")]
    name: Option<String>,
    /// Seconds until the shards of a dead member pass to another member; with a short lease, a live member loses its
    /// shards when the database stalls [1 to 60]
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=60), env = "REVEILLE_LEASE")]
    lease: u64,
    /// Days for which the store retains runs, and ended or cancelled schedules, of tenants without `retention_days` [1
    /// to 100]
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

    /// Returns the profile that this member publishes for the other members.
    ///
    /// # Errors
    /// Returns an error if other members cannot reach this member at the address in the profile.
    fn profile(&self, listening: SocketAddr) -> anyhow::Result<Profile> {
        ensure!(
            self.peer_advertise.is_some() || !listening.ip().is_unspecified(),
            "other members cannot connect to {listening}: set --peer-advertise HOST:PORT to an address that they can \
             reach"
        );
        let address = self.peer_advertise.clone().unwrap_or_else(|| listening.to_string());
        let is_address = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        ensure!(is_address(&address), "invalid --peer-advertise {address}: give HOST:PORT");
        if listening.ip().is_loopback() && self.peer_advertise.is_none() {
            tracing::info!(
                "only members on this machine can reach the peer port; set --peer-listen to allow other machines"
            );
        }
        let name = self.name.clone().unwrap_or_else(|| {
            let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{machine}:{}", listening.port())
        });
        let build = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Profile { name, address, owns: self.has(Role::Pollers), build })
    }
}

/// Opens the store for a process with the data folder `data`. Waits while the database is unreachable.
///
/// # Errors
/// Returns an error if the store cannot be opened or has no tenant, or if the data folder belongs to another store.
pub(crate) async fn open(
    runtime: &Runtime,
    tasks: &TaskSet,
    engine: &PostgresEngine,
    data: &Path,
) -> anyhow::Result<Arc<PostgresStore>> {
    ensure!(
        !store_path(data).exists(),
        "{} contains the schedules of a server that ran without a cluster: copy them once to the cluster's database \
         with `reveille export --data {0} --store …`, and give this member another folder with --data",
        data.display()
    );
    let options = store_postgres::Options { cluster: identity::known_cluster(data)?, ..engine.store_options() };
    let open = async || PostgresStore::open(runtime, tasks, engine.store.as_str(), options.clone()).await;
    let opened = stop::open_when_reachable(runtime, open, store_postgres::OpenError::is_retryable).await?;
    let store = match opened {
        Err(error @ store_postgres::OpenError::OtherCluster { .. }) => {
            return Err(anyhow::Error::new(error).context(format!(
                "{} belongs to another cluster: name the database of that cluster with --store, or give another folder \
                 with --data",
                data.display()
            )));
        }
        opened => opened.context("cannot open the store")?,
    };
    identity::record_cluster(data, &store.cluster().id)?;
    if !store.has_run_index().await.context("cannot read the state of the index of runs")? {
        tracing::warn!(
            "the index of runs is incomplete, so listings of all runs are unavailable; run `reveille store migrate` to \
             complete it"
        );
    }
    let tenants = store.tenants().await.context("cannot read the tenants")?;
    ensure!(
        !tenants.is_empty(),
        "the store has no tenant: create the first tenant with `reveille store migrate --store …`"
    );
    Ok(Arc::new(store))
}

/// Member that has joined the cluster, and the listener for its peers.
pub(crate) struct Member {
    pub(crate) scheduler: Scheduler,
    pub(crate) listener: Listener,
}

/// Opens the store in the database for a command, runs `work` with the store, and closes it.
///
/// # Errors
/// Returns an error if the store cannot be opened, or if `work` fails.
pub(crate) async fn with_store<T>(
    runtime: &Runtime,
    engine: &PostgresEngine,
    work: impl AsyncFnOnce(&Arc<PostgresStore>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let tasks = TaskSet::new(runtime);
    let opened = PostgresStore::open(runtime, &tasks, engine.store.as_str(), engine.store_options()).await;
    let store = Arc::new(opened.context("cannot open the store")?);
    let done = work(&store).await;
    store.close();
    tasks.join().await;
    done
}

/// Parts of a member that exist before it joins the cluster.
pub(crate) struct Parts<'a> {
    pub(crate) store: &'a PostgresStore,
    /// The same store, which encrypts secrets.
    pub(crate) encrypted: Arc<EncryptedStore>,
    pub(crate) identity: Identity,
    pub(crate) deliver: Arc<dyn Deliver>,
}

/// Joins the cluster as a member.
///
/// # Errors
/// Returns an error if the member cannot listen for other members, or if it cannot join the cluster.
pub(crate) async fn join(
    runtime: &Runtime,
    engine: &PostgresEngine,
    arguments: &MemberArguments,
    parts: Parts<'_>,
    options: scheduler::Options,
    mut registry: Registry,
) -> anyhow::Result<Member> {
    let Parts { store, encrypted, identity, deliver } = parts;
    let listener = Listener::bind(runtime, arguments.peer_listen, ListenerOptions::default()).await?;
    let profile = arguments.profile(listener.local_addr())?;
    let coordination = engine.coordination(runtime, arguments.lease(), store).await?;
    tracing::info!(member = profile.name, peers = profile.address, cluster = store.cluster().id, "joining the cluster");
    let peers = HttpPeers::new(runtime, identity, &profile.name, PeersOptions::default());
    store.register(&mut registry);
    listener.register(&mut registry);
    let peering = Peering {
        ownership: coordination.ownership,
        peers: Arc::new(peers),
        profile,
        registry,
        options: membership::Options {
            engine: coordination.address,
            ..membership::Options::with_lease(arguments.lease())
        },
    };
    let options = scheduler::Options { history: arguments.history(), ..options };
    let joined = Scheduler::join(runtime, encrypted, deliver, options, peering).await;
    Ok(Member { scheduler: joined.context("cannot join the cluster")?, listener })
}

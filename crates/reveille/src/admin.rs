//! Commands `reveille store` and `reveille cluster`, which manage a cluster and its database.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use cli_support::console;
use domain::egress::Class;
use domain::id::SHARDS;
use domain::{Egress, PollerId, ShardId, Term, Timestamp};
use membership::{MemberId, View};
use runtime::Runtime;
use serde::Serialize;
use store::{DueBound, DueRead, Store};
use store_postgres::PostgresStore;

use crate::authority::{self, RotateArguments};
use crate::cluster::with_store;
use crate::engine::{EngineArguments, PostgresEngine};
use crate::store_key::StoreKeyArguments;
use crate::{data_folder, header_binding, identity, store_key};

#[derive(Subcommand, Debug)]
pub(crate) enum StoreCommand {
    /// Create the schema in a database, or migrate an older schema and its encrypted headers to the version of this
    /// build
    Migrate(MigrateArguments),
    /// Start an epoch, so that members accept a database that was restored with pg_restore or copied
    NewEpoch(NewEpochArguments),
}

#[derive(Args, Debug)]
pub(crate) struct NewEpochArguments {
    #[command(flatten)]
    engine: EngineArguments,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Folder for the keys of the first operator and the first tenant, if this command creates them
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    /// Addresses that the first tenant may call in addition to public addresses: loopback, private, link_local, shared
    #[arg(long, value_delimiter = ',', env = "REVEILLE_ALLOW_EGRESS")]
    allow_egress: Vec<Class>,
    #[command(flatten)]
    store_key: StoreKeyArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ClusterCommand {
    /// Show the members, their shards, and the lag of their callbacks
    Status(StatusArguments),
    /// Replace the certificate authority with which the members authenticate each other, while they run
    Rotate(RotateArguments),
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Also print a line for each shard
    #[arg(long)]
    shards: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Maximum number of pollers in one read of due rows.
const READS_PER_CALL: usize = 256;

pub(crate) async fn store(runtime: &Runtime, command: &StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Migrate(arguments) => migrate(runtime, arguments).await,
        StoreCommand::NewEpoch(arguments) => new_epoch(runtime, arguments).await,
    }
}

pub(crate) async fn cluster(runtime: &Runtime, command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Status(arguments) => status(runtime, arguments).await,
        ClusterCommand::Rotate(arguments) => authority::rotate(runtime, arguments).await,
    }
}

async fn migrate(runtime: &Runtime, arguments: &MigrateArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    migrate_schema(runtime, &engine).await?;
    with_store(runtime, &engine, async |store| {
        let data = &arguments.data;
        data_folder::make_private(runtime, data).await?;
        let pollers = scheduler::Options::default().pollers;
        let egress = Egress { allow: arguments.allow_egress.iter().copied().collect(), ..Egress::default() };
        let path = arguments.store_key.path(data);
        let is_new = !path.exists();
        let unlocked = store_key::unlock(runtime, store.clone(), &path, true).await?;
        if is_new {
            let path = path.display();
            console::line(&format!(
                "created the file {path} with the key that encrypts the store's secrets; copy the file to every member"
            ))?;
        }
        let created = identity::create_first(runtime, &unlocked, data, pollers, &egress).await?;
        if created.operator {
            let key = identity::operator_key_path(data);
            console::line(&format!(
                "created the file {} with an operator's key, which can create tenants",
                key.display()
            ))?;
        }
        if created.tenant {
            let key = identity::admin_key_path(data);
            console::line(&format!("created the tenant `default`; its admin key is in the file {}", key.display()))?;
        }
        authority::ensure(runtime, store, &unlocked.keyring).await?;
        if !created.operator && !header_binding::is_complete(&*unlocked.store, &unlocked.keyring).await? {
            ensure_no_members(runtime, &engine, store).await?;
        }
        let bound = header_binding::migrate(runtime, &unlocked).await?;
        if bound.schedules > 0 {
            console::line(&format!("bound the headers of {} schedules to their targets", bound.schedules))?;
        }
        if bound.failed > 0 {
            console::line(&format!(
                "{} schedules have headers that no key can decrypt; send these headers again",
                bound.failed
            ))?;
        }
        Ok(())
    })
    .await?;
    index_runs(runtime, &engine).await
}

/// Completes the index of the runs that earlier builds wrote, and prints a line for each partition without its index.
/// Members can run at the same time.
///
/// # Errors
/// Returns an error if the database cannot be reached, or if it rejects an index.
pub(crate) async fn index_runs(runtime: &Runtime, engine: &PostgresEngine) -> anyhow::Result<()> {
    let mut printed = Ok(());
    let mut has_begun = false;
    let progress = |partition: &str, left: usize| {
        if printed.is_ok() && !has_begun {
            has_begun = true;
            printed = console::line(
                "the schema is migrated, and members can start. Until the runs of earlier builds are indexed, only the \
                 listing of all runs is unavailable",
            );
        }
        if printed.is_ok() {
            printed = console::line(&format!("indexing the runs in {partition}; partitions left: {left}"));
        }
    };
    let indexed = store_postgres::index_runs(runtime, engine.store.as_str(), &engine.store_options(), progress).await;
    indexed.context(
        "the schema is migrated, and members can start, but the index of runs is incomplete; run this command again to \
         complete it",
    )?;
    printed?;
    if has_begun {
        console::line("the index of runs is complete")?;
    }
    Ok(())
}

async fn new_epoch(runtime: &Runtime, arguments: &NewEpochArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    let epoch = start_epoch(runtime, &engine, 0).await?;
    let text = format!("started epoch {epoch}: members accept this database, and take all shards under higher terms");
    console::line(&text).context("cannot print the result")
}

/// Starts an epoch of the database above `earlier`, and returns its number.
///
/// # Errors
/// Returns an error if the database cannot be reached, or if its schema does not have the version of this build.
pub(crate) async fn start_epoch(runtime: &Runtime, engine: &PostgresEngine, earlier: u64) -> anyhow::Result<u64> {
    let started = store_postgres::start_epoch(runtime, engine.store.as_str(), &engine.store_options(), earlier).await;
    started.context("cannot start an epoch in the database")
}

/// # Errors
/// Returns an error if the cluster has members, or if the coordination engine cannot be read.
pub(crate) async fn ensure_no_members(
    runtime: &Runtime,
    engine: &PostgresEngine,
    store: &PostgresStore,
) -> anyhow::Result<()> {
    let view = engine.view(runtime, store).await?;
    let names: Vec<&str> = view.members.iter().map(|member| member.name.as_str()).collect();
    ensure!(
        names.is_empty(),
        "the database has running members; stop the members {}, and run this command again",
        names.join(", ")
    );
    Ok(())
}

/// Creates the schemas of the store and of the coordination engine, or migrates older schemas to the version of this
/// build.
///
/// # Errors
/// Returns an error if a database cannot be reached, or if a migration fails.
pub(crate) async fn migrate_schema(runtime: &Runtime, engine: &PostgresEngine) -> anyhow::Result<()> {
    let options = engine.store_options();
    let migrated = store_postgres::migrate(runtime, engine.store.as_str(), &options).await;
    let migrated = migrated.context("cannot migrate the schema of the store")?;
    let coordinated =
        coordination_connect::migrate(runtime, engine.coordination.as_str(), engine.coordination_password()).await;
    coordinated.context("the store's schema is migrated, but the coordination engine's schema cannot be migrated")?;
    console::line(&match migrated.from {
        None => format!("created the schema of the store: version {}, cluster id {}", migrated.to, migrated.cluster),
        Some(from) if from < migrated.to => {
            format!("migrated the schema of the store from version {from} to {}", migrated.to)
        }
        Some(_) => {
            format!("the schema of the store is up to date: version {}, cluster id {}", migrated.to, migrated.cluster)
        }
    })?;
    if !migrated.has_client_role {
        console::line(
            "the role reveille_client does not exist, and this user has no permission to create it. If you want to \
             create schedules inside your own transactions, run `create role reveille_client` as a user that may \
             create roles, and then run this migration again",
        )?;
    }
    Ok(())
}

/// JSON output of `reveille cluster status`, for scripts. Durations are in milliseconds.
#[derive(Serialize, Debug)]
struct Status {
    cluster: String,
    members: Vec<MemberStatus>,
    shards: Vec<ShardStatus>,
    /// Longest lag of all shards, in milliseconds.
    lag_ms: u64,
}

#[derive(Serialize, Debug)]
struct MemberStatus {
    id: String,
    name: String,
    address: String,
    build: String,
    owns: bool,
    /// `true` for the leader. The leader does the work that concerns the whole cluster, and logs this work.
    leads: bool,
    shards: usize,
    lag_ms: u64,
}

#[derive(Serialize, Debug)]
struct ShardStatus {
    shard: u16,
    /// Name of the member that owns the shard. If the shard has no owner, the value is `null`, and the due rows of the
    /// shard wait until a member owns the shard.
    owner: Option<String>,
    term: u64,
    /// Time in milliseconds since the due instant of the shard's first due row without an outcome.
    lag_ms: u64,
}

async fn status(runtime: &Runtime, arguments: &StatusArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    let status = with_store(runtime, &engine, async |store| {
        let view = engine.view(runtime, store).await?;
        let terms = store.terms().await.context("cannot read the terms of the shards")?;
        let lags = lags(store, runtime.now()).await.context("cannot read the due rows")?;
        Ok(Status::new(store.cluster().id.clone(), &view, &terms, &lags))
    })
    .await?;
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&status).context("cannot encode the status as JSON")?,
        false => status.table(arguments.shards),
    };
    console::line(text.trim_end()).context("cannot print the result")?;
    let unowned = status.shards.iter().filter(|shard| shard.owner.is_none()).count();
    ensure!(
        unowned == 0,
        "{unowned} of {SHARDS} shards have no owner, so their callbacks wait: start a member, or wait until the leases of \
         stopped members have ended"
    );
    Ok(())
}

/// Returns the lag of each shard that has a due row without an outcome.
async fn lags(store: &PostgresStore, now: Timestamp) -> anyhow::Result<BTreeMap<ShardId, Duration>> {
    let mut pollers = Vec::new();
    for tenant in store.tenants().await? {
        for (generation, count) in (0..).zip(&tenant.generations) {
            pollers.extend((0..*count).map(|number| PollerId { tenant: tenant.id, generation, number }));
        }
    }
    let mut lags: BTreeMap<ShardId, Duration> = BTreeMap::new();
    for some in pollers.chunks(READS_PER_CALL) {
        let positions = store.positions(some.to_vec()).await?;
        let read = |(poller, done)| DueRead { poller, after: DueBound::Instant(done), until: now, limit: 1 };
        let dones = positions.into_iter().map(|positions| positions.done);
        let pages = store.due(some.iter().copied().zip(dones).map(read).collect()).await?;
        for (poller, page) in some.iter().zip(pages) {
            if let Some(first) = page.keys.first() {
                let lag = lags.entry(poller.shard()).or_default();
                *lag = now.since(first.position).max(*lag);
            }
        }
    }
    Ok(lags)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Status {
    fn new(cluster: String, view: &View, terms: &BTreeMap<ShardId, Term>, lags: &BTreeMap<ShardId, Duration>) -> Self {
        let owners = view.shards();
        let lag = |shard: &ShardId| lags.get(shard).map_or(0, |lag| millis(*lag));
        let name = |id: &MemberId| view.member(*id).map(|member| member.name.clone());
        let leader = view.leader();
        let members = view.members.iter().map(|member| {
            let theirs: Vec<ShardId> =
                owners.iter().filter(|(_, owner)| **owner == member.id).map(|(shard, _)| *shard).collect();
            MemberStatus {
                id: member.id.to_string(),
                name: member.name.clone(),
                address: member.address.clone(),
                build: member.build.clone(),
                owns: member.owns,
                leads: leader == Some(member.id),
                shards: theirs.len(),
                lag_ms: theirs.iter().map(lag).max().unwrap_or(0),
            }
        });
        let shards = (0..SHARDS).map(ShardId).map(|shard| ShardStatus {
            shard: shard.0,
            owner: owners.get(&shard).and_then(name),
            term: terms.get(&shard).map_or(0, |term| term.0),
            lag_ms: lag(&shard),
        });
        let lag_ms = lags.values().copied().map(millis).max().unwrap_or(0);
        let mut members: Vec<MemberStatus> = members.collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        Status { cluster, members, shards: shards.collect(), lag_ms }
    }

    fn table(&self, with_shards: bool) -> String {
        let mut text = format!("cluster {}\n\n", self.cluster);
        let mut line = |columns: [&str; 7]| {
            let [name, address, build, owns, leads, shards, lag] = columns;
            let line = format!("{name:<28} {address:<22} {build:<10} {owns:<5} {leads:<5} {shards:>6} {lag:>10}");
            writeln!(text, "{}", line.trim_end()).expect("writing to a string never fails");
        };
        line(["member", "peer address", "build", "owns", "leads", "shards", "lag"]);
        let word = |is_true| if is_true { "yes" } else { "no" };
        for member in &self.members {
            let (owns, leads) = (word(member.owns), word(member.leads));
            let (shards, lag) = (member.shards.to_string(), format!("{} ms", member.lag_ms));
            line([&member.name, &member.address, &member.build, owns, leads, &shards, &lag]);
        }
        let unowned = self.shards.iter().filter(|shard| shard.owner.is_none()).count();
        if unowned > 0 {
            writeln!(text, "\n{unowned} shards have no owner; their due callbacks wait until a member owns the shards")
                .expect("writing to a string never fails");
        }
        if with_shards {
            writeln!(text, "\n{:>5} {:<28} {:>8} {:>10}", "shard", "owner", "term", "lag")
                .expect("writing to a string never fails");
            for ShardStatus { shard, owner, term, lag_ms } in &self.shards {
                let owner = owner.as_deref().unwrap_or("-");
                writeln!(text, "{shard:>5} {owner:<28} {term:>8} {:>10}", format!("{lag_ms} ms"))
                    .expect("writing to a string never fails");
            }
        }
        text
    }
}

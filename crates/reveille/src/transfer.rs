//! Commands `reveille export`, which copies the embedded store to a database, and `reveille import`, which copies a
//! database to the embedded store.
//!
//! A copy contains the tenants with their keys and secrets, and every schedule that has a due row or a dead letter. It
//! also contains the due rows and the runs of these schedules. A copied schedule has the same id, incarnation and
//! revision, so that run ids do not change. The copy contains the position `closed` of each poller, from which a new
//! owner knows which attempts may have started before the source stopped. The copy does not contain schedules that have ended without a dead letter.
//! It also does not contain the audit logs of the tenants, which start empty in the target. The terms of the target are
//! higher than all terms of the source.
//!
//! No server may run on the source or the target during a copy. A copy does not change the source, except that an
//! exported folder records the cluster to which it was exported. The target must be empty. After a failed copy, the
//! operator must copy again to another empty target.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use cli_support::console;
use domain::id::SHARDS;
use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, RunOrigin, RunState, Schedule, ShardId, Status, Tenant, TenantId,
    Term, Timestamp, decide,
};
use runtime::{Runtime, TaskSet};
use store::encryption::{has_plain_header, has_plain_secret};
use store::{Change, DueBound, DueRead, Inbox, Insert, Keyring, OwnerWrite, Positions, Store};
use store_embedded::EmbeddedStore;
use store_postgres::PostgresStore;

use crate::admin;
use crate::cluster::with_store;
use crate::data_folder::{explain_open, make_private, store_path};
use crate::engine::{EngineArguments, PostgresEngine};
use crate::progress::Progress;
use crate::store_key::{self, StoreKeyArguments};
use crate::{header_binding, identity};

#[derive(Args, Debug)]
pub(crate) struct TransferArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Data folder of the embedded store
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    store_key: StoreKeyArguments,
}

/// Maximum number of rows or records in one read or write.
const PAGE: usize = 1_000;

/// Numbers of copied objects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    tenants: usize,
    schedules: usize,
    due: usize,
    runs: usize,
}

/// Copies the data folder to the database.
pub(crate) async fn export(runtime: &Runtime, arguments: &TransferArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    let data = &arguments.data;
    ensure!(
        store_path(data).exists(),
        "{} contains no Reveille data: name the data folder with --data",
        data.display()
    );
    admin::migrate_schema(runtime, &engine).await?;
    admin::index_runs(runtime, &engine).await?;
    let key = arguments.store_key.path(data);
    let copied = on_both(runtime, &engine, arguments, async |embedded, postgres| {
        let copied = copy(runtime, embedded, postgres, "the database", &key).await?;
        admin::start_epoch(runtime, &engine, embedded.epoch()).await?;
        // The recorded id of the cluster prevents a later start of `serve` on this folder. A server on this folder
        // would send the same callbacks a second time.
        identity::record_cluster(data, &postgres.cluster().id)?;
        Ok(copied)
    })
    .await?;
    report(
        copied,
        "start members with `reveille serve --store … --store-key FILE`, where FILE is a copy of the folder's \
         store.key; the cluster accepts only the API keys of the folder",
    )
}

/// Copies the database to the data folder.
pub(crate) async fn import(runtime: &Runtime, arguments: &TransferArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    let key = arguments.store_key.path(&arguments.data);
    let mut epoch = 0;
    let copied = on_both(runtime, &engine, arguments, async |embedded, postgres| {
        epoch = postgres.epoch();
        let waiting = postgres.publish_usage().await.context("cannot read the inbox of the database")?.waiting;
        ensure!(
            waiting == 0,
            "the inbox of the database has {waiting} requests that no member has carried out: start a member, wait \
             until the table reveille.inbox is empty, stop the member, and repeat the import"
        );
        copy(runtime, postgres, embedded, "the data folder", &key).await
    })
    .await?;
    let tasks = TaskSet::new(runtime);
    let started = store_embedded::start_epoch(runtime, &tasks, &store_path(&arguments.data), epoch).await;
    tasks.join().await;
    started.context("cannot start an epoch in the data folder")?;
    report(
        copied,
        "copy the cluster's store.key to the data folder, then start the server with `reveille serve --data …`; the \
         API keys of the cluster remain valid",
    )
}

fn report(copied: Copied, next: &str) -> anyhow::Result<()> {
    let Copied { tenants, schedules, due, runs } = copied;
    let text = format!("copied {tenants} tenants, {schedules} schedules, {due} due rows and {runs} runs; {next}");
    console::line(&text).context("cannot print the result")
}

/// Opens the embedded store and the database, and runs `work` with both stores.
///
/// # Errors
/// Returns an error if another process uses one of the stores, if a store cannot be opened, or if `work` fails.
async fn on_both(
    runtime: &Runtime,
    engine: &PostgresEngine,
    arguments: &TransferArguments,
    work: impl AsyncFnOnce(&EmbeddedStore, &PostgresStore) -> anyhow::Result<Copied>,
) -> anyhow::Result<Copied> {
    let data = &arguments.data;
    make_private(runtime, data).await?;
    let tasks = TaskSet::new(runtime);
    let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), store_embedded::Options::default()).await;
    let embedded = opened.map_err(|error| explain_open(error, data))?;
    let copied = with_store(runtime, engine, async |postgres| {
        admin::ensure_no_members(runtime, engine, postgres).await?;
        work(&embedded, postgres).await
    });
    let copied = copied.await;
    embedded.close().await;
    tasks.join().await;
    copied
}

fn pollers_of(tenants: &[Tenant]) -> Vec<PollerId> {
    let of = |tenant: &Tenant| {
        let id = tenant.id;
        let generations = (0..).zip(tenant.generations.clone());
        generations.flat_map(move |(generation, count)| {
            (0..count).map(move |number| PollerId { tenant: id, generation, number })
        })
    };
    tenants.iter().flat_map(of).collect()
}

/// Copies one store to another store. `key` is the path of the source's key file. If the file does not exist, the
/// source must not contain secrets in plain text.
pub(crate) async fn copy(
    runtime: &Runtime,
    from: &dyn Store,
    to: &dyn Store,
    target: &str,
    key: &Path,
) -> anyhow::Result<Copied> {
    let tenants = from.tenants().await.context("cannot read the source's tenants")?;
    ensure!(!tenants.is_empty(), "nothing to copy: the source has no tenant");
    let keyring = store_key::of_source(&tenants, key)?;
    let binds = match &keyring {
        Some(keyring) => header_binding::copy_binds(from, &tenants, keyring).await?,
        None => false,
    };
    let encryption = Encryption { runtime, keyring, binds, path: key };
    ensure_empty(to, target).await?;
    let terms = to.take((0..SHARDS).map(ShardId).collect()).await;
    let terms = terms.context("cannot take ownership of the destination's shards")?;
    let replaced = to.tenants().await.context("cannot read the destination's tenants")?;
    let is_of_source = |tenant: &&Tenant| tenants.iter().any(|known| known.id == tenant.id);
    if let Some(other) = replaced.iter().find(|tenant| !is_of_source(tenant)) {
        bail!("{target} has the tenant {}, which the source does not have: copy to an empty store", other.name);
    }
    for tenant in &tenants {
        let mut tenant = tenant.clone();
        encryption.tenant(&mut tenant)?;
        if let Some(replaced) = replaced.iter().find(|replaced| replaced.id == tenant.id) {
            tenant.version = replaced.version + 1;
        }
        let entry = Audit::of(&tenant, runtime.now(), "reveille", "tenant.import", "");
        let put = to.put_tenant(tenant, entry).await.context("cannot write a tenant")?;
        put.map_err(|_| {
            anyhow::anyhow!(
                "another process is creating tenants in {target}: copy to a store that no other process is using"
            )
        })?;
    }
    let mut dead = BTreeSet::new();
    for tenant in &tenants {
        dead_letters_of(from, tenant.id, &mut dead).await?;
    }
    let (known, copied, progress) = (BTreeSet::new(), Copied::default(), Progress::new(runtime));
    let mut copier = Copier { from, to, encryption, terms, dead, known, copied, progress };
    copier.copied.tenants = tenants.iter().filter(|tenant| tenant.id != Tenant::OPERATOR).count();
    for poller in pollers_of(&tenants) {
        copier.copy_due_rows(poller).await?;
    }
    copier.copy_dead_letters().await?;
    // The target moves new rows to a position after `closed`, so this step follows all rows.
    copier.copy_closed(pollers_of(&tenants)).await?;
    Ok(copier.copied)
}

async fn ensure_empty(to: &dyn Store, target: &str) -> anyhow::Result<()> {
    let pollers = pollers_of(&to.tenants().await.context("cannot read the destination's tenants")?);
    let read = |poller| DueRead { poller, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 1 };
    let pages = to.due(pollers.into_iter().map(read).collect()).await;
    let pages = pages.context("cannot read the destination's due rows")?;
    let is_empty = pages.iter().all(|page| page.keys.is_empty());
    ensure!(is_empty, "{target} has schedules: copy to an empty store");
    Ok(())
}

async fn dead_letters_of(from: &dyn Store, tenant: TenantId, dead: &mut BTreeSet<Occurrence>) -> anyhow::Result<()> {
    let mut after: Option<Occurrence> = None;
    loop {
        let page = from.dead_letters(tenant, after, PAGE).await.context("cannot read the source's dead letters")?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.occurrence);
        dead.extend(page.iter().map(|run| run.occurrence));
    }
}

/// Encryption of secrets that an earlier build without encryption stored in plain text, and of headers that an earlier
/// build did not bind to their targets.
struct Encryption<'a> {
    runtime: &'a Runtime,
    keyring: Option<Keyring>,
    /// True if the source has not bound its headers, so that the copy binds them. Without a keyring, the copy contains
    /// the headers as they are, and the target binds them later.
    binds: bool,
    path: &'a Path,
}

impl Encryption<'_> {
    fn tenant(&self, tenant: &mut Tenant) -> anyhow::Result<()> {
        if self.binds && tenant.id == Tenant::OPERATOR {
            tenant.header_binding = Some(header_binding::complete_record(self.runtime, self.keyring()?));
        }
        if has_plain_secret(tenant) {
            self.keyring()?.encrypt_tenant(self.runtime, tenant);
        }
        Ok(())
    }

    fn schedule(&self, schedule: &mut Arc<Schedule>) -> anyhow::Result<()> {
        if self.binds {
            if let Err(error) = self.keyring()?.bind_schedule(self.runtime, schedule) {
                let (tenant, schedule) = (schedule.tenant.0, schedule.id.as_str());
                tracing::warn!(tenant, schedule, %error, "header not bound to its target; send the headers again");
            }
            return Ok(());
        }
        if has_plain_header(schedule) {
            self.keyring()?.encrypt_schedule(self.runtime, schedule);
        }
        Ok(())
    }

    fn keyring(&self) -> anyhow::Result<&Keyring> {
        self.keyring.as_ref().with_context(|| {
            format!(
                "the source has secrets in plain text, but the key file {} that must encrypt them does not exist: start the \
                 source once with this build, which creates the file, or name the file with --store-key",
                self.path.display()
            )
        })
    }
}

struct Copier<'a> {
    from: &'a dyn Store,
    to: &'a dyn Store,
    encryption: Encryption<'a>,
    /// Terms with which this process owns the shards of the destination, in the order of the shards.
    terms: Vec<Term>,
    /// Dead letters that no user has redriven.
    dead: BTreeSet<Occurrence>,
    /// Schedules that the process has already copied.
    known: BTreeSet<Incarnation>,
    copied: Copied,
    progress: Progress,
}

impl Copier<'_> {
    /// Copies the due rows after the watermark of one poller, and the schedules of these rows.
    async fn copy_due_rows(&mut self, poller: PollerId) -> anyhow::Result<()> {
        let positions =
            self.from.positions(vec![poller]).await.context("cannot read a poller's watermark in the source")?;
        let mut after = DueBound::Instant(positions.first().map_or(Timestamp::MIN, |positions| positions.done));
        loop {
            let read = DueRead { poller, after, until: Timestamp::MAX, limit: PAGE };
            let page =
                self.from.due(vec![read]).await.context("cannot read the source's due rows")?.pop().unwrap_or_default();
            let Some(last) = page.keys.last() else { return Ok(()) };
            after = DueBound::Key(*last);
            let schedules = self.schedules(page.keys.iter().map(|key| key.occurrence.incarnation).collect()).await?;
            self.schedules_with_runs(&schedules).await?;
            let live: BTreeSet<Incarnation> = schedules.iter().map(|schedule| schedule.incarnation).collect();
            let rows: Vec<(PollerId, DueKey)> = page
                .keys
                .iter()
                .filter(|key| live.contains(&key.occurrence.incarnation))
                .map(|key| (poller, *key))
                .collect();
            self.copied.due += rows.len();
            self.to.place(rows).await.context("cannot write the due rows to the destination")?;
            let Copied { schedules, runs, .. } = self.copied;
            self.progress.update(|| format!("{schedules} schedules and {runs} runs copied"));
        }
    }

    /// Reads the schedules with these incarnations, except cancelled schedules.
    async fn schedules(&self, incarnations: BTreeSet<Incarnation>) -> anyhow::Result<Vec<Arc<Schedule>>> {
        let loaded = self.from.load(incarnations.into_iter().collect()).await.context("cannot read schedules")?;
        Ok(loaded.into_iter().flatten().filter(|schedule| schedule.status != Status::Cancelled).collect())
    }

    /// Copies the schedules that have a dead letter and no due row.
    async fn copy_dead_letters(&mut self) -> anyhow::Result<()> {
        let incarnations: BTreeSet<Incarnation> = self.dead.iter().map(|occurrence| occurrence.incarnation).collect();
        let left: Vec<Incarnation> = incarnations.difference(&self.known).copied().collect();
        for some in left.chunks(PAGE) {
            let schedules = self.schedules(some.iter().copied().collect()).await?;
            self.schedules_with_runs(&schedules).await?;
        }
        Ok(())
    }

    async fn schedules_with_runs(&mut self, schedules: &[Arc<Schedule>]) -> anyhow::Result<()> {
        let new: Vec<&Arc<Schedule>> =
            schedules.iter().filter(|schedule| self.known.insert(schedule.incarnation)).collect();
        let mut inserts: Vec<Insert> = new.iter().map(|schedule| as_new(schedule)).collect();
        for insert in &mut inserts {
            self.encryption.schedule(&mut insert.schedule)?;
        }
        self.copied.schedules += inserts.len();
        self.to.insert(inserts).await.context("cannot write schedules")?;
        for schedule in new {
            let runs = self.runs_of(schedule).await?;
            self.copied.runs += runs.len();
            let of_schedule = |change| self.write_of(schedule, change);
            let mut writes = Vec::with_capacity(runs.len());
            for run in runs {
                let (of, state) = (run.occurrence, run.state);
                let origin = state.is_final().then(|| RunOrigin::of(schedule));
                writes.push(of_schedule(Change::Run { run, then: None, ends: false, origin }));
                if state == RunState::Failed
                    && !self.dead.contains(&of)
                    && let Some(due) = decide::redrive(of, schedule.spec.target.key(), of.nominal)
                {
                    writes.push(of_schedule(Change::Redrive { of, due }));
                }
            }
            if schedule.status == Status::Ended {
                let Schedule { incarnation, revision, .. } = **schedule;
                writes.push(of_schedule(Change::End { incarnation, revision }));
            }
            let results = self.to.write(writes).await.context("cannot write runs")?;
            let rejected = results.into_iter().find_map(Result::err);
            ensure!(rejected.is_none(), "the destination rejected a run of the schedule {}: {rejected:?}", schedule.id);
        }
        Ok(())
    }

    /// Copies the position `closed` of each poller. The position `done` stays at the beginning, because the copy may
    /// contain due rows at or before the source's `done`.
    async fn copy_closed(&self, pollers: Vec<PollerId>) -> anyhow::Result<()> {
        for some in pollers.chunks(PAGE) {
            let positions = self.from.positions(some.to_vec()).await.context("cannot read positions in the source")?;
            let raised = |(poller, positions): (&PollerId, Positions)| OwnerWrite {
                term: self.terms[usize::from(poller.shard().0)],
                poller: *poller,
                change: Change::Positions(Positions { closed: positions.closed, done: Timestamp::MIN }),
            };
            let writes = some.iter().zip(positions).map(raised).collect();
            let results = self.to.write(writes).await.context("cannot write positions to the destination")?;
            let rejected = results.into_iter().find_map(Result::err);
            ensure!(rejected.is_none(), "the destination rejected the position of a poller: {rejected:?}");
        }
        Ok(())
    }

    async fn runs_of(&self, schedule: &Schedule) -> anyhow::Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        loop {
            let after = runs.last().map(|run| run.occurrence);
            let page = self.from.runs(schedule.incarnation, after, PAGE).await.context("cannot read runs")?;
            if page.is_empty() {
                return Ok(runs);
            }
            runs.extend(page);
        }
    }

    fn write_of(&self, schedule: &Schedule, change: Change) -> OwnerWrite {
        let poller = schedule.poller;
        OwnerWrite { term: self.terms[usize::from(poller.shard().0)], poller, change }
    }
}

/// Returns the insert of an active copy of the schedule. If the schedule has ended in the source, the due row of the
/// insert has no effect, because the caller ends the copy afterwards. Otherwise, the due row is equal to a due row of
/// the source.
fn as_new(schedule: &Arc<Schedule>) -> Insert {
    let mut schedule = schedule.clone();
    let nominal = schedule.next.unwrap_or(schedule.updated_at);
    let changed = Arc::make_mut(&mut schedule);
    changed.status = Status::Active;
    changed.next = Some(nominal);
    let occurrence = Occurrence { incarnation: changed.incarnation, nominal, revision: changed.revision, replay: 0 };
    let due = DueKey { position: nominal, occurrence, attempt: 1, target: changed.spec.target.key() };
    Insert { schedule, due, by: None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use domain::SigningSecret;
    use store::StoreKey;
    use store::memory::{MemoryOptions, MemoryStore};

    use super::*;

    #[test]
    fn copy_of_a_store_encrypts_secrets_and_keeps_closed_timestamps() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let (runtime, folder) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = || MemoryStore::new(runtime.clone(), MemoryOptions::default());
            let (from, to) = (store(), store());
            let tenant = Tenant::new(TenantId(1), "shop", 1, SigningSecret::first(vec![7; 32], Timestamp::MIN));
            let entry = Audit::of(&tenant, Timestamp::MIN, "test", "tenant.create", "");
            from.put_tenant(tenant, entry).await.unwrap().unwrap();

            let key = folder.path().join("store.key");
            let error = copy(&runtime, &from, &to, "the target", &key).await.unwrap_err().to_string();
            assert!(error.contains("--store-key"), "{error}");
            assert!(to.tenants().await.unwrap().is_empty(), "the failed copy writes no tenant");

            std::fs::write(&key, StoreKey::generate(&runtime).1).unwrap();
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
            let poller = PollerId { tenant: TenantId(1), generation: 0, number: 0 };
            let term = from.take(vec![poller.shard()]).await.unwrap()[0];
            let at = Timestamp::from_millis;
            let change = Change::Positions(Positions { closed: at(9_000), done: at(8_000) });
            from.write(vec![OwnerWrite { term, poller, change }]).await.unwrap()[0].as_ref().unwrap();
            copy(&runtime, &from, &to, "the target", &key).await.unwrap();
            let copied = Positions { closed: at(9_000), done: Timestamp::MIN };
            assert_eq!(to.positions(vec![poller]).await.unwrap(), [copied]);
            assert!(to.tenants().await.unwrap()[0].signing_secrets[0].secret.is_encrypted());

            let other = Tenant::new(TenantId(2), "other", 1, SigningSecret::first(vec![7; 32], Timestamp::MIN));
            let entry = Audit::of(&other, Timestamp::MIN, "test", "tenant.create", "");
            to.put_tenant(other, entry).await.unwrap().unwrap();
            let error = copy(&runtime, &from, &to, "the target", &key).await.unwrap_err().to_string();
            assert!(error.contains("has the tenant other"), "{error}");
        });
    }
}

//! The store: its connections, its tasks, and the port's calls, each told in a module of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term, Timestamp,
};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Link, Server};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::{Monotonic, Runtime, TaskSet};
use store::{
    Answer, Arrival, Cursor, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted, ListPage, ListRead,
    Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, StoreError, WriteRefusal, Written,
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::arrivals::{Cursors, Snapshot};
use crate::connections::{Exclusive, Shared, Starter, query};
use crate::error::{OpenError, store_error};
use crate::history::Sweep;
use crate::marks::Told;
use crate::options::Options;
use crate::partition::Partitions;
use crate::{cancel, create, gather, schema, write};

/// After the server refused a write for want of space, how long users' writes are not taken: then one tries again.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The port on PostgreSQL; see the crate's documentation.
pub struct PostgresStore {
    inner: Arc<Inner>,
    stop: CancellationToken,
}

pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) options: Options,
    server: Arc<Server>,
    cluster: schema::Cluster,
    pub(crate) creations: gather::Queue<create::Work, create::Made>,
    pub(crate) changes: gather::Queue<write::Writes, write::Answered>,
    pub(crate) cancels: gather::Queue<Vec<Mark>, Vec<Marked>>,
    /// Transactions of owners, and of creations that met what is there.
    pub(crate) owners: Exclusive,
    /// Statements that change terms; none waits behind a read.
    pub(crate) takers: Shared,
    pub(crate) readers: Shared,
    /// Makes partitions, and drops due ones.
    pub(crate) keeper: Link,
    pub(crate) making_partitions: Mutex<()>,
    /// Forgets history, which may take long.
    pub(crate) historian: Link,
    pub(crate) sweep: Sweep,
    pub(crate) partitions: Partitions,
    pub(crate) arrivals: Cursors,
    pub(crate) marks: Told,
    pub(crate) full_until: FullUntil,
    /// Of creations, and of owners' and users' changes.
    pub(crate) commit_seconds: Histogram,
    stop: CancellationToken,
}

/// From 500 µs, for a server next door, to what runs into the limit on statements.
const COMMIT_SECONDS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// On the monotonic clock, in milliseconds; 0 if it never was full.
#[derive(Default)]
pub(crate) struct FullUntil(AtomicU64);

impl FullUntil {
    pub(crate) fn store_from(&self, now: Monotonic) {
        self.0.store(millis_of(now + FULL_FOR), Ordering::Relaxed);
    }

    fn is_after(&self, now: Monotonic) -> bool {
        self.0.load(Ordering::Relaxed) > millis_of(now)
    }
}

fn millis_of(at: Monotonic) -> u64 {
    u64::try_from(at.since_start().as_millis()).unwrap_or(u64::MAX)
}

impl PostgresStore {
    /// Connects, and looks whether the schema there is this build's. Its tasks are `tasks`' own; they end with
    /// [`PostgresStore::close`].
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or the schema or the cluster is not what it must be.
    pub async fn open(runtime: &Runtime, tasks: &TaskSet, url: &str, options: Options) -> Result<Self, OpenError> {
        let server = Arc::new(Server::new(url, options.client())?);
        let stop = CancellationToken::new();
        let starter = Starter { runtime, tasks, server: &server, stop: &stop };
        let keeper = starter.link();
        let opened = look(&keeper, &server, options.cluster.as_deref()).await;
        let (cluster, snapshot) = opened.inspect_err(|_| stop.cancel())?;
        let (creations, to_create) = gather::queue(options.queue_calls);
        let (changes, to_change) = gather::queue(options.queue_calls);
        let (cancels, to_cancel) = gather::queue(options.queue_calls);
        let inner = Inner {
            runtime: runtime.clone(),
            cluster,
            creations,
            changes,
            cancels,
            owners: Exclusive::start(runtime, &server, options.owner_connections, || starter.link()),
            takers: Shared::start(1, || starter.link()),
            readers: Shared::start(options.reader_connections, || starter.link()),
            keeper,
            making_partitions: Mutex::new(()),
            historian: starter.link(),
            sweep: Sweep::default(),
            partitions: Partitions::default(),
            arrivals: Cursors::new(snapshot),
            marks: Told::default(),
            full_until: FullUntil::default(),
            commit_seconds: Histogram::new(COMMIT_SECONDS),
            stop: stop.clone(),
            server: server.clone(),
            options,
        };
        inner.readers.connected().await.inspect_err(|_| stop.cancel())?;
        let inner = Arc::new(inner);
        for _ in 0..inner.options.creator_connections.max(1) {
            let lane = create::lane(inner.clone(), starter.link(), to_create.clone(), stop.clone());
            tasks.spawn("postgres creations", lane);
        }
        for _ in 0..inner.options.owner_connections.max(1) {
            tasks.spawn("postgres changes", write::lane(inner.clone(), to_change.clone(), stop.clone()));
        }
        tasks.spawn("postgres cancels", cancel::lane(inner.clone(), to_cancel, stop.clone()));
        Ok(PostgresStore { inner, stop })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The cluster that lives in the database.
    #[must_use]
    pub fn cluster(&self) -> &schema::Cluster {
        &self.inner.cluster
    }

    /// The id of the place where the members of this cluster meet: `id`, if none has said so before.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn meet_in(&self, id: &str) -> Result<String, StoreError> {
        // Who waits for another's update reads what that one wrote.
        let meet = "update reveille.meta set coordination = coalesce(coordination, $1) returning coordination";
        let rows = self.inner.readers.query(meet, &[&id]).await.map_err(store_error)?;
        let known = rows.first().map(|row| row.get(0));
        known.ok_or_else(|| StoreError::Damaged("reveille.meta has no row".to_owned()))
    }

    /// The present term of each shard, whoever owns it.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn terms(&self) -> Result<BTreeMap<ShardId, Term>, StoreError> {
        let read = self.inner.readers.query("select shard, term from reveille.shard", &[]).await;
        let term_of =
            |row: &Row| (ShardId(row.get::<_, i16>(0).cast_unsigned()), Term(row.get::<_, i64>(1).cast_unsigned()));
        Ok(read.map_err(store_error)?.iter().map(term_of).collect())
    }

    /// Adds what is counted here to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Statements sent to the store's database, but for transactions of creators and owners";
        registry.register("reveille_store_reads", help, self.inner.readers.begun.clone());
        let help = "From the first statement of a transaction that writes to the answer of its commit";
        registry.register("reveille_log_commit_duration_seconds", help, self.inner.commit_seconds.clone());
    }

    /// The server's URL, without its password.
    #[must_use]
    pub fn server(&self) -> String {
        self.inner.server.to_string()
    }

    /// Ends the connections and the tasks; what is under way fails.
    pub fn close(&self) {
        self.stop.cancel();
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Inner {
    async fn maintain(&self, now: Timestamp, history_from: Timestamp) -> Result<u64, Failure> {
        let session = self.keeper.session().await?;
        let alone = self.making_partitions.lock().await;
        let dropped = self.partitions.maintain(&session, now).await?;
        drop(alone);
        Ok(dropped + self.forget(now, history_from).await?)
    }
}

/// The cluster, and what was over before any call.
async fn look(
    keeper: &Link,
    server: &Server,
    expected: Option<&str>,
) -> Result<(schema::Cluster, Snapshot), OpenError> {
    let session = keeper.session().await?;
    let cluster = schema::check(&session, server, expected).await?;
    let rows = query(&session, "select pg_current_snapshot()::text", &[]).await?;
    let snapshot = rows.first().and_then(|row| Snapshot::parse(row.get(0)));
    Ok((cluster, snapshot.expect("PostgreSQL writes a snapshot in its own form")))
}

impl Store for PostgresStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(self.inner.insert(inserts))
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>> {
        Box::pin(async move { Ok(self.inner.positions(&pollers).await?.into_iter().map(|it| it.closed).collect()) })
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        Box::pin(self.inner.place(rows))
    }

    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>> {
        Box::pin(self.inner.mark(marks))
    }

    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        Box::pin(async move { self.inner.get(&names).await })
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        Box::pin(self.inner.load(incarnations))
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        Box::pin(async move { self.inner.list(&read).await })
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        Box::pin(async move { self.inner.find_runs(&occurrences).await })
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.inner.runs(incarnation, after, limit))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.inner.dead_letters(tenant, after, limit))
    }

    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move { self.inner.active(&tenants).await })
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        Box::pin(self.inner.tenants())
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        Box::pin(async move { self.inner.put_tenant(&tenant, &entry).await })
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>> {
        Box::pin(self.inner.audit(tenant, after, limit))
    }

    /// Makes the partitions of the days to come, drops those that every poller is done with, and forgets history; how many
    /// partitions and rows went. Several at once are harmless.
    fn maintain(&self, now: Timestamp, history_from: Timestamp) -> Answer<'_, u64> {
        Box::pin(async move { self.inner.maintain(now, history_from).await.map_err(store_error) })
    }

    fn health(&self) -> Health {
        if self.inner.stop.is_cancelled() {
            Health::Closed
        } else if !self.inner.readers.is_up() {
            Health::Unreachable
        } else if self.inner.full_until.is_after(self.inner.runtime.monotonic()) {
            Health::Full
        } else {
            Health::Ready
        }
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move { self.inner.take(&shards).await })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        Box::pin(async move { self.inner.positions(&pollers).await })
    }

    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)> {
        Box::pin(async move { self.inner.arrivals(&shards, cursor, limit).await })
    }

    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(async move { self.inner.marks(&shards, cursor).await })
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(async move { self.inner.due(&reads).await })
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        Box::pin(self.inner.write(writes))
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>> {
        Box::pin(self.inner.hand_over(lists))
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        Box::pin(async move { self.inner.handed_over(&shards).await })
    }
}

//! Store on PostgreSQL. This module opens its connections, runs its tasks, and passes each call of the store port to the
//! module that implements the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId, Tenant,
    TenantId, Term, Timestamp,
};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Admission, Failure, Link, Probe, Server, Session};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::{Monotonic, Runtime, TaskSet};
use store::{
    Answer, Cancellation, CancellationResult, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated,
    OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage, WriteRejection, Written,
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::connections::{Exclusive, Shared, Starter};
use crate::epoch::Epochs;
use crate::error::{OpenError, store_error};
use crate::history::{NO_TENANT, Sweep};
use crate::options::Options;
use crate::read::PollerState;
use crate::run_index::RunIndex;
use crate::{cancel, create, gather, schema, write};

/// Time for which the store reports that it is full after the server rejected a write for lack of space. After this
/// time the store reports that it accepts writes, and a caller may try a write again.
const FULL_FOR: Duration = Duration::from_secs(5);

/// Store on PostgreSQL.
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
    stop: CancellationToken,
}

pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) options: Options,
    server: Arc<Server>,
    /// Probe of the server. When the server does not respond, the probe closes the connections of all links, so that no
    /// call waits for long.
    probe: Probe,
    cluster: schema::Cluster,
    pub(crate) creations: gather::Queue<create::Work, create::CreateResults>,
    pub(crate) changes: gather::Queue<write::Writes, write::WriteResults>,
    pub(crate) cancels: gather::Queue<Vec<Cancellation>, Vec<CancellationResult>>,
    /// Connections for the transactions of owners, and for inserts that find an existing schedule.
    pub(crate) owners: Exclusive,
    /// Connection for statements that change terms. These statements must not wait for a read.
    pub(crate) takers: Shared,
    pub(crate) readers: Shared,
    /// Connection that creates partitions, and drops the partitions of due rows.
    pub(crate) partition_link: Link,
    pub(crate) making_partitions: Mutex<()>,
    /// Connection that deletes history. A deletion may take long.
    pub(crate) history_link: Link,
    pub(crate) schedule_sweep: Sweep,
    pub(crate) timing_sweep: Sweep,
    /// Last tenant whose counts the present sweep has deleted.
    pub(crate) counts_swept: AtomicI64,
    pub(crate) run_index: RunIndex,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) full_until: FullUntil,
    /// Histogram of the durations of transactions that write, in seconds.
    pub(crate) commit_seconds: Histogram,
    stop: CancellationToken,
}

/// Upper bounds of the histogram buckets in seconds: from 0.0005 (a server nearby) to 10 (the default statement
/// timeout).
const COMMIT_SECONDS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Instant on the monotonic clock, in milliseconds, until which the store reports that it is full. 0 if the store was
/// never full.
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
    /// Connects to the server and checks that the schema has this build's version. The store's tasks run in `tasks` and
    /// end after [`PostgresStore::close`].
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the connection, or if the schema or the cluster differs
    /// from the expected one.
    pub async fn open(runtime: &Runtime, tasks: &TaskSet, url: &str, options: Options) -> Result<Self, OpenError> {
        let server = Arc::new(Server::new(url, options.client())?);
        // The links start after the first connection, because a link logs that it cannot connect.
        let read = async |session: &Session| read_cluster(session, &server, options.cluster.as_deref()).await;
        let (cluster, epochs) = Session::once(runtime, &server, read).await?;
        let epochs = Arc::new(epochs);
        let stop = CancellationToken::new();
        let probe = Probe::start(runtime, tasks, &server, stop.clone());
        let admitting = epochs.clone();
        let admission: Admission = Arc::new(move |session| admitting.clone().admit(session));
        let starter = Starter { runtime, tasks, server: &server, probe: &probe, admission, stop: &stop };
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
            partition_link: starter.link(),
            making_partitions: Mutex::new(()),
            history_link: starter.link(),
            schedule_sweep: Sweep::default(),
            timing_sweep: Sweep::default(),
            counts_swept: AtomicI64::new(NO_TENANT),
            run_index: RunIndex::default(),
            epochs,
            full_until: FullUntil::default(),
            commit_seconds: Histogram::new(COMMIT_SECONDS),
            stop: stop.clone(),
            server: server.clone(),
            probe: probe.clone(),
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

    /// Returns the cluster that the database belongs to.
    #[must_use]
    pub fn cluster(&self) -> &schema::Cluster {
        &self.inner.cluster
    }

    /// Records `id` as the id of the coordination service that the members of this cluster use, unless the database
    /// already contains such an id. Returns the id that the database contains.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the statement.
    pub async fn record_coordination(&self, id: &str) -> Result<String, StoreError> {
        // If two members record an id at the same time, the second update waits for the first update and returns the id
        // of the first update.
        let record = "update reveille.meta set coordination = coalesce(coordination, $1) returning coordination";
        let rows = self.inner.readers.query(record, &[&id]).await.map_err(store_error)?;
        let known = rows.first().map(|row| row.get(0));
        known.ok_or_else(|| {
            StoreError::Damaged("the table reveille.meta has no row; restore the row from a backup".to_owned())
        })
    }

    /// Returns the current term of each shard.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the statement.
    pub async fn terms(&self) -> Result<BTreeMap<ShardId, Term>, StoreError> {
        let read = self.inner.readers.query("select shard, term from reveille.shard", &[]).await;
        let term_of =
            |row: &Row| (ShardId(row.get::<_, i16>(0).cast_unsigned()), Term(row.get::<_, i64>(1).cast_unsigned()));
        Ok(read.map_err(store_error)?.iter().map(term_of).collect())
    }

    /// Returns true if the index of runs is complete, so that a listing of the runs of all schedules is possible.
    /// [`index_runs`](crate::index_runs) completes the index.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the statement.
    pub async fn has_run_index(&self) -> Result<bool, StoreError> {
        self.inner.has_run_index().await
    }

    /// Registers the store's metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Statements that the store has sent to its database, except transactions of creators and owners";
        registry.register("reveille_store_reads", help, self.inner.readers.begun.clone());
        let help = "Time from the first statement of a writing transaction to the response of its commit";
        registry.register("reveille_log_commit_duration_seconds", help, self.inner.commit_seconds.clone());
        let help = "Epochs that this member has started, because the database may have lost its last writes";
        registry.register("reveille_store_epochs_started", help, self.inner.epochs.started.clone());
    }

    /// Returns the server's URL without its password.
    #[must_use]
    pub fn server(&self) -> String {
        self.inner.server.to_string()
    }

    /// Ends the connections and the tasks of the store. Calls under way fail.
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
        let session = self.partition_link.session().await?;
        let lock = self.making_partitions.lock().await;
        let dropped = self.epochs.partitions.maintain(&session, now).await?;
        drop(lock);
        // A failure of one part does not prevent the other part.
        let merged = self.merge_counts(now).await;
        let deleted = self.forget(now, history_from).await?;
        Ok(dropped + deleted + u64::from(merged?))
    }
}

/// Checks the schema and the epoch, and returns the cluster that the database belongs to.
async fn read_cluster(
    session: &Session,
    server: &Arc<Server>,
    expected: Option<&str>,
) -> Result<(schema::Cluster, Epochs), OpenError> {
    let cluster = schema::check(session, server, expected).await?;
    Ok((cluster, Epochs::open(server, session).await?))
}

impl Store for PostgresStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(self.inner.insert(inserts))
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        Box::pin(async move {
            let states = self.inner.pollers(&pollers).await?;
            Ok(states.into_iter().map(PollerState::closed).collect())
        })
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        Box::pin(self.inner.place(rows))
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>> {
        Box::pin(self.inner.append_cancellations(marks))
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

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        Box::pin(async move { self.inner.list_chosen_ids(&read).await })
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        Box::pin(async move { self.inner.find_runs(&occurrences).await })
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.inner.runs(incarnation, after, limit))
    }

    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>> {
        Box::pin(self.inner.past_timings(incarnation, from, limit))
    }

    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList> {
        Box::pin(async move { self.inner.list_runs(&read).await })
    }

    fn counts(&self, read: CountRead) -> Answer<'_, CountPage> {
        Box::pin(self.inner.counts(read))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.inner.dead_letters(tenant, after, limit))
    }

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        Box::pin(async move { self.inner.usage(&tenants).await })
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

    /// Creates the partitions of the coming days. Drops each past partition of due rows, if every row in it is at or
    /// before its poller's `done`. Deletes old history. Returns the total number of dropped partitions and deleted
    /// rows. Concurrent calls are harmless.
    fn maintain(&self, now: Timestamp, history_from: Timestamp) -> Answer<'_, u64> {
        Box::pin(async move { self.inner.maintain(now, history_from).await.map_err(store_error) })
    }

    fn health(&self) -> Health {
        if self.inner.stop.is_cancelled() {
            Health::Closed
        } else if self.inner.probe.is_silent() || !self.inner.readers.is_up() {
            Health::Unreachable
        } else if self.inner.full_until.is_after(self.inner.runtime.monotonic()) {
            Health::Full
        } else {
            Health::Ready
        }
    }

    fn epoch(&self) -> u64 {
        self.inner.epochs.newest()
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move { self.inner.take(&shards).await })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        Box::pin(async move { Ok(self.inner.pollers(&pollers).await?.iter().map(|it| it.positions).collect()) })
    }

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        Box::pin(async move { self.inner.read_insert_log(&shards, cursor, limit).await })
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(async move { self.inner.read_cancellations(&shards, cursor).await })
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(async move { self.inner.due(&reads).await })
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        Box::pin(self.inner.write(writes))
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        Box::pin(self.inner.hand_over(lists))
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        Box::pin(async move { self.inner.handed_over(&shards).await })
    }
}

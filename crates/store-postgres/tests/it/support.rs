//! Helpers for tests: a separate database for each test, and a store in the database.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, ScheduleId, Spec, Status,
    Target, TenantId, Term, Timestamp, When,
};
use postgres_client::{Failure, Link, Server, Session};
use runtime::{Runtime, TaskEnd, TaskSet};
use store::{Change, DueBound, DueRead, Insert, OwnerWrite, Store};
use test_servers::postgres::{Postgres, shared};
use tokio_util::sync::CancellationToken;

use store_postgres::{OpenError, Options, PostgresStore, migrate};

/// Returns the URL of a new database with the schema and without rows. The database is a copy of a database that the
/// first call migrated.
pub(crate) fn database() -> String {
    static TEMPLATE: OnceLock<String> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| migrated(shared()));
    let copy = shared().copy_database(template.rsplit_once('/').unwrap().1).unwrap();
    shared().sql(name_of(&copy), "select reveille.start_epoch(epoch, 0) from reveille.meta").unwrap();
    copy
}

/// Creates a database on `server`, migrates it to the current schema and returns its URL.
pub(crate) fn migrated(server: &Postgres) -> String {
    let url = server.create_database().unwrap();
    let here = url.clone();
    // The migration runs on a separate thread, because the caller's thread may already run an executor.
    std::thread::scope(|scope| {
        let migrating =
            scope.spawn(move || on_real(async |runtime| migrate(&runtime, &here, &Options::default()).await));
        migrating.join().unwrap().unwrap();
    });
    url
}

/// Statements that revert migrations, from the newest one to the oldest one, each with the version before it.
const UNDO: [(i32, &str); 8] = [
    (
        13,
        // The deletion corrects the usage of the tenants.
        "delete from reveille.run_count;
        drop table reveille.run_count, reveille.run_counting, reveille.run_merging; drop function reveille.count_counts;
        drop function reveille.note_uncounted cascade;",
    ),
    (12, "drop table reveille.past_timing; drop function reveille.count_past_timings;"),
    (11, "drop index reveille.run_time;"),
    (10, "drop table reveille.authority;"),
    (
        9,
        "drop function reveille.start_epoch, reveille.database_id, reveille.timeline;
        alter table reveille.meta drop column epoch, drop column database_id, drop column timeline;",
    ),
    (
        8,
        "drop function reveille.schedule, reveille.cancel, reveille.inbox_append, reveille.inbox_check_quotas,
            reveille.inbox_check_spec, reveille.inbox_check_at, reveille.inbox_text, reveille.inbox_check_object,
            reveille.inbox_check_id, reveille.inbox_token, reveille.inbox_tenant_named, reveille.count_usage, reveille.publish_usage,
            reveille.shard_of, reveille.poller_of, reveille.mix, reveille.multiply, reveille.fnv1a, reveille.inbox_reject;
        drop table reveille.inbox, reveille.inbox_dead_letter, reveille.inbox_usage, reveille.inbox_role,
            reveille.inbox_tenant;",
    ),
    (6, "alter table reveille.position drop column reopened, drop column reopened_from;"),
    (
        4,
        "drop function reveille.count_schedules, reveille.count_runs cascade;
        drop function reveille.add_usage, reveille.add_run_usage, reveille.usage_slot, reveille.row_bytes;
        drop table reveille.usage, reveille.run_usage;
        create table reveille.active (tenant bigint not null, slot smallint not null, schedules bigint not null);
        drop table reveille.schedule_label; drop function reveille.keep_labels cascade;
        alter table reveille.schedule drop column labels; drop index reveille.schedule_listed;",
    ),
];

/// Returns statements that revert the schema to `version`, which occurs in [`UNDO`].
pub(crate) fn undo_to(version: i32) -> String {
    let undone: String = UNDO.iter().filter(|(before, _)| *before >= version).map(|(_, undo)| *undo).collect();
    let (_, first_inbox) =
        include_str!("../../migrations/0001-first.sql").split_once("create table reveille.inbox").unwrap();
    let inbox = if version < 9 { format!("create table reveille.inbox{first_inbox};") } else { String::new() };
    format!("{undone} {inbox} update reveille.meta set version = {version}")
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

/// Store that is open, and its background tasks.
pub(crate) struct Home {
    pub(crate) store: Arc<PostgresStore>,
    tasks: TaskSet,
    runtime: Runtime,
    url: String,
}

/// Query that counts the tenants whose stored usage differs from a count of all their rows.
const WRONG_USAGES: &str = "with
    counted as (
        select tenant, sum(active) as active, sum(ended) as ended, sum(cancelled) as cancelled, sum(bytes) as bytes
        from (
            select tenant, (status = 0)::integer as active, (status = 1)::integer as ended,
                (status = 2)::integer as cancelled, reveille.row_bytes(spec) as bytes
            from reveille.schedule
            union all select tenant, 0, 0, 0, reveille.row_bytes(value) from reveille.run
            union all select tenant, 0, 0, 0, reveille.row_bytes(value) from reveille.past_timing
            union all select tenant, 0, 0, 0, reveille.row_bytes(value) from reveille.run_count
        ) r group by tenant
    ),
    kept as (
        select tenant, sum(active) as active, sum(ended) as ended, sum(cancelled) as cancelled, sum(bytes) as bytes
        from (
            select tenant, active, ended, cancelled, bytes from reveille.usage
            union all select tenant, 0, 0, 0, bytes from reveille.run_usage
        ) u group by tenant
    )
    select count(*) from counted c full join kept k using (tenant)
    where (coalesce(c.active, 0), coalesce(c.ended, 0), coalesce(c.cancelled, 0), coalesce(c.bytes, 0))
        is distinct from (coalesce(k.active, 0), coalesce(k.ended, 0), coalesce(k.cancelled, 0), coalesce(k.bytes, 0))";

impl Home {
    pub(crate) async fn try_open(runtime: &Runtime, url: &str, options: Options) -> Result<Self, OpenError> {
        let tasks = TaskSet::new(runtime);
        let store = PostgresStore::open(runtime, &tasks, url, options).await?;
        Ok(Home { store: Arc::new(store), tasks, runtime: runtime.clone(), url: url.to_owned() })
    }

    pub(crate) async fn open(runtime: &Runtime, url: &str) -> Self {
        Home::try_open(runtime, url, Options::default()).await.unwrap()
    }

    /// Closes the store, and checks that the usage of each tenant equals a count of its rows.
    pub(crate) async fn close(self) {
        let server = Server::new(&self.url, postgres_client::Options::default()).unwrap();
        let runtime = self.runtime.clone();
        self.stop().await;
        let wrong: i64 = Session::once(&runtime, &Arc::new(server), async |session| {
            let row = session.within(session.client().query_one(WRONG_USAGES, &[])).await?;
            Ok::<_, Failure>(row.get(0))
        })
        .await
        .unwrap();
        assert_eq!(wrong, 0, "tenants with a wrong usage");
    }

    /// Closes the store.
    pub(crate) async fn stop(self) {
        self.store.close();
        drop(self.store);
        for (name, end) in self.tasks.join().await {
            assert_eq!(end, TaskEnd::Finished, "{name}");
        }
    }
}

pub(crate) const TENANT: TenantId = TenantId(7);
pub(crate) const POLLER: PollerId = PollerId { tenant: TENANT, generation: 0, number: 3 };

/// Returns an insert of a one-shot schedule that belongs to [`POLLER`] and is due at `at`. The function derives the
/// schedule's id from the incarnation.
pub(crate) fn one_shot(runtime: &Runtime, at: Timestamp) -> Insert {
    let now = runtime.now();
    let incarnation = Incarnation::new(now, runtime.random_u128());
    let target = Target::Http(HttpTarget {
        url: "http://127.0.0.1:9/hook".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
    });
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: target.key() };
    let retry = RetryPolicy { attempts_max: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) };
    let schedule = Schedule {
        tenant: TENANT,
        id: ScheduleId::from_incarnation(incarnation),
        incarnation,
        poller: POLLER,
        revision: Revision(0),
        status: Status::Active,
        created_at: now,
        updated_at: now,
        next: Some(at),
        spec: Spec { when: When::At(at), target, payload: Bytes::from_static(b"{}"), labels: BTreeMap::new(), retry },
    };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

/// Returns all due rows of [`POLLER`] after the instant `after`.
pub(crate) async fn due_after(store: &dyn Store, after: Timestamp) -> Vec<DueKey> {
    let after = DueBound::Instant(after);
    let read = DueRead { poller: POLLER, after, until: Timestamp::MAX, limit: usize::MAX };
    store.due(vec![read]).await.unwrap().remove(0).keys
}

/// Returns the name of the database in a URL.
pub(crate) fn name_of(url: &str) -> &str {
    let name = url.rsplit_once('/').unwrap().1;
    name.split('?').next().unwrap()
}

/// Returns a write by the owner of [`POLLER`].
pub(crate) fn owned(term: Term, change: Change) -> OwnerWrite {
    OwnerWrite { term, poller: POLLER, change }
}

/// Returns the change that writes the outcome "succeeded" of the schedule's first occurrence.
pub(crate) fn outcome(insert: &Insert) -> Change {
    let occurrence = insert.due.occurrence;
    let run = Run { tenant: TENANT, occurrence, state: RunState::Succeeded, attempts: Vec::new() };
    Change::Run { run, then: None, ends: true, origin: None }
}

/// PostgreSQL session with a separate connection, in which a test executes SQL statements.
pub(crate) struct OtherSession {
    link: Link,
    stop: CancellationToken,
}

impl OtherSession {
    pub(crate) fn new(runtime: &Runtime, tasks: &TaskSet, url: &str) -> Self {
        let server = Arc::new(Server::new(url, postgres_client::Options::default()).unwrap());
        let stop = CancellationToken::new();
        OtherSession { link: Link::start(runtime, tasks, &server, stop.clone()), stop }
    }

    pub(crate) async fn execute(&self, statements: &str) {
        let session = self.link.session().await.unwrap();
        session.within(session.client().batch_execute(statements)).await.unwrap();
    }
}

impl Drop for OtherSession {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

//! Transactions that read rows, decide about changes and write the changes. A transaction contains writes of owners
//! under their terms, or inserts of schedules of which some exist already.
//!
//! Every transaction takes its locks in the same order (shards, then schedules by incarnation), so two transactions do
//! not deadlock. The store splits a long batch into several transactions. A caller must therefore not expect that its
//! batch is atomic.
//!
//! docs/decisions/0094-write-under-the-shard-rows-lock.md gives the reasons for the design.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Incarnation, Occurrence, ScheduleId, ShardId, TenantId, Term, Timestamp};
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::try_join;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::tokio_postgres::{self, Row, Statement};
use postgres_client::{Failure, Session};
use store::{Change, Insert, Inserted, OwnerWrite, StoreError, WriteRejection, Written};
use stored::run;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::ConnectionGuard;
use crate::engine::Inner;
use crate::error::{is_about_a_row, store_error};
use crate::partition::Partition;
use crate::past_timings::{TIMING_COLUMNS, timing_of};
use crate::plan::{Changes, KnownRun, Needs, Plan, ScheduleChange};
use crate::rows::{
    HEAD_COLUMNS, Head, OccurrenceColumns, ScheduleColumns, head_of, poller_number, run_key_of, status_number, uuid,
};
use crate::{due, epoch, gather, past_timings, run_counts};

/// Maximum number of attempts for one transaction. The store repeats a transaction that conflicted with another
/// transaction, or that failed because another member had dropped a partition.
const TRIES: usize = 5;
/// Maximum number of items in one transaction.
const ITEMS_MAX: usize = 2_000;

const LOCK_TERMS: &str =
    "select shard, term from reveille.shard where shard = any($1::smallint[]) order by shard for share";
const NAMES: &str = "select s.tenant, s.id, s.incarnation
    from unnest($1::bigint[], $2::text[]) as n (tenant, id)
    join reveille.schedule s on s.tenant = n.tenant and s.id = n.id and s.is_current and s.id is not null";
// The `limit` makes PostgreSQL look up each occurrence by its key, even in a partition without statistics.
const RUNS: &str = "select r.state = 2 and not r.is_redriven, r.incarnation, r.nominal, r.version, r.state <> 0
    from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as o (incarnation, nominal, version)
    cross join lateral (
        select * from reveille.run r
        where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version limit 1) r";
const ASKED: &str = "select incarnation from reveille.asked where incarnation = any($1::uuid[])";

const FREE_NAMES: &str = "update reveille.schedule set is_current = false where incarnation = any($1::uuid[])";
const INSERT_SCHEDULES: &str = "insert into reveille.schedule
    (incarnation, tenant, poller, id, is_current, revision, status, created_at, updated_at, next, spec, labels, ended_at)
    select i.incarnation, tenant, poller, id, is_current, revision, status, created_at, updated_at, next, spec,
        labels::bigint[], case when i.status <> 0 then $13::bigint end
    from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::boolean[], $6::bigint[], $7::smallint[],
            $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::text[])
        as i (incarnation, tenant, poller, id, is_current, revision, status, created_at, updated_at, next, spec, labels)";
const REPLACE_SCHEDULES: &str = "update reveille.schedule s
    set revision = i.revision, status = i.status, updated_at = i.updated_at, next = i.next, spec = i.spec,
        labels = i.labels::bigint[], ended_at = case when i.status <> 0 then $8::bigint end
    from unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::text[])
        as i (incarnation, revision, status, updated_at, next, spec, labels)
    where s.incarnation = i.incarnation";
const CHANGE_SCHEDULES: &str = "update reveille.schedule s
    set revision = i.revision, status = i.status, next = i.next,
        ended_at = case when i.status <> 0 then $5::bigint end
    from unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::bigint[]) as i (incarnation, revision, status, next)
    where s.incarnation = i.incarnation";
const INSERT_ASKED: &str = "insert into reveille.asked select * from unnest($1::uuid[]) on conflict do nothing";
const WRITE_RUNS: &str = "insert into reveille.run (incarnation, nominal, version, tenant, state, value, written_at)
    select *, $7::bigint from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bytea[])
    on conflict (incarnation, nominal, version)
    do update set state = excluded.state, value = excluded.value, written_at = excluded.written_at";
const REDRIVE_RUNS: &str = "update reveille.run r set is_redriven = true, written_at = $4
    from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as o (incarnation, nominal, version)
    where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version";
const WRITE_POSITIONS: &str = "insert into reveille.position as p (poller, closed, done, reopened)
    select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
    on conflict (poller) do update
    set closed = case when excluded.reopened > 0 then excluded.closed else greatest(p.closed, excluded.closed) end,
        done = case when excluded.reopened > 0 then excluded.done else greatest(p.done, excluded.done) end,
        reopened = p.reopened + excluded.reopened,
        reopened_from = case when excluded.reopened > 0 then greatest(p.reopened_from, p.closed) else p.reopened_from end";

fn lock_schedules() -> &'static str {
    static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        format!(
            "select {HEAD_COLUMNS}, {TIMING_COLUMNS} from reveille.schedule where incarnation = any($1::uuid[])
             order by incarnation for no key update"
        )
    });
    &TEXT
}

/// Reason why an attempt of a transaction failed.
enum Stop {
    /// The transaction failed, but another attempt may succeed.
    Again(Failure),
    Failed(Failed),
}

/// Failure of a transaction that the store does not retry.
struct Failed {
    error: StoreError,
    /// True if the failure concerns one row. A batch without this row may succeed.
    is_about_a_row: bool,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Failed { is_about_a_row: is_about_a_row(&failure), error: store_error(failure) }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        // Error code 23505: another transaction took the id after the read. Error code 23514: another member dropped
        // the partition.
        let is_stale = failure.code().is_some_and(|code| matches!(code.code(), "23505" | "23514"));
        if is_stale || failure.is_conflict() { Stop::Again(failure) } else { Stop::Failed(failure.into()) }
    }
}

/// A store error during the read means that a row is malformed, so the failure concerns this row.
impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Failed(Failed { error, is_about_a_row: true })
    }
}

/// Batch of a transaction. The transaction locks and reads rows, and decides about the batch on the basis of these
/// rows.
enum Batch<'a> {
    Inserts(&'a [Insert]),
    Writes(&'a [OwnerWrite]),
}

enum Responses {
    Inserts(Vec<Inserted>),
    Writes(Vec<Result<Written, WriteRejection>>),
}

impl Batch<'_> {
    fn needs(&self) -> Needs {
        match self {
            Batch::Inserts(inserts) => Needs::of_inserts(inserts),
            Batch::Writes(writes) => Needs::of_writes(writes),
        }
    }

    fn decide(&self, plan: &mut Plan) -> Responses {
        match self {
            Batch::Inserts(inserts) => Responses::Inserts(inserts.iter().map(|insert| plan.insert(insert)).collect()),
            Batch::Writes(writes) => Responses::Writes(writes.iter().map(|write| plan.write(write.clone())).collect()),
        }
    }

    /// Returns the daily partitions of the batch's runs. The default partition, which contains old runs, is not in the
    /// result.
    fn run_partitions(&self, now: Timestamp) -> BTreeSet<Partition> {
        let Batch::Writes(writes) = self else { return BTreeSet::new() };
        let nominal = |write: &OwnerWrite| match &write.change {
            Change::Run { run, .. } => Some(run.occurrence.nominal),
            _ => None,
        };
        writes.iter().filter_map(nominal).filter_map(|nominal| Partition::of_run(nominal, now)).collect()
    }

    /// Returns whether the batch comes from creators. Due rows of creators go to the insert log.
    fn is_of_creators(&self) -> bool {
        matches!(self, Batch::Inserts(_))
    }
}

/// Writes of one or more owners.
pub(crate) type Writes = Vec<OwnerWrite>;
/// Result of each write.
pub(crate) type WriteResults = Vec<Result<Written, WriteRejection>>;

impl gather::Work for Writes {
    fn rows(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        let hours: BTreeSet<_> = self.iter().filter_map(run_counts::counted_in).collect();
        self.iter().map(payload_of).sum::<usize>() + hours.len() * run_counts::BYTES
    }
}

fn payload_of(write: &OwnerWrite) -> usize {
    match &write.change {
        Change::Put(insert) | Change::PutIf { insert, .. } => insert.schedule.spec.payload.len(),
        Change::Reencrypt(schedule) => schedule.spec.payload.len(),
        Change::Run { run, .. } => run.excerpt_bytes(),
        _ => 0,
    }
}

/// Executes the writes of owners in transactions until the store closes. Several tasks run this function concurrently.
pub(crate) async fn lane(
    inner: Arc<Inner>,
    waiting: Arc<gather::Waiting<Writes, WriteResults>>,
    stop: CancellationToken,
) {
    waiting.serve(ITEMS_MAX, inner.options.batch_bytes, &stop, |calls| Box::pin(inner.write_calls(calls))).await;
}

impl Inner {
    pub(crate) async fn write(&self, writes: Writes) -> Result<WriteResults, StoreError> {
        let mut responses = Vec::with_capacity(writes.len());
        let mut rest = writes;
        while !rest.is_empty() {
            let later = rest.split_off(self.part_of(&rest));
            responses.extend(self.changes.submit(&self.runtime, self.options.statement_timeout, rest).await?);
            rest = later;
        }
        Ok(responses)
    }

    /// Makes the writes of all calls in one transaction. If the server rejects the transaction because of one row,
    /// makes the writes of each call in a separate transaction.
    async fn write_calls(&self, mut calls: Vec<gather::Job<Writes, WriteResults>>) {
        let counts: Vec<usize> = calls.iter().map(|call| call.work.len()).collect();
        let writes: Writes = calls.iter_mut().flat_map(|call| std::mem::take(&mut call.work)).collect();
        match self.transact(&Batch::Writes(&writes)).await {
            Ok(Responses::Writes(responses)) => {
                let mut responses = responses.into_iter();
                for (call, count) in calls.into_iter().zip(counts) {
                    call.respond(Ok(responses.by_ref().take(count).collect()));
                }
            }
            Ok(Responses::Inserts(_)) => unreachable!("a batch of owner writes returns only results of owner writes"),
            Err(Failed { is_about_a_row: true, .. }) if calls.len() > 1 => {
                let mut writes = writes.into_iter();
                for (mut call, count) in calls.into_iter().zip(counts) {
                    call.work = writes.by_ref().take(count).collect();
                    Box::pin(self.write_calls(vec![call])).await;
                }
            }
            Err(Failed { error, .. }) => calls.into_iter().for_each(|call| call.respond(Err(error.clone()))),
        }
    }

    /// Returns the number of writes at the start of `writes` that fit into one transaction.
    fn part_of(&self, writes: &[OwnerWrite]) -> usize {
        let (mut bytes, mut hours) = (0, BTreeSet::new());
        let fits = |write: &&OwnerWrite| {
            let is_new = run_counts::counted_in(write).is_some_and(|hour| hours.insert(hour));
            bytes += payload_of(write) + if is_new { run_counts::BYTES } else { 0 };
            bytes <= self.options.batch_bytes
        };
        writes.iter().take(ITEMS_MAX).take_while(fits).count().max(1)
    }

    /// Inserts schedules of which some may exist already. Locks the existing schedules, and decides about the inserts
    /// one by one, in their order.
    pub(crate) async fn insert_under_locks(&self, inserts: &[Insert]) -> Result<Vec<Inserted>, StoreError> {
        match self.transact(&Batch::Inserts(inserts)).await {
            Ok(Responses::Inserts(responses)) => Ok(responses),
            Ok(Responses::Writes(_)) => unreachable!("a batch of inserts returns only results of inserts"),
            Err(Failed { error, .. }) => Err(error),
        }
    }

    async fn transact(&self, batch: &Batch<'_>) -> Result<Responses, Failed> {
        self.create_run_partitions(batch).await;
        let mut tries_left = TRIES;
        loop {
            let mut guard = self.owners.acquire().await?;
            guard.begins();
            let tried = self.try_transact(&guard, batch).await;
            tries_left -= 1;
            match tried {
                Ok(responses) => {
                    guard.ended();
                    return Ok(responses);
                }
                Err(Stop::Again(failure)) if tries_left > 0 => {
                    tracing::debug!(%failure, "transaction retried");
                    guard.rollback().await?;
                    self.epochs.partitions.forget();
                }
                Err(Stop::Again(failure)) => {
                    guard.rollback().await?;
                    return Err(Failed { is_about_a_row: false, error: self.record_failure(failure) });
                }
                Err(Stop::Failed(failed)) => {
                    // If the rollback fails, the connection guard closes the connection when it is dropped.
                    if guard.rollback().await.is_err() {
                        tracing::debug!("connection closed because the rollback failed");
                    }
                    return Err(failed);
                }
            }
        }
    }

    /// Creates the missing partitions of the batch's runs. The caller calls this method before the transaction, because
    /// the locks of the transaction would block the creation. A run without a partition of its day goes to the default
    /// partition.
    async fn create_run_partitions(&self, batch: &Batch<'_>) {
        let missing = self.epochs.partitions.missing(&batch.run_partitions(self.runtime.now()));
        if !missing.is_empty()
            && let Err(failure) = self.make_partitions(&missing).await
        {
            tracing::warn!(
                %failure,
                "partition for the runs of a day could not be created; its runs go to the default partition"
            );
        }
    }

    async fn try_transact(&self, guard: &ConnectionGuard<'_>, batch: &Batch<'_>) -> Result<Responses, Stop> {
        let session = guard.session();
        let begun = self.runtime.monotonic();
        let mut plan = Box::pin(read(session, batch.needs())).await?;
        let responses = batch.decide(&mut plan);
        let now = self.runtime.now();
        let due = due::Columns::of(plan.changes.due.drain(..), now);
        let missing = self.epochs.partitions.missing(&due.partitions);
        if !missing.is_empty() {
            // Another connection creates the partitions, because this connection is in a transaction.
            self.make_partitions(&missing).await?;
        }
        write(session, plan, &due, batch.is_of_creators(), now).await?;
        if let (Batch::Writes(writes), Responses::Writes(responses)) = (batch, &responses)
            && let Some(written) = last_positions(writes, responses)
        {
            self.epochs.record_written(written);
        }
        self.commit_seconds.observe(self.runtime.monotonic().since(begun).as_secs_f64());
        Ok(responses)
    }

    pub(crate) async fn make_partitions(&self, missing: &[Partition]) -> Result<(), Failure> {
        let session = self.partition_link.session().await?;
        let _lock = self.making_partitions.lock().await;
        self.epochs.partitions.make(&session, missing).await
    }
}

/// Returns the last positions that the transaction wrote.
fn last_positions(writes: &[OwnerWrite], responses: &WriteResults) -> Option<epoch::Written> {
    let positions = |(write, response): (&OwnerWrite, &Result<Written, WriteRejection>)| match write.change {
        Change::Positions(positions) | Change::Reopen(positions) if response.is_ok() => {
            Some(epoch::Written { poller: write.poller, term: write.term, positions })
        }
        _ => None,
    };
    writes.iter().zip(responses).rev().find_map(positions)
}

/// Begins a transaction, locks the rows that the batch needs, and reads them.
async fn read(session: &Session, needs: Needs) -> Result<Plan, Stop> {
    let [terms, names, schedules, runs, asked] =
        prepare(session, [LOCK_TERMS, NAMES, lock_schedules(), RUNS, ASKED]).await?;
    let shards: Vec<i16> = needs.shards.iter().map(|shard| shard.0.cast_signed()).collect();
    let (tenants, ids): (Vec<i64>, Vec<&str>) =
        needs.names.iter().map(|(tenant, id)| (i64::from(tenant.0), id.as_str())).unzip();
    let (_, term_rows, name_rows) = try_join!(
        session.within(session.client().batch_execute(run_counts::BEGIN)),
        query(session, &terms, vec![&shards]),
        query(session, &names, vec![&tenants, &ids]),
    )?;

    let mut incarnations: BTreeSet<Uuid> = needs.incarnations.iter().copied().map(uuid).collect();
    incarnations.extend(name_rows.iter().map(|row| row.get::<_, Uuid>(2)));
    let incarnations: Vec<Uuid> = incarnations.into_iter().collect();
    let occurrences: OccurrenceColumns = needs.occurrences.iter().collect();
    let known_runs: Vec<&(dyn ToSql + Sync)> =
        vec![&occurrences.incarnations, &occurrences.nominals, &occurrences.versions];
    let asked_ids: Vec<Uuid> = needs.asked.iter().copied().map(uuid).collect();
    // The transaction looks up the ids again after it has locked their schedules. From this point, no other transaction
    // can take the ids.
    let (schedule_rows, names_now, run_rows, asked_rows, counts) = try_join!(
        query(session, &schedules, vec![&incarnations, &needs.timings]),
        query(session, &names, vec![&tenants, &ids]),
        async {
            // The query for runs locks every partition of the runs, so it runs only if the batch needs runs.
            match occurrences.incarnations.is_empty() {
                true => Ok(Vec::new()),
                false => query(session, &runs, known_runs).await,
            }
        },
        query(session, &asked, vec![&asked_ids]),
        run_counts::read_own(session, &needs.hours),
    )?;
    let holders = |rows: &[Row]| rows.iter().map(|row| row.get::<_, Uuid>(2)).collect::<BTreeSet<_>>();
    if holders(&names_now) != holders(&name_rows) {
        return Err(Stop::Again(Failure::Statement {
            server: "PostgreSQL".to_owned(),
            code: "40001".to_owned(),
            reason: "another transaction created a schedule with the same id at the same time".to_owned(),
        }));
    }
    let plan = plan_of(&term_rows, &schedule_rows, &names_now, &run_rows, &asked_rows)?;
    Ok(Plan { counts, ..plan })
}

/// Runs a query. The first poll of the returned future sends the query to the server.
async fn query(
    session: &Session,
    statement: &Statement,
    parameters: Vec<&(dyn ToSql + Sync)>,
) -> Result<Vec<Row>, Failure> {
    session.within(session.client().query(statement, &parameters)).await
}

fn plan_of(terms: &[Row], schedules: &[Row], names: &[Row], runs: &[Row], asked: &[Row]) -> Result<Plan, StoreError> {
    let mut plan = Plan::default();
    for row in terms {
        plan.terms.insert(ShardId(row.get::<_, i16>(0).cast_unsigned()), Term(row.get::<_, i64>(1).cast_unsigned()));
    }
    for row in schedules {
        let head = head_of(row)?;
        plan.timings.extend(timing_of(row, 9).map(|timing| (head.incarnation, timing)));
        plan.heads.insert(head.incarnation, head);
    }
    for row in names {
        plan.names.insert(name_of(row)?, Incarnation(row.get::<_, Uuid>(2).as_u128()));
    }
    for row in runs {
        let known = KnownRun { is_dead: row.get(0), is_final: row.get(4) };
        plan.runs.insert(run_key_of(row), known);
    }
    plan.asked = asked.iter().map(|row| Incarnation(row.get::<_, Uuid>(0).as_u128())).collect();
    Ok(plan)
}

fn name_of(row: &Row) -> Result<(TenantId, ScheduleId), StoreError> {
    let damaged = || StoreError::Damaged("a schedule has a malformed tenant or id".to_owned());
    let tenant = TenantId(u32::try_from(row.get::<_, i64>(0)).map_err(|_| damaged())?);
    Ok((tenant, ScheduleId::new(row.get(1)).map_err(|_| damaged())?))
}

async fn prepare<const N: usize>(session: &Session, texts: [&'static str; N]) -> Result<[Statement; N], Failure> {
    let mut statements = Vec::with_capacity(N);
    for text in texts {
        statements.push(session.prepare(text).await?);
    }
    Ok(statements.try_into().unwrap_or_else(|_| unreachable!("`prepare` creates one statement for each SQL text")))
}

/// Statements of one transaction. The client pipelines them: it sends each statement without waiting for the response
/// to the previous one.
struct Sending<'a> {
    session: &'a Session,
    sent: Vec<BoxFuture<'a, Result<(), Failure>>>,
}

impl<'a> Sending<'a> {
    /// Adds a statement if the batch needs it. This method prepares the statement, so that the later send needs only
    /// one request.
    async fn statement(
        &mut self,
        text: &'static str,
        is_needed: bool,
        parameters: &'a [&'a (dyn ToSql + Sync)],
    ) -> Result<(), Failure> {
        if is_needed {
            let statement = self.session.prepare(text).await?;
            let session = self.session;
            self.sent.push(
                async move {
                    let executed = session.client().execute(&statement, parameters);
                    session.within(executed.map(|done: Result<u64, tokio_postgres::Error>| done.map(drop))).await
                }
                .boxed(),
            );
        }
        Ok(())
    }
}

/// Writes the changes of a plan, and commits the transaction.
async fn write(
    session: &Session,
    plan: Plan,
    due: &due::Columns,
    is_of_creators: bool,
    now: Timestamp,
) -> Result<(), Failure> {
    let Plan { heads, changes, counts, .. } = plan;
    let now = now.as_millis();
    let Changes { schedules, freed, asked, runs, past_timings, redriven, positions, due: _ } = changes;
    let freed: Vec<Uuid> =
        freed.into_iter().filter(|id| !matches!(schedules.get(id), Some(ScheduleChange::New(_)))).map(uuid).collect();
    let asked: Vec<Uuid> = asked.into_iter().map(uuid).collect();
    let (mut new, mut replaced, mut changed) =
        (ScheduleColumns::default(), ScheduleColumns::default(), HeadColumns::default());
    for (incarnation, change) in &schedules {
        let head = &heads[incarnation];
        match change {
            ScheduleChange::New(schedule) => new.push(head, schedule),
            ScheduleChange::Replaced(schedule) => replaced.push(head, schedule),
            ScheduleChange::Head => changed.push(head),
        }
    }
    let run_keys: OccurrenceColumns = runs.keys().collect();
    let run_tenants: Vec<i64> = runs.values().map(|run| i64::from(run.tenant.0)).collect();
    let run_states: Vec<i16> = runs.values().map(|run| run::state_number(run.state).into()).collect();
    let run_values: Vec<Vec<u8>> = runs.values().map(run::encode_rest).collect();
    let counts = counts.changed();
    let past: past_timings::Columns = past_timings.into_iter().collect();
    let redriven: BTreeSet<Occurrence> = redriven;
    let redriven: OccurrenceColumns = redriven.iter().collect();
    let pollers: Vec<i64> = positions.keys().copied().map(poller_number).collect();
    let closed: Vec<i64> = positions.values().map(|moved| moved.to.closed.as_millis()).collect();
    let done: Vec<i64> = positions.values().map(|moved| moved.to.done.as_millis()).collect();
    let reopened: Vec<i64> = positions.values().map(|moved| moved.reopened).collect();

    let new_parameters: [&(dyn ToSql + Sync); 13] = [
        &new.incarnations,
        &new.tenants,
        &new.pollers,
        &new.ids,
        &new.are_current,
        &new.revisions,
        &new.statuses,
        &new.created,
        &new.updated,
        &new.nexts,
        &new.specs,
        &new.labels,
        &now,
    ];
    let replaced_parameters: [&(dyn ToSql + Sync); 8] = [
        &replaced.incarnations,
        &replaced.revisions,
        &replaced.statuses,
        &replaced.updated,
        &replaced.nexts,
        &replaced.specs,
        &replaced.labels,
        &now,
    ];
    let changed_parameters: [&(dyn ToSql + Sync); 5] =
        [&changed.incarnations, &changed.revisions, &changed.statuses, &changed.nexts, &now];
    let run_parameters: [&(dyn ToSql + Sync); 7] =
        [&run_keys.incarnations, &run_keys.nominals, &run_keys.versions, &run_tenants, &run_states, &run_values, &now];
    let redriven_parameters: [&(dyn ToSql + Sync); 4] =
        [&redriven.incarnations, &redriven.nominals, &redriven.versions, &now];
    let count_parameters: [&(dyn ToSql + Sync); 4] = [&counts.tenants, &counts.facets, &counts.hours, &counts.values];
    let past_parameters: [&(dyn ToSql + Sync); 5] =
        [&past.incarnations, &past.revisions, &past.tenants, &past.values, &now];
    let (freed_parameters, asked_parameters): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) =
        ([&freed], [&asked]);
    let position_parameters: [&(dyn ToSql + Sync); 4] = [&pollers, &closed, &done, &reopened];
    let (near, far) = (due.near.parameters(), due.far.parameters());
    let [insert_near, insert_far] = due::statements(is_of_creators);

    let mut sending = Sending { session, sent: Vec::new() };
    sending.statement(FREE_NAMES, !freed.is_empty(), &freed_parameters).await?;
    // The transaction writes the due rows before their schedules, so that the rows become visible before or together
    // with the schedules.
    sending.statement(insert_near, !due.near.is_empty(), &near).await?;
    sending.statement(insert_far, !due.far.is_empty(), &far).await?;
    sending.statement(INSERT_SCHEDULES, !new.incarnations.is_empty(), &new_parameters).await?;
    sending.statement(REPLACE_SCHEDULES, !replaced.incarnations.is_empty(), &replaced_parameters).await?;
    sending.statement(CHANGE_SCHEDULES, !changed.incarnations.is_empty(), &changed_parameters).await?;
    sending.statement(past_timings::INSERT, !past.incarnations.is_empty(), &past_parameters).await?;
    sending.statement(INSERT_ASKED, !asked.is_empty(), &asked_parameters).await?;
    sending.statement(WRITE_RUNS, !run_values.is_empty(), &run_parameters).await?;
    sending.statement(run_counts::WRITE_OWN, !counts.tenants.is_empty(), &count_parameters).await?;
    sending.statement(REDRIVE_RUNS, !redriven.incarnations.is_empty(), &redriven_parameters).await?;
    sending.statement(WRITE_POSITIONS, !pollers.is_empty(), &position_parameters).await?;
    let mut sent = sending.sent;
    sent.push(session.within(session.client().batch_execute("commit")).boxed());
    // If one statement fails, the server ignores the later statements, and the commit rolls the transaction back. The
    // write is therefore successful only if every statement succeeds.
    futures_util::future::join_all(sent).await.into_iter().collect()
}

#[derive(Default)]
struct HeadColumns {
    incarnations: Vec<Uuid>,
    revisions: Vec<i64>,
    statuses: Vec<i16>,
    nexts: Vec<Option<i64>>,
}

impl HeadColumns {
    fn push(&mut self, head: &Head) {
        self.incarnations.push(uuid(head.incarnation));
        self.revisions.push(i64::from(head.revision.0));
        self.statuses.push(status_number(head.status));
        self.nexts.push(head.next.map(Timestamp::as_millis));
    }
}

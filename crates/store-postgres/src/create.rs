//! Writes of creators: new schedules and placed due rows. One transaction contains the rows of many small calls.
//!
//! A few tasks (lanes) take the waiting calls. Each lane has its own connection, and inserts a batch of new rows with
//! one statement. If some schedules exist already, the lane inserts only the new schedules. The caller then locks the
//! existing schedules and decides the results of the other inserts ([`Inner::insert_under_locks`]).
//!
//! docs/decisions/0093-batch-creates-in-two-lanes.md gives the reasons for the design.

use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, PollerId, Timestamp};
use futures_util::FutureExt as _;
use futures_util::future::try_join_all;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Link, Session};
use store::{Insert, Inserted, Placed, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::{is_about_a_row, store_error};
use crate::gather::Work as _;
use crate::read::{PollerState, pollers_on};
use crate::rows::{Head, ScheduleColumns, has_server_made_id, uuid};
use crate::{due, gather};

/// Maximum number of attempts for a batch that conflicts with another transaction, or whose partition another member
/// dropped.
const TRIES: usize = 5;

/// Inserts a batch. The statement fails if a schedule of the batch exists already.
const CREATE: &str = "with
    near as (
        insert into reveille.due_near (poller, position, incarnation, nominal, version, try, shard, written_by)
        select *, pg_current_xact_id() from unnest($12::bigint[], $13::bigint[], $14::uuid[], $15::bigint[],
            $16::bigint[], $17::bigint[], $18::smallint[])
        on conflict (poller, position, incarnation, nominal, version, try) do update set written_by = excluded.written_by
    ),
    far as (
        insert into reveille.due_far (poller, position, incarnation, nominal, version, try, shard, written_by)
        select *, pg_current_xact_id() from unnest($19::bigint[], $20::bigint[], $21::uuid[], $22::bigint[],
            $23::bigint[], $24::bigint[], $25::smallint[])
        on conflict (poller, position, incarnation, nominal, version, try) do update set written_by = excluded.written_by
    )
    insert into reveille.schedule
        (is_current, incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec, labels)
    select true, i.incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec,
        labels::bigint[]
    from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::smallint[],
            $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::text[])
        as i (incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec, labels)";

/// Inserts only the new schedules of a batch, and returns their incarnations.
const CREATE_NEW: &str = "insert into reveille.schedule
        (is_current, incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec, labels)
    select true, i.incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec,
        labels::bigint[]
    from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::smallint[],
            $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::text[])
        as i (incarnation, tenant, poller, id, revision, status, created_at, updated_at, next, spec, labels)
    on conflict do nothing returning incarnation";

/// Placement of each row. `None` if the lane did not write the row because its schedule exists already.
pub(crate) type CreateResults = Vec<Option<Placed>>;
type Job = gather::Job<Work, CreateResults>;

/// Schedules to insert or due rows to place, for a call or for a part of a call.
#[derive(Clone)]
pub(crate) enum Work {
    Insert(Arc<[Insert]>),
    Place(Arc<[(PollerId, DueKey)]>),
}

impl gather::Work for Work {
    fn rows(&self) -> usize {
        match self {
            Work::Insert(inserts) => inserts.len(),
            Work::Place(rows) => rows.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Work::Insert(inserts) => inserts.iter().map(|insert| insert.schedule.spec.payload.len()).sum(),
            Work::Place(_) => 0,
        }
    }
}

impl Work {
    fn row(&self, at: usize) -> (PollerId, Timestamp) {
        match self {
            Work::Insert(inserts) => (inserts[at].schedule.poller, inserts[at].due.position),
            Work::Place(rows) => (rows[at].0, rows[at].1.position),
        }
    }
}

impl Inner {
    pub(crate) async fn insert(&self, inserts: Vec<Insert>) -> Result<Vec<Inserted>, StoreError> {
        // Inserts with server-made ids cannot conflict with each other, so the parts of the call can run concurrently.
        let are_independent = inserts.iter().all(|insert| has_server_made_id(&insert.schedule));
        let parts = self.parts_of(inserts);
        let responses = if are_independent {
            try_join_all(parts.into_iter().map(|part| self.insert_part(part))).await?
        } else {
            let mut responses = Vec::with_capacity(parts.len());
            for part in parts {
                responses.push(self.insert_part(part).await?);
            }
            responses
        };
        Ok(responses.into_iter().flatten().collect())
    }

    fn parts_of(&self, inserts: Vec<Insert>) -> Vec<Arc<[Insert]>> {
        let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
        for insert in inserts {
            bytes += insert.schedule.spec.payload.len();
            if part.len() >= self.options.batch_rows || bytes > self.options.batch_bytes && !part.is_empty() {
                bytes = insert.schedule.spec.payload.len();
                parts.push(std::mem::take(&mut part).into());
            }
            part.push(insert);
        }
        if !part.is_empty() {
            parts.push(part.into());
        }
        parts
    }

    async fn insert_part(&self, part: Arc<[Insert]>) -> Result<Vec<Inserted>, StoreError> {
        // A caller may choose an id that is the server-made id of another schedule. The index of chosen ids does not
        // contain that schedule, so this method looks it up under locks.
        let resembles_server_made =
            |insert: &Insert| insert.schedule.id.to_incarnation().is_some() && !has_server_made_id(&insert.schedule);
        if part.iter().any(resembles_server_made) {
            return self.insert_under_locks(&part).await;
        }
        let placed = self.submit(Work::Insert(part.clone())).await?;
        let rest: Vec<Insert> =
            part.iter().zip(&placed).filter(|(_, placed)| placed.is_none()).map(|(insert, _)| insert.clone()).collect();
        let mut rest = if rest.is_empty() { Vec::new() } else { self.insert_under_locks(&rest).await? }.into_iter();
        let mut under_locks = || rest.next().expect("`insert_under_locks` returns one result for each insert");
        Ok(placed.into_iter().map(|placed| placed.map_or_else(&mut under_locks, Inserted::Placed)).collect())
    }

    pub(crate) async fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Result<Vec<Placed>, StoreError> {
        let parts = rows.chunks(self.options.batch_rows).map(|part| self.submit(Work::Place(part.into())));
        Ok(try_join_all(parts).await?.into_iter().flatten().flatten().collect())
    }

    async fn submit(&self, work: Work) -> Result<CreateResults, StoreError> {
        self.creations.submit(&self.runtime, self.options.statement_timeout, work).await
    }
}

/// Longest time for which a lane without a connection takes no calls if the server is reachable. The other lanes take
/// the calls.
const ASIDE: Duration = Duration::from_secs(1);

/// Runs one lane, a task that writes batches of creates, until the store closes.
pub(crate) async fn lane(
    inner: Arc<Inner>,
    mut link: Link,
    waiting: Arc<gather::Waiting<Work, CreateResults>>,
    stop: CancellationToken,
) {
    loop {
        if !link.is_up() && inner.readers.is_up() {
            inner.runtime.timeout(ASIDE, Box::pin(link.changed())).await;
        }
        let batch = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            batch = waiting.next(inner.options.batch_rows, inner.options.batch_bytes) => batch,
        };
        let Some(batch) = batch else { return };
        // A panic drops the calls of the batch, so that their callers panic too.
        if AssertUnwindSafe(inner.create(&link, batch)).catch_unwind().await.is_err() {
            tracing::error!("the transaction of a batch of creates panicked; the callers of these creates panic too");
        }
    }
}

impl Inner {
    async fn create(&self, link: &Link, batch: Vec<Job>) {
        let works: Vec<Work> = batch.iter().map(|job| job.work.clone()).collect();
        match self.try_create(link, &works).await {
            Ok(created) => {
                let placed = self.confirm_placements(link, &works, created).await;
                batch.into_iter().zip(placed).for_each(|(job, placed)| job.respond(Ok(placed)));
            }
            // If the server rejects one row, the other calls of the batch must still succeed.
            Err(failure) if batch.len() > 1 && is_about_a_row(&failure) => {
                for job in batch {
                    Box::pin(self.create(link, vec![job])).await;
                }
            }
            Err(failure) => {
                let error = self.record_failure(failure);
                batch.into_iter().for_each(|job| job.respond(Err(error.clone())));
            }
        }
    }

    /// Reads `closed` after the rows are durable, and returns the placement of each row. The placement is confirmed if
    /// the row is after `closed` and no owner has reopened the poller.
    async fn confirm_placements(
        &self,
        link: &Link,
        works: &[Work],
        created: Vec<Vec<bool>>,
    ) -> Vec<Vec<Option<Placed>>> {
        let rows = works.iter().flat_map(|work| (0..work.rows()).map(|at| work.row(at).0));
        let pollers: Vec<PollerId> = rows.collect::<BTreeSet<_>>().into_iter().collect();
        let read = async { pollers_on(&*link.session().await?, &pollers).await };
        // If the read of `closed` fails, the rows stay unconfirmed and the creator confirms their placement.
        let states = read.await.unwrap_or_default();
        let states: HashMap<PollerId, PollerState> = pollers.iter().copied().zip(states).collect();
        let placed = |work: &Work, at: usize| {
            let (poller, position) = work.row(at);
            let is_confirmed = |state: &PollerState| state.reopened == 0 && position > state.positions.closed;
            Placed { position, settled: states.get(&poller).is_some_and(is_confirmed) }
        };
        let of_work = |(work, created): (&Work, Vec<bool>)| {
            created.into_iter().enumerate().map(|(at, created)| created.then(|| placed(work, at))).collect()
        };
        works.iter().zip(created).map(of_work).collect()
    }

    async fn try_create(&self, link: &Link, works: &[Work]) -> Result<Vec<Vec<bool>>, Failure> {
        let mut all_new = true;
        let mut tries_left = TRIES;
        loop {
            let session = link.session().await?;
            let tried =
                if all_new { self.create_all(&session, works).await } else { self.create_new(&session, works).await };
            let Err(failure) = tried else { return tried };
            tries_left -= 1;
            match failure.code().map(|code| code.code().to_owned()).as_deref() {
                Some("23505") if all_new => all_new = false,
                Some("23514") if tries_left > 0 => self.epochs.partitions.forget(),
                _ if failure.is_conflict() && tries_left > 0 => {}
                _ => return Err(failure),
            }
        }
    }

    async fn columns_of(&self, works: &[Work]) -> Result<(ScheduleColumns, due::Columns), Failure> {
        let mut schedules = ScheduleColumns::default();
        let mut rows = Vec::new();
        for work in works {
            match work {
                Work::Insert(inserts) => {
                    for Insert { schedule, due, .. } in &**inserts {
                        schedules.push(&Head::new(schedule), schedule);
                        rows.push((schedule.poller, *due));
                    }
                }
                Work::Place(placed) => rows.extend_from_slice(placed),
            }
        }
        let due = due::Columns::of(rows.into_iter(), self.runtime.now());
        let missing = self.epochs.partitions.missing(&due.partitions);
        if !missing.is_empty() {
            self.make_partitions(&missing).await?;
        }
        Ok((schedules, due))
    }

    async fn create_all(&self, session: &Session, works: &[Work]) -> Result<Vec<Vec<bool>>, Failure> {
        let (schedules, due) = self.columns_of(works).await?;
        if schedules.incarnations.is_empty() {
            self.write_due(session, &due).await?;
        } else {
            let (created, near, far) = (schedule_parameters(&schedules), due.near.parameters(), due.far.parameters());
            let parameters = [created.as_slice(), &near, &far].concat();
            query(session, CREATE, &parameters).await?;
        }
        Ok(works.iter().map(|work| vec![true; work.rows()]).collect())
    }

    async fn write_due(&self, session: &Session, due: &due::Columns) -> Result<(), Failure> {
        let [near, far] = due::statements(true);
        if !due.near.is_empty() {
            query(session, near, &due.near.parameters()).await?;
        }
        if !due.far.is_empty() {
            query(session, far, &due.far.parameters()).await?;
        }
        Ok(())
    }

    /// Creates the new rows of a batch, in a transaction on the lane's own connection. Calls of other lanes do not wait
    /// for this transaction.
    async fn create_new(&self, session: &Session, works: &[Work]) -> Result<Vec<Vec<bool>>, Failure> {
        let run = async |text: &str| session.within(session.client().batch_execute(text)).await;
        let begun = self.runtime.monotonic();
        run("begin").await?;
        let creating = async {
            let (schedules, _) = self.columns_of(works).await?;
            let rows = query(session, CREATE_NEW, &schedule_parameters(&schedules)).await?;
            let new: std::collections::HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
            let created = created_rows(works, new);
            let is_new = |(insert, created): (&Insert, &bool)| created.then_some((insert.schedule.poller, insert.due));
            let rows = works.iter().zip(&created).flat_map(|(work, created)| match work {
                Work::Insert(inserts) => inserts.iter().zip(created).filter_map(is_new).collect(),
                Work::Place(placed) => placed.to_vec(),
            });
            self.write_due(session, &due::Columns::of(rows, self.runtime.now())).await?;
            run("commit").await?;
            self.commit_seconds.observe(self.runtime.monotonic().since(begun).as_secs_f64());
            Ok(created)
        };
        let created: Result<_, Failure> = creating.await;
        if created.is_err() && run("rollback").await.is_err() {
            session.abandon();
        }
        created
    }
}

/// Returns for each row of the calls whether the transaction created it. If several rows have the same new incarnation,
/// the transaction created only the first of these rows.
fn created_rows(works: &[Work], mut new: std::collections::HashSet<Uuid>) -> Vec<Vec<bool>> {
    let mut created = Vec::with_capacity(works.len());
    for work in works {
        created.push(match work {
            Work::Insert(inserts) => {
                inserts.iter().map(|insert| new.remove(&uuid(insert.schedule.incarnation))).collect()
            }
            Work::Place(rows) => vec![true; rows.len()],
        });
    }
    created
}

fn schedule_parameters(columns: &ScheduleColumns) -> [&(dyn ToSql + Sync); 11] {
    [
        &columns.incarnations,
        &columns.tenants,
        &columns.pollers,
        &columns.ids,
        &columns.revisions,
        &columns.statuses,
        &columns.created,
        &columns.updated,
        &columns.nexts,
        &columns.specs,
        &columns.labels,
    ]
}

impl Inner {
    /// Converts a failure into a store error. If the error is [`StoreError::Full`], records that the store is full.
    pub(crate) fn record_failure(&self, failure: Failure) -> StoreError {
        let error = store_error(failure);
        if matches!(error, StoreError::Full(_)) {
            self.full_until.store_from(self.runtime.monotonic());
        }
        error
    }
}

//! Deletion of old history: first the runs of past days and old past timings, then the ended or cancelled schedules
//! without runs.
//!
//! The store deletes all runs of a day at once by dropping their partition, if no tenant keeps its runs of this day. It
//! finds other rows by an index, and deletes them in short transactions that wait for no lock. Each tenant has a limit,
//! by its class of retention.
//!
//! The store deletes no history after the position of a due row that is still after its poller's `done`. The owner of
//! such a due row needs the run records to find out whether it has already fired the row.
//!
//! docs/decisions/0096-delete-history-by-daily-partitions.md and
//! docs/decisions/0243-retain-runs-by-the-class-of-their-tenant.md give the reasons for the design.

mod counts;
mod limits;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::{Incarnation, Status, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Session};
use runtime::Monotonic;
use uuid::Uuid;

pub(crate) use self::counts::NO_TENANT;
use self::limits::{Limits, Split};
use crate::connections::query;
use crate::engine::Inner;
use crate::partition::{DAY, Edge, Family, drop_unless, existing, existing_by_edge, has_work, is_true};
use crate::read::tenant_in;
use crate::rows::{limit_number, status_number, uuid};

/// Longest time for which one call deletes rows of one kind, so that no kind uses the time of the others. The next call
/// continues the deletion.
const TURN: Duration = Duration::from_secs(10);
/// Time for which the limits of a call are valid. The call then reads the tenants again before it deletes more runs.
const LIMITS_VALID: Duration = Duration::from_secs(1);
/// Number of rows that one statement reads, and maximum number of rows that one transaction deletes.
const PAGE: usize = 1_000;
/// Highest number of the state of a run. The number 0 is the state of a run that will be retried.
const STATE_MAX: i16 = 4;

/// Condition that is true if the store must keep the ended schedule `s`, because it still has a run, or a retried or
/// deferred due row after its poller's `done`. The condition assumes that the members' clocks differ by less than a day.
/// The nominal instants of the schedule's runs and due rows are then at most a day after its end. The condition therefore
/// searches few partitions for runs. It looks up the due rows by an index, because a hash table of all due rows would be
/// large.
macro_rules! has_work_left {
    () => {
        "(exists (
            select from reveille.run r where r.incarnation = s.incarnation and r.nominal <= s.ended_at + 86400000)
        or exists (
            select from reveille.due_near d
            where d.incarnation = s.incarnation and d.nominal <= s.ended_at + 86400000 and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1))
        or exists (
            select from reveille.due_far d
            where d.incarnation = s.incarnation and d.nominal <= s.ended_at + 86400000 and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1)))"
    };
}

/// Selects schedules that ended before $1, and returns a page of them after the position ($2, $3). The last column is
/// true if the store must keep the schedule: its tenant ($5) has an earlier limit ($6), or the schedule has work left.
const OVER: &str = concat!(
    "select s.ended_at, s.incarnation,
        coalesce((
            select s.ended_at >= l.before from unnest($5::bigint[], $6::bigint[]) l (tenant, before)
            where l.tenant = s.tenant), false)
        or ",
    has_work_left!(),
    " from reveille.schedule s
    where s.status <> 0 and s.ended_at < $1 and (s.ended_at, s.incarnation) > ($2, $3)
    order by s.ended_at, s.incarnation limit $4"
);
/// Selects ended or cancelled schedules of the tenant $1 that ended before $2 and were created before $3, and returns a
/// page of them after the incarnation $4. The columns are those of [`OVER`].
const OVER_OF_TENANT: &str = concat!(
    "select s.ended_at, s.incarnation, s.ended_at >= $2 or ",
    has_work_left!(),
    " from reveille.schedule s
    where s.tenant = $1 and s.status = $5 and s.is_current and s.incarnation < $3 and s.incarnation > $4
    order by s.incarnation limit $6"
);
/// Deletes the schedules in $1 that are still ended or cancelled. The statement skips a schedule that another
/// transaction has locked. The next sweep deletes it.
const FORGET_SCHEDULES: &str = "
    delete from reveille.schedule where incarnation in (
        select incarnation from reveille.schedule
        where incarnation = any($1::uuid[]) and status <> 0 and ended_at < $2
        order by incarnation for update skip locked)
    returning incarnation";
const FORGET_ASKED: &str = "
    delete from reveille.asked where incarnation in (
        select incarnation from reveille.asked where incarnation > $1 and incarnation < $2 order by incarnation limit $3)
    returning incarnation";
/// Selects past timings that were written before $1, and returns a page of them after the position ($2, $3, $4).
const PAST_TIMINGS: &str = "
    select written_at, incarnation, revision, tenant from reveille.past_timing
    where written_at < $1 and (written_at, incarnation, revision) > ($2, $3, $4)
    order by written_at, incarnation, revision limit $5";
/// Deletes past timings by their keys. A past timing never changes after the page with its key was read.
const FORGET_PAST_TIMINGS: &str = "
    delete from reveille.past_timing where (incarnation, revision) in (
        select t.incarnation, t.revision from reveille.past_timing t
        join unnest($1::uuid[], $2::bigint[]) k (incarnation, revision) using (incarnation, revision)
        order by t.incarnation, t.revision for update of t skip locked)
    returning incarnation";
const FORGET_REST: &str = "
    delete from reveille.run_rest r using (
        select incarnation, nominal, version from reveille.run_rest
        where state <> 0 and written_at < $1 and nominal < $1
        and greatest(written_at, nominal) < coalesce((
            select l.before from unnest($3::bigint[], $4::bigint[]) l (tenant, before)
            where l.tenant = run_rest.tenant), $5)
        order by written_at limit $2 for update skip locked) o
    where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version
    returning r.incarnation";

/// Selects the tenants with runs of the days from $1 to $2 (exclusive).
const TENANTS_OF_DAYS: &str = "
    select tenant from reveille.run_usage where day >= $1 and day < $2 group by tenant having sum(bytes) > 0";

/// Position of a sweep, which examines rows in the order of a time: the ended schedules in the order of their ends, or
/// the past timings in the order in which they were written. The sweep has examined the rows up to this position.
pub(crate) struct Sweep(Mutex<Place>);

/// Time, incarnation and revision of a row. The revision is 0 for ended schedules.
type Place = (i64, Uuid, i64);

impl Default for Sweep {
    fn default() -> Self {
        Sweep(Mutex::new(Sweep::START))
    }
}

impl Sweep {
    const START: Place = (i64::MIN, Uuid::nil(), 0);

    fn get(&self) -> Place {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, place: Place) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// Clocks of one call: the clock of the member, which computed the limit `default` when it showed `now`, and the clock of
/// the database.
#[derive(Clone, Copy)]
struct Clocks {
    now: Timestamp,
    default: Timestamp,
    database: Timestamp,
}

/// Limits of one call, which follow the changes of tenants while the call deletes rows.
struct Current {
    clocks: Clocks,
    /// Latest limit that no due row without an outcome prevents.
    usable: Timestamp,
    limits: Limits,
    read_at: Monotonic,
}

impl Inner {
    /// Deletes history. The limit of a tenant without a class is `default`, which the caller computed when its clock
    /// showed `now`. Returns the number of dropped partitions and deleted rows. If the number is not 0, there may be
    /// more rows to delete.
    pub(crate) async fn forget(&self, now: Timestamp, default: Timestamp) -> Result<u64, Failure> {
        let session = self.history_link.session().await?;
        let rows = query(&session, "select (extract(epoch from clock_timestamp()) * 1000)::bigint", &[]).await?;
        let database = Timestamp::from_millis(rows.first().map_or(0, |row| row.get(0)));
        let clocks = Clocks { now, default, database };
        let read_at = self.runtime.monotonic();
        let (limits, unreadable) = read_limits(&session, clocks).await?;
        for tenant in unreadable {
            tracing::warn!(
                tenant,
                "history of the tenant not deleted because its row in reveille.tenant is malformed; restore the row, or \
                 upgrade this member if a later build wrote it"
            );
        }
        let Some(usable) = usable(&session, &limits).await? else { return Ok(0) };
        let mut current = Current { clocks, usable, limits: limits.capped(usable), read_at };
        // If one of these deletions fails, the store still makes the other deletions.
        let runs = self.forget_runs(&session, &mut current).await;
        self.refresh(&session, &mut current).await?;
        let limits = &current.limits;
        let parts = [
            runs,
            self.forget_rest(&session, limits).await,
            self.forget_past_timings(&session, limits).await,
            self.forget_counts(&session, limits).await,
            self.forget_schedules(&session, limits).await,
            self.forget_schedules_of_tenants(&session, limits).await,
            self.forget_asked(&session, limits.default).await,
            self.forget_inbox(&session, limits.default).await,
        ];
        parts.into_iter().sum()
    }

    fn turn_end(&self) -> Monotonic {
        self.runtime.monotonic() + TURN
    }

    /// Reads the tenants again if the last read was more than [`LIMITS_VALID`] ago. A tenant that chooses a longer class
    /// therefore keeps the runs that a call in progress has not deleted yet.
    async fn refresh(&self, session: &Session, current: &mut Current) -> Result<(), Failure> {
        let now = self.runtime.monotonic();
        if now >= current.read_at + LIMITS_VALID {
            current.limits = read_limits(session, current.clocks).await?.0.capped(current.usable);
            current.read_at = now;
        }
        Ok(())
    }

    async fn forget_runs(&self, session: &Session, current: &mut Current) -> Result<u64, Failure> {
        let until = self.turn_end();
        let mut deleted = Vec::new();
        for (partition, end) in existing_by_edge(session, Family::Runs, Edge::End, current.limits.latest()).await? {
            self.refresh(session, current).await?;
            deleted.push(self.forget_partition(session, &current.limits, &partition, end, until).await);
        }
        deleted.into_iter().sum()
    }

    /// Drops a partition, or deletes the runs of the tenants whose class has ended for all runs of the partition.
    async fn forget_partition(
        &self,
        session: &Session,
        limits: &Limits,
        partition: &str,
        end: Timestamp,
        until: Monotonic,
    ) -> Result<u64, Failure> {
        let split = limits.split(end);
        // The query runs before the store locks the partition, because it may read more than one row.
        if is_true(session, &format!("select {}", split.kept.have_run_in(partition))).await? {
            return self.forget_runs_in(session, limits, partition, end, until).await;
        }
        match self.drop_runs(session, partition, &split).await? {
            // A pending or late run of one tenant keeps the partition. The other runs of the classes must not wait for
            // it until the time of the tenants without a class ends.
            Dropped::Needed if split.before > limits.default => {
                self.forget_runs_in(session, limits, partition, end, until).await
            }
            Dropped::Needed | Dropped::Later => Ok(0),
            Dropped::Done => Ok(1),
        }
    }

    /// Drops a partition in which no tenant keeps its runs.
    async fn drop_runs(&self, session: &Session, partition: &str, split: &Split) -> Result<Dropped, Failure> {
        // The statement `summarise` updates the partition's BRIN index. Without it, the query on `written_at` would
        // read every block that no vacuum has summarised.
        let summarise = format!(
            "select count(brin_summarize_new_values(i.indexrelid))
             from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
             where i.indrelid = 'reveille.{partition}'::regclass and a.amname = 'brin'"
        );
        session.within(session.client().batch_execute(&summarise)).await?;
        let is_needed = format!(
            "select exists (select from reveille.{partition} where state = 0)
                 or exists (select from reveille.{partition} where written_at >= {}) or {}",
            split.before.as_millis(),
            split.kept.have_run_in(partition)
        );
        let lock = self.making_partitions.lock().await;
        if drop_unless(session, Family::Runs, partition, &is_needed).await? {
            return Ok(Dropped::Done);
        }
        drop(lock);
        Ok(if is_true(session, &is_needed).await? { Dropped::Needed } else { Dropped::Later })
    }

    /// Deletes the runs of the tenants whose class has ended for all runs of the partition, in the order of the index
    /// on the tenant. Other tenants keep their runs of the partition.
    async fn forget_runs_in(
        &self,
        session: &Session,
        limits: &Limits,
        partition: &str,
        end: Timestamp,
        until: Monotonic,
    ) -> Result<u64, Failure> {
        // The partition of the runs of earlier builds contains many days.
        let start = existing_by_edge(session, Family::Runs, Edge::Start, end).await?;
        let start = start.iter().find(|(name, _)| name == partition).map_or(0, |(_, start)| start.as_millis());
        let end_millis = end.as_millis();
        let days: [i64; 2] = [start, end_millis].map(|edge| edge.div_euclid(DAY));
        let tenants = query(session, TENANTS_OF_DAYS, &[&days[0], &days[1]]).await?;
        let tenants = tenants.iter().map(|row| row.get::<_, i64>(0)).filter(|tenant| limits.of(*tenant) >= end);
        let mut deleted = 0;
        for tenant in tenants {
            let before = limits.of(tenant).as_millis();
            for state in 1..=STATE_MAX {
                // A deletion through the parent table updates the usage of the tenant.
                let forget = format!(
                    "delete from reveille.run r using (
                         select incarnation, nominal, version from reveille.{partition}
                         where tenant = {tenant} and state = {state} and written_at < {before}
                         order by nominal, incarnation, version limit {PAGE} for update skip locked) o
                     where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version
                     and r.nominal < {end_millis}"
                );
                while self.runtime.monotonic() < until {
                    match session.within(session.client().execute(&forget, &[])).await? {
                        0 => break,
                        rows => deleted += rows,
                    }
                }
            }
        }
        Ok(deleted)
    }

    /// Deletes runs of the default partition.
    async fn forget_rest(&self, session: &Session, limits: &Limits) -> Result<u64, Failure> {
        let until = self.turn_end();
        let (latest, default) = (limits.latest().as_millis(), limits.default.as_millis());
        let (tenants, by_tenant) = limits.columns();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            let parameters: [&(dyn ToSql + Sync); 5] = [&latest, &limit_number(PAGE), &tenants, &by_tenant, &default];
            match query(session, FORGET_REST, &parameters).await?.len() {
                0 => break,
                deleted_rows => deleted += deleted_rows,
            }
        }
        Ok(count(deleted))
    }

    async fn forget_past_timings(&self, session: &Session, limits: &Limits) -> Result<u64, Failure> {
        let until = self.turn_end();
        let latest = limits.latest().as_millis();
        let is_over = |row: &&Row| row.get::<_, i64>(0) < limits.of(row.get(3)).as_millis();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            let (written_at, incarnation, revision) = self.timing_sweep.get();
            let limit = limit_number(PAGE);
            let parameters: [&(dyn ToSql + Sync); 5] = [&latest, &written_at, &incarnation, &revision, &limit];
            let page = query(session, PAST_TIMINGS, &parameters).await?;
            let Some(last) = page.last() else {
                self.timing_sweep.set(Sweep::START);
                break;
            };
            let over = page.iter().filter(is_over).map(|row| (row.get::<_, Uuid>(1), row.get::<_, i64>(2)));
            let (incarnations, revisions): (Vec<Uuid>, Vec<i64>) = over.unzip();
            if !incarnations.is_empty() {
                deleted += query(session, FORGET_PAST_TIMINGS, &[&incarnations, &revisions]).await?.len();
            }
            self.timing_sweep.set((last.get(0), last.get(1), last.get(2)));
        }
        Ok(count(deleted))
    }

    async fn forget_schedules(&self, session: &Session, limits: &Limits) -> Result<u64, Failure> {
        let until = self.turn_end();
        let before = limits.default.as_millis();
        let (tenants, by_tenant) = limits.columns();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            let (ended_at, incarnation, _) = self.schedule_sweep.get();
            let limit = limit_number(PAGE);
            let parameters: [&(dyn ToSql + Sync); 6] = [&before, &ended_at, &incarnation, &limit, &tenants, &by_tenant];
            let page = query(session, OVER, &parameters).await?;
            let Some(last) = page.last() else {
                self.schedule_sweep.set(Sweep::START);
                break;
            };
            deleted += forget_over(session, &page, before).await?;
            self.schedule_sweep.set((last.get(0), last.get(1), 0));
        }
        Ok(count(deleted))
    }

    /// Deletes schedules of the tenants whose class is shorter than the time for a tenant without a class.
    async fn forget_schedules_of_tenants(&self, session: &Session, limits: &Limits) -> Result<u64, Failure> {
        let until = self.turn_end();
        let mut deleted = 0;
        for (tenant, before) in limits.after_default() {
            let (created_before, before) = (uuid(Incarnation::new(before, 0)), before.as_millis());
            for status in [Status::Ended, Status::Cancelled].map(status_number) {
                let mut after = Uuid::nil();
                while self.runtime.monotonic() < until {
                    let limit = limit_number(PAGE);
                    let parameters: [&(dyn ToSql + Sync); 6] =
                        [&tenant, &before, &created_before, &after, &status, &limit];
                    let page = query(session, OVER_OF_TENANT, &parameters).await?;
                    let Some(last) = page.last() else { break };
                    after = last.get(1);
                    deleted += forget_over(session, &page, before).await?;
                }
            }
        }
        Ok(count(deleted))
    }

    async fn forget_asked(&self, session: &Session, before: Timestamp) -> Result<u64, Failure> {
        let until = self.turn_end();
        let before = uuid(Incarnation::new(before, 0));
        let mut last = Uuid::nil();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            let deleted_rows = query(session, FORGET_ASKED, &[&last, &before, &limit_number(PAGE)]).await?;
            let Some(highest) = deleted_rows.iter().map(|row| row.get(0)).max() else { break };
            last = highest;
            deleted += deleted_rows.len();
        }
        Ok(count(deleted))
    }
}

/// Result of an attempt to drop a partition of runs.
enum Dropped {
    Done,
    /// The partition has a run that the store must keep.
    Needed,
    /// Another session uses the partition.
    Later,
}

/// Reads the tenants, and returns their limits. Also returns the tenants whose rows are malformed. The store keeps all
/// history of these tenants.
async fn read_limits(session: &Session, clocks: Clocks) -> Result<(Limits, Vec<i64>), Failure> {
    let rows = query(session, "select tenant, value from reveille.tenant", &[]).await?;
    let (mut tenants, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in &rows {
        // A member of a later build may have written a tenant that this member cannot decode.
        match tenant_in(row) {
            Ok(tenant) => tenants.push(tenant),
            Err(_) => unreadable.push(row.get(0)),
        }
    }
    let Clocks { now, default, database } = clocks;
    Ok((Limits::new(&tenants, now, default, database).without(&unreadable), unreadable))
}

/// Deletes the schedules of a page that the store need not keep.
async fn forget_over(session: &Session, page: &[Row], before: i64) -> Result<usize, Failure> {
    let is_over = |row: &&Row| !row.get::<_, bool>(2);
    let over: Vec<Uuid> = page.iter().filter(is_over).map(|row| row.get(1)).collect();
    if over.is_empty() {
        return Ok(0);
    }
    Ok(query(session, FORGET_SCHEDULES, &[&over, &before]).await?.len())
}

/// Returns the latest of the limits at or before which no due row is after its poller's `done`. `None` if all limits
/// have such a row.
async fn usable(session: &Session, limits: &Limits) -> Result<Option<Timestamp>, Failure> {
    for limit in limits.latest_first() {
        let Some(partition) = lagging(session, limit).await? else { return Ok(Some(limit)) };
        tracing::warn!(
            partition,
            %limit,
            "history not deleted because the partition contains old due rows without an outcome"
        );
    }
    Ok(None)
}

/// Returns a partition with a due row at or before `limit` and after its poller's `done`.
async fn lagging(session: &Session, limit: Timestamp) -> Result<Option<String>, Failure> {
    for family in Family::DUE {
        for partition in existing(session, family, Edge::Start, limit).await? {
            if is_true(session, &has_work(&partition, limit)).await? {
                return Ok(Some(partition));
            }
        }
    }
    Ok(None)
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

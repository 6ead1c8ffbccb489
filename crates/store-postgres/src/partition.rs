//! Partitions of the due rows and of the runs. This module chooses the partition of each row, and creates and drops
//! partitions.
//!
//! A due row for one of the coming days goes to the partition of that day. A later row goes to a wide partition, which
//! covers several weeks. The store can therefore drop the partition of a day soon after the owners have processed its
//! rows, and rows for the next ten years need few partitions. The time of the write determines the family (daily or
//! wide). Both families may therefore cover the same time, and a reader reads both.
//!
//! docs/decisions/0092-partition-due-rows-by-day.md gives the reasons for the design.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::Timestamp;
use postgres_client::tokio_postgres::SimpleQueryMessage;
use postgres_client::{Failure, Session};

/// Milliseconds of a day.
pub(crate) const DAY: i64 = 86_400_000;
/// Width of a wide partition in milliseconds.
const WEEKS: i64 = 16 * 7 * DAY;
/// Longest time from the write of a due row to the row's position (an instant), for a row in a daily partition. A due
/// row with a later position goes to a wide partition.
const NEAR: Duration = Duration::from_secs(8 * 86_400);
/// Longest time between the nominal instant of a run and the write of the run, for a run in a daily partition. An older
/// run goes to the default partition, because older runs are few and belong to arbitrary days.
const RUNS_BACK: Duration = Duration::from_secs(8 * 86_400);
/// Longest wait for a lock when the store creates or drops a partition. During this wait, other sessions wait for the
/// lock too. If the wait ends without the lock, the store retries the operation later.
const LOCK_WAIT: &str = "100ms";
/// Advisory lock that sessions hold while they create or drop partitions.
const LOCK: i64 = 0x5265_7665_696c_6c66;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Family {
    Near,
    Far,
    /// Partitions of the runs. The nominal instant of a run determines its partition.
    Runs,
}

impl Family {
    pub(crate) const DUE: [Family; 2] = [Family::Near, Family::Far];

    /// Returns the family of partitions for a due row at `position` that a member writes at `now`.
    pub(crate) fn of(position: Timestamp, now: Timestamp) -> Self {
        if position < now + NEAR { Family::Near } else { Family::Far }
    }

    fn table(self) -> &'static str {
        match self {
            Family::Near => "due_near",
            Family::Far => "due_far",
            Family::Runs => "run",
        }
    }

    fn width(self) -> i64 {
        match self {
            Family::Near | Family::Runs => DAY,
            Family::Far => WEEKS,
        }
    }
}

/// Partition of a table. It contains the due rows with positions, or the runs with nominal instants, from `start`
/// (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Partition {
    pub(crate) family: Family,
    start: i64,
}

impl Partition {
    pub(crate) fn of(family: Family, position: Timestamp) -> Self {
        let width = family.width();
        Partition { family, start: position.as_millis().div_euclid(width) * width }
    }

    /// Returns the partition of a run, or `None` if the run goes to the default partition.
    pub(crate) fn of_run(nominal: Timestamp, now: Timestamp) -> Option<Self> {
        let own = now - RUNS_BACK..now + Duration::from_secs(86_400);
        own.contains(&nominal).then(|| Partition::of(Family::Runs, nominal))
    }

    fn end(self) -> i64 {
        self.start.saturating_add(self.family.width())
    }

    /// Returns the name of the partition's table. The name contains the first day of the partition, for people who read
    /// the database.
    fn name(self) -> String {
        let day = jiff::Timestamp::from_millisecond(self.start).map(|start| start.strftime("%Y_%m_%d").to_string());
        let day = day.unwrap_or_else(|_| format!("day_{}", self.start.div_euclid(DAY)).replace('-', "minus_"));
        format!("{}_{day}", self.family.table())
    }

    /// Returns statements that create the partition as a separate table and then attach it. These statements do not
    /// wait for readers and writers. They create nothing if an existing partition already covers `start`, or if the
    /// default partition already contains runs of this range.
    fn create_statements(self) -> String {
        let (name, table, start, end) = (self.name(), self.family.table(), self.start, self.end());
        let rest = match self.family {
            Family::Near | Family::Far => "false".to_owned(),
            Family::Runs => {
                format!("exists (select from reveille.run_rest where nominal >= {start} and nominal < {end})")
            }
        };
        format!(
            "do $$ begin
                 if not exists (
                     select from pg_inherits i join pg_class c on c.oid = i.inhrelid
                     where i.inhparent = 'reveille.{table}'::regclass
                     and {} > {start} and coalesce({}, {start}) <= {start})
                 and not {rest} then
                     create table reveille.{name} (like reveille.{table} including defaults including constraints);
                     alter table reveille.{table} attach partition reveille.{name} for values from ({start}) to ({end});
                 end if;
             end $$;",
            Edge::End.bound(),
            Edge::Start.bound()
        )
    }
}

/// Set of the partitions that exist as far as this process knows.
#[derive(Default)]
pub(crate) struct Partitions {
    known: Mutex<HashSet<Partition>>,
}

impl Partitions {
    pub(crate) fn missing(&self, wanted: &BTreeSet<Partition>) -> Vec<Partition> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.iter().filter(|partition| !known.contains(partition)).copied().collect()
    }

    /// Clears the set of known partitions. The caller calls this method after a statement failed because another member
    /// had dropped a partition.
    pub(crate) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Creates missing partitions, each in its own transaction on `session`. The session must have no transaction under
    /// way.
    pub(crate) async fn make(&self, session: &Session, wanted: &[Partition]) -> Result<(), Failure> {
        for partition in wanted {
            let make = format!(
                "begin; select pg_advisory_xact_lock({LOCK}); set local lock_timeout = '{LOCK_WAIT}'; {} commit",
                partition.create_statements()
            );
            let created = session.within(session.client().batch_execute(&make)).await;
            if let Err(failure) = created {
                session.within(session.client().batch_execute("rollback")).await?;
                return Err(failure);
            }
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(*partition);
        }
        Ok(())
    }

    /// Creates the partitions of the coming days. Drops each partition of due rows whose range ends at or before `now`,
    /// if every row in it is at or before its poller's `done`. Returns the number of dropped partitions.
    pub(crate) async fn maintain(&self, session: &Session, now: Timestamp) -> Result<u64, Failure> {
        let days = 0..=NEAR.as_secs() / 86_400 + 1;
        let wanted = days.map(|day| Partition::of(Family::Near, now + Duration::from_secs(day * 86_400))).collect();
        self.make(session, &self.missing(&wanted)).await?;
        let wanted = [now, now + Duration::from_secs(86_400)].map(|day| Partition::of(Family::Runs, day)).into();
        if let Err(failure) = self.make(session, &self.missing(&wanted)).await {
            tracing::warn!(%failure, "partition for the runs of a day could not be created; retrying later");
        }
        let mut dropped = 0;
        for family in Family::DUE {
            for partition in existing(session, family, Edge::End, now).await? {
                let is_needed = has_work(&partition, Timestamp::MAX);
                dropped += u64::from(drop_unless(session, family, &partition, &is_needed).await?);
            }
        }
        Ok(dropped)
    }
}

/// Start or end of a partition's range. PostgreSQL prints the range as `FOR VALUES FROM ('1') TO ('2')`.
#[derive(Clone, Copy)]
pub(crate) enum Edge {
    Start,
    End,
}

impl Edge {
    /// Returns an SQL expression for this edge of the partition whose row in `pg_class` is `c`. The expression is null
    /// if the partition has no bound at this edge.
    pub(crate) fn bound(self) -> String {
        let word = match self {
            Edge::Start => "FROM",
            Edge::End => "TO",
        };
        format!("substring(pg_get_expr(c.relpartbound, c.oid) from '{word} \\(''?(-?[0-9]+)')::bigint")
    }
}

/// Returns the names of the partitions of `family` whose `edge` is at or before `until`, the oldest first.
pub(crate) async fn existing(
    session: &Session,
    family: Family,
    edge: Edge,
    until: Timestamp,
) -> Result<Vec<String>, Failure> {
    let partitions = existing_by_edge(session, family, edge, until).await?;
    Ok(partitions.into_iter().map(|(name, _)| name).collect())
}

/// Returns the same partitions as [`existing`], each with its `edge`.
pub(crate) async fn existing_by_edge(
    session: &Session,
    family: Family,
    edge: Edge,
    until: Timestamp,
) -> Result<Vec<(String, Timestamp)>, Failure> {
    let bound = edge.bound();
    let list = format!(
        "select c.relname::text, {bound} from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'reveille.{}'::regclass and {bound} <= {} order by {bound}",
        family.table(),
        until.as_millis()
    );
    let rows = session.within(session.client().query(&list, &[])).await?;
    Ok(rows.iter().map(|row| (row.get(0), Timestamp::from_millis(row.get(1)))).collect())
}

/// Drops a partition, unless the query `is_needed` returns true. Returns whether the partition no longer exists.
pub(crate) async fn drop_unless(
    session: &Session,
    family: Family,
    partition: &str,
    is_needed: &str,
) -> Result<bool, Failure> {
    if is_true(session, is_needed).await? {
        return Ok(false);
    }
    // Another session may have written rows since the first query, so the query `is_needed` runs again under exclusive
    // locks. The statements below wait for the lock on the parent table, because readers and writers hold that lock
    // only briefly. They do not wait for the lock on the partition, because a vacuum or a dump may hold that lock for a
    // long time.
    let uncount = match family {
        Family::Near | Family::Far => String::new(),
        Family::Runs => format!(
            "delete from reveille.run_usage u using pg_class c
             where c.oid = 'reveille.{partition}'::regclass
             and u.day >= coalesce({} / {DAY}, u.day) and u.day < {} / {DAY};",
            Edge::Start.bound(),
            Edge::End.bound()
        ),
    };
    let drop = format!(
        "begin; select pg_advisory_xact_lock({LOCK});
         set local lock_timeout = '{LOCK_WAIT}'; set local enable_bitmapscan = on;
         lock table only reveille.{} in access exclusive mode;
         lock table reveille.{partition} in access exclusive mode nowait;
         do $$ begin if not ({is_needed}) then {uncount} drop table reveille.{partition}; end if; end $$;
         commit",
        family.table()
    );
    match session.within(session.client().batch_execute(&drop)).await {
        Ok(()) => is_true(session, &format!("select to_regclass('reveille.{partition}') is null")).await,
        Err(failure) => {
            session.within(session.client().batch_execute("rollback")).await?;
            // The next call tries to drop the partition again.
            if failure.is_conflict() { Ok(false) } else { Err(failure) }
        }
    }
}

/// Runs a query whose result is true or false, and returns the result.
pub(crate) async fn is_true(session: &Session, query: &str) -> Result<bool, Failure> {
    let statements = format!("begin; set local enable_bitmapscan = on; {query}; commit");
    let responses = session.within(session.client().simple_query(&statements)).await;
    match responses {
        Ok(responses) => Ok(responses.iter().any(|response| match response {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        })),
        Err(failure) => {
            session.within(session.client().batch_execute("rollback")).await?;
            Err(failure)
        }
    }
}

/// Returns a query whose result is true if a partition has a due row at or before `until` and after its poller's
/// `done`. The query finds the pollers by an index. For each poller, it reads only the last row at or before `until`.
pub(crate) fn has_work(partition: &str, until: Timestamp) -> String {
    format!(
        "with recursive poller (poller) as (
             (select poller from reveille.{partition} order by poller limit 1)
             union all
             select (select d.poller from reveille.{partition} d where d.poller > p.poller order by d.poller limit 1)
             from poller p where p.poller is not null
         )
         select exists (
             select from poller p
             where p.poller is not null
             and (select d.position from reveille.{partition} d where d.poller = p.poller and d.position <= {}
                  order by d.position desc limit 1)
                 > coalesce((select done from reveille.position where poller = p.poller), -1)
         )",
        until.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_range_of_a_partition_contains_its_due_rows() {
        let now = Timestamp::from_millis(1_800_000_000_123);
        let soon = now + Duration::from_secs(3_600);
        let late = now + Duration::from_secs(400 * 86_400);
        assert_eq!((Family::of(soon, now), Family::of(late, now)), (Family::Near, Family::Far));
        for (family, at) in [(Family::Near, soon), (Family::Far, late), (Family::Near, Timestamp::MIN)] {
            let partition = Partition::of(family, at);
            assert!((partition.start..partition.end()).contains(&at.as_millis()), "{partition:?}");
            assert_eq!(Partition::of(family, Timestamp::from_millis(partition.start)), partition);
            assert_ne!(Partition::of(family, Timestamp::from_millis(partition.end())), partition);
        }
        assert_eq!(Partition::of(Family::Near, soon).name(), "due_near_2027_01_15");
        assert_eq!(Partition::of(Family::Far, Timestamp::MAX).name(), "due_far_9999_10_28");
    }
}

//! Partitions of the due rows and of the runs: which row belongs where, making them in time, dropping those that nobody needs.
//!
//! A due row for one of the days to come goes to a partition of that day, a later one to a wide partition. Days that are done
//! can then be dropped soon, and ten years ahead are few partitions. Which it is depends on when a row is written, so the
//! two families of due partitions may hold the same stretch of time; whoever reads, reads both.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::Timestamp;
use postgres_client::{Failure, Session};

const DAY: i64 = 86_400_000;
/// Of a wide partition.
const WEEKS: i64 = 16 * 7 * DAY;
/// How far ahead of its writing a row is one of the days to come.
const NEAR: Duration = Duration::from_secs(8 * 86_400);
/// Keeps two who make partitions apart, and those who drop them.
const LOCK: i64 = 0x5265_7665_696c_6c66;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Family {
    Near,
    Far,
    /// By their nominal instants.
    Runs,
}

impl Family {
    pub(crate) const DUE: [Family; 2] = [Family::Near, Family::Far];

    /// Of a due row that is written at `now`.
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

/// Positions, or nominal instants, from `start`, included, to `end`, not included.
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

    fn end(self) -> i64 {
        self.start.saturating_add(self.family.width())
    }

    /// With the first day in it, for whoever looks at the database.
    fn name(self) -> String {
        let day = jiff::Timestamp::from_millisecond(self.start).map(|start| start.strftime("%Y_%m_%d").to_string());
        let day = day.unwrap_or_else(|_| format!("day_{}", self.start.div_euclid(DAY)).replace('-', "minus_"));
        format!("{}_{day}", self.family.table())
    }

    /// Made beside its table, and then attached: that does not wait for those who read and write there.
    fn make(self) -> String {
        let (name, table, start, end) = (self.name(), self.family.table(), self.start, self.end());
        format!(
            "create table reveille.{name} (like reveille.{table} including defaults including constraints);
             alter table reveille.{table} attach partition reveille.{name} for values from ({start}) to ({end});"
        )
    }
}

/// What this process knows to be there.
#[derive(Default)]
pub(crate) struct Partitions {
    known: Mutex<HashSet<Partition>>,
}

impl Partitions {
    pub(crate) fn missing(&self, wanted: &BTreeSet<Partition>) -> Vec<Partition> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.iter().filter(|partition| !known.contains(partition)).copied().collect()
    }

    /// After a statement met no partition: another member has dropped one.
    pub(crate) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes those that are not there, in a transaction of its own on `session`, which has none under way.
    pub(crate) async fn make(&self, session: &Session, wanted: &[Partition]) -> Result<(), Failure> {
        for partition in wanted {
            let make = format!(
                "begin; select pg_advisory_xact_lock({LOCK});
                 do $$ begin if to_regclass('reveille.{}') is null then {} end if; end $$; commit",
                partition.name(),
                partition.make()
            );
            let made = session.within(session.client().batch_execute(&make)).await;
            if let Err(failure) = made {
                session.within(session.client().batch_execute("rollback")).await?;
                return Err(failure);
            }
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(*partition);
        }
        Ok(())
    }

    /// Makes the partitions of the days to come, and drops the due ones that end at or before `now` and hold no row after
    /// its poller's `done`. How many were dropped.
    pub(crate) async fn maintain(&self, session: &Session, now: Timestamp) -> Result<u64, Failure> {
        let days = 0..=NEAR.as_secs() / 86_400 + 1;
        let mut wanted: BTreeSet<Partition> =
            days.map(|day| Partition::of(Family::Near, now + Duration::from_secs(day * 86_400))).collect();
        wanted.extend([now, now + Duration::from_secs(86_400)].map(|day| Partition::of(Family::Runs, day)));
        self.make(session, &self.missing(&wanted)).await?;
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

/// The bound of a partition that [`existing`] looks at, as PostgreSQL writes it: `FOR VALUES FROM ('1') TO ('2')`.
#[derive(Clone, Copy)]
pub(crate) enum Edge {
    Start,
    End,
}

/// The partitions of `family` that start, or end, at or before `until`, by name, the oldest first.
pub(crate) async fn existing(
    session: &Session,
    family: Family,
    edge: Edge,
    until: Timestamp,
) -> Result<Vec<String>, Failure> {
    let list = "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
                where i.inhparent = to_regclass('reveille.' || $1)
                and substring(pg_get_expr(c.relpartbound, c.oid) from $2 || ' \\(''?(-?[0-9]+)')::bigint <= $3
                order by c.relname";
    let edge = match edge {
        Edge::Start => "FROM",
        Edge::End => "TO",
    };
    let rows = session.within(session.client().query(list, &[&family.table(), &edge, &until.as_millis()])).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Drops it, unless the query `is_needed` says `true`; whether it is gone.
pub(crate) async fn drop_unless(
    session: &Session,
    family: Family,
    partition: &str,
    is_needed: &str,
) -> Result<bool, Failure> {
    if says(session, is_needed).await? {
        return Ok(false);
    }
    // Somebody may have written there since: once nobody else can, look again. Readers and writers take the locks in the
    // same order, and none of them holds them for long.
    let begin = format!(
        "begin; set local lock_timeout = '1s'; select pg_advisory_xact_lock({LOCK});
         lock table only reveille.{} in access exclusive mode; lock table reveille.{partition} in access exclusive mode",
        family.table()
    );
    let dropping = async {
        session.within(session.client().batch_execute(&begin)).await?;
        if says(session, is_needed).await? {
            session.within(session.client().batch_execute("rollback")).await?;
            return Ok(false);
        }
        let drop = format!("drop table reveille.{partition}; commit");
        session.within(session.client().batch_execute(&drop)).await?;
        Ok(true)
    };
    let dropped: Result<bool, Failure> = dropping.await;
    if dropped.is_err() {
        session.within(session.client().batch_execute("rollback")).await?;
    }
    match dropped {
        // Somebody holds a lock for long; the next round tries again.
        Err(failure) if failure.is_conflict() => Ok(false),
        other => other,
    }
}

/// The answer of a query that says yes or no.
pub(crate) async fn says(session: &Session, query: &str) -> Result<bool, Failure> {
    Ok(session.within(session.client().query_one(query, &[])).await?.get(0))
}

/// Asks whether a due partition has a row at or before `until` and after its poller's `done`. Looks at the last such row of
/// each poller only, from one to the next by index.
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
    fn a_row_belongs_to_the_partition_around_it() {
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

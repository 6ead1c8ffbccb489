//! History that is over for long: the runs of past days, and then the schedules that are over and have no run left.
//!
//! A day of runs goes at once, with its partition. Schedules, and the incarnations of puts that had no need of them, go by
//! index in short transactions that wait for nobody; they are few beside the due rows and the runs.
//!
//! Nothing of history goes while a row that was due before `before` is not done: its owner asks the records whether it was
//! fired, and must find them.

use std::time::Duration;

use domain::{Incarnation, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Session};
use uuid::Uuid;

use crate::connections::query;
use crate::partition::{Edge, Family, drop_unless, existing, has_work, says};
use crate::rows::{limit_number, uuid};

/// Schedules that are looked at in one statement, and that go in one transaction.
const SCHEDULES: usize = 1_000;
/// Incarnations of puts that go in one transaction.
const ASKED: usize = 10_000;

/// Schedules that were over before $1, from the one after ($2, $3) on, and whether anything of each is left: a run, or a row
/// that is later than its instant (a retry, or what was put off) and not done.
const OVER: &str = "
    select s.ended_at, s.incarnation,
        exists (select from reveille.run r where r.incarnation = s.incarnation)
        or exists (
            select from reveille.due_near d
            where d.incarnation = s.incarnation and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1))
        or exists (
            select from reveille.due_far d
            where d.incarnation = s.incarnation and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1))
    from reveille.schedule s
    where s.ended_at is not null and s.ended_at < $1 and (s.ended_at, s.incarnation) > ($2, $3)
    order by s.ended_at, s.incarnation limit $4";
/// Those of $1 that are over still. One that somebody holds stays for the next time.
const FORGET_SCHEDULES: &str = "
    delete from reveille.schedule where incarnation in (
        select incarnation from reveille.schedule where incarnation = any($1::uuid[]) and ended_at < $2
        order by incarnation for update skip locked)
    returning incarnation";
const FORGET_ASKED: &str = "
    delete from reveille.asked where incarnation in (
        select incarnation from reveille.asked where incarnation < $1 order by incarnation limit $2)
    returning incarnation";

/// Forgets what was over before `before`, which was reckoned by the clock that shows `now`. How many partitions and rows went.
pub(crate) async fn forget(session: &Session, now: Timestamp, before: Timestamp) -> Result<u64, Failure> {
    let rows = query(session, "select (extract(epoch from clock_timestamp()) * 1000)::bigint", &[]).await?;
    let database = rows.first().map_or(0, |row| row.get(0));
    let before = before_by_both(now, before, Timestamp::from_millis(database));
    for family in Family::DUE {
        for partition in existing(session, family, Edge::Start, before).await? {
            if says(session, &has_work(&partition, before)).await? {
                tracing::debug!(partition, "no history is forgotten while a row of before is not done");
                return Ok(0);
            }
        }
    }
    Ok(forget_runs(session, before).await?
        + forget_schedules(session, before).await?
        + forget_asked(session, before).await?)
}

/// A clock that has leapt ahead, which nobody may have noticed yet, forgets nothing that the database's would not.
fn before_by_both(now: Timestamp, before: Timestamp, database: Timestamp) -> Timestamp {
    let ahead = now.as_millis().saturating_sub(database.as_millis());
    before - Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
}

async fn forget_runs(session: &Session, before: Timestamp) -> Result<u64, Failure> {
    // For the index on `written_at`, which is of ranges of pages.
    session.within(session.client().batch_execute("set enable_bitmapscan = on")).await?;
    let mut dropped = 0;
    for partition in existing(session, Family::Runs, Edge::End, before).await? {
        let is_needed = format!(
            "select exists (select from reveille.{partition} where state = 0)
                 or exists (select from reveille.{partition} where written_at >= {})",
            before.as_millis()
        );
        dropped += u64::from(drop_unless(session, Family::Runs, &partition, &is_needed).await?);
    }
    Ok(dropped)
}

async fn forget_schedules(session: &Session, before: Timestamp) -> Result<u64, Failure> {
    let before = before.as_millis();
    let mut last = (i64::MIN, Uuid::nil());
    let mut forgotten = 0;
    loop {
        let page = query(session, OVER, &[&before, &last.0, &last.1, &limit_number(SCHEDULES)]).await?;
        let Some(row) = page.last() else { return Ok(forgotten) };
        last = (row.get(0), row.get(1));
        let is_left = |row: &&Row| !row.get::<_, bool>(2);
        let over: Vec<Uuid> = page.iter().filter(is_left).map(|row| row.get(1)).collect();
        if !over.is_empty() {
            forgotten += count(&query(session, FORGET_SCHEDULES, &[&over, &before]).await?);
        }
    }
}

async fn forget_asked(session: &Session, before: Timestamp) -> Result<u64, Failure> {
    let before = uuid(Incarnation::new(before, 0));
    let mut forgotten = 0;
    loop {
        let gone = count(&query(session, FORGET_ASKED, &[&before, &limit_number(ASKED)]).await?);
        forgotten += gone;
        if gone == 0 {
            return Ok(forgotten);
        }
    }
}

fn count(rows: &[Row]) -> u64 {
    u64::try_from(rows.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_leapt_ahead_forgets_no_more_than_the_databases() {
        let (database, month) = (Timestamp::from_millis(1_800_000_000_000), Duration::from_secs(30 * 86_400));
        let year_ahead = database + Duration::from_secs(365 * 86_400);
        assert_eq!(before_by_both(year_ahead, year_ahead - month, database), database - month);
        let second_behind = database - Duration::from_secs(1);
        assert_eq!(before_by_both(second_behind, second_behind - month, database), second_behind - month);
    }
}

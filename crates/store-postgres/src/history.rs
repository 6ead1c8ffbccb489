//! Deletion of old history: first the runs of past days and old past timings, then the ended or cancelled schedules
//! without runs.
//!
//! The store deletes all runs of a day at once by dropping their partition. It finds other rows by an index, and
//! deletes them in short transactions that wait for no lock.
//!
//! The store deletes no history while a due row is older than the limit `before` and still after its poller's `done`.
//! The owner of such a due row needs the run records to find out whether it has already fired the row.
//!
//! docs/decisions/0096-delete-history-by-daily-partitions.md gives the reasons for the design.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::{Incarnation, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Session};
use runtime::Monotonic;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::partition::{Edge, Family, drop_unless, existing, has_work, is_true};
use crate::rows::{limit_number, uuid};

/// Longest time for which one call deletes rows. The next call continues the deletion.
const TURN: Duration = Duration::from_secs(30);
/// Number of rows that one statement reads, and maximum number of rows that one transaction deletes.
const PAGE: usize = 1_000;

/// Selects schedules that ended before $1, and returns a page of them after the position ($2, $3). The last column is
/// true if the store must keep the schedule. A schedule must stay if it still has a run, or a retried or deferred due
/// row after its poller's `done`. The query assumes that the members' clocks differ by less than a day. The nominal
/// instants of the schedule's runs and due rows are then at most a day after its end. The query therefore searches few
/// partitions for runs. It looks up the due rows by an index, because a hash table of all due rows would be large.
const OVER: &str = "
    select s.ended_at, s.incarnation,
        exists (
            select from reveille.run r where r.incarnation = s.incarnation and r.nominal <= s.ended_at + 86400000)
        or exists (
            select from reveille.due_near d
            where d.incarnation = s.incarnation and d.nominal <= s.ended_at + 86400000 and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1))
        or exists (
            select from reveille.due_far d
            where d.incarnation = s.incarnation and d.nominal <= s.ended_at + 86400000 and d.position > d.nominal
            and d.position > coalesce((select done from reveille.position p where p.poller = d.poller), -1))
    from reveille.schedule s
    where s.status <> 0 and s.ended_at < $1 and (s.ended_at, s.incarnation) > ($2, $3)
    order by s.ended_at, s.incarnation limit $4";
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
const FORGET_PAST_TIMINGS: &str = "
    delete from reveille.past_timing where (incarnation, revision) in (
        select incarnation, revision from reveille.past_timing
        where written_at < $1 order by written_at limit $2 for update skip locked)
    returning incarnation";
const FORGET_REST: &str = "
    delete from reveille.run_rest r using (
        select incarnation, nominal, version from reveille.run_rest
        where state <> 0 and written_at < $1 and nominal < $1
        order by written_at limit $2 for update skip locked) o
    where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version
    returning r.incarnation";

/// Position of the sweep, which examines the ended schedules in the order of their ends. The sweep has examined the
/// schedules up to this position.
pub(crate) struct Sweep(Mutex<(i64, Uuid)>);

impl Default for Sweep {
    fn default() -> Self {
        Sweep(Mutex::new(Sweep::START))
    }
}

impl Sweep {
    const START: (i64, Uuid) = (i64::MIN, Uuid::nil());

    fn get(&self) -> (i64, Uuid) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, place: (i64, Uuid)) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

impl Inner {
    /// Deletes history that ended before `before`. The caller computed `before` when its clock showed `now`. Returns
    /// the number of dropped partitions and deleted rows. If the number is not 0, there may be more rows to delete.
    pub(crate) async fn forget(&self, now: Timestamp, before: Timestamp) -> Result<u64, Failure> {
        let session = self.history_link.session().await?;
        let rows = query(&session, "select (extract(epoch from clock_timestamp()) * 1000)::bigint", &[]).await?;
        let database = rows.first().map_or(0, |row| row.get(0));
        let before = before_by_both(now, before, Timestamp::from_millis(database));
        for family in Family::DUE {
            for partition in existing(&session, family, Edge::Start, before).await? {
                if is_true(&session, &has_work(&partition, before)).await? {
                    tracing::warn!(
                        partition,
                        "history not deleted because the partition contains old due rows without an outcome"
                    );
                    return Ok(0);
                }
            }
        }
        let until = self.runtime.monotonic() + TURN;
        // If one of these deletions fails, the store still makes the other deletions.
        let parts = [
            self.forget_runs(&session, before).await,
            self.forget_pages(&session, FORGET_REST, before, until).await,
            self.forget_pages(&session, FORGET_PAST_TIMINGS, before, until).await,
            self.forget_schedules(&session, before, until).await,
            self.forget_asked(&session, before, until).await,
            self.forget_inbox(&session, before).await,
        ];
        parts.into_iter().sum()
    }

    async fn forget_runs(&self, session: &Session, before: Timestamp) -> Result<u64, Failure> {
        let mut dropped = Vec::new();
        for partition in existing(session, Family::Runs, Edge::End, before).await? {
            let drop = async {
                // The statement `summarise` updates the partition's BRIN index. Without it, the query on `written_at`
                // would read every block that no vacuum has summarised.
                let summarise = format!(
                    "select count(brin_summarize_new_values(i.indexrelid))
                     from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
                     where i.indrelid = 'reveille.{partition}'::regclass and a.amname = 'brin'"
                );
                session.within(session.client().batch_execute(&summarise)).await?;
                let is_needed = format!(
                    "select exists (select from reveille.{partition} where state = 0)
                         or exists (select from reveille.{partition} where written_at >= {})",
                    before.as_millis()
                );
                let _lock = self.making_partitions.lock().await;
                drop_unless(session, Family::Runs, &partition, &is_needed).await
            };
            dropped.push(drop.await.map(u64::from));
        }
        dropped.into_iter().sum()
    }

    /// Deletes rows by the statement `text`, a page at a time.
    async fn forget_pages(
        &self,
        session: &Session,
        text: &'static str,
        before: Timestamp,
        until: Monotonic,
    ) -> Result<u64, Failure> {
        let before = before.as_millis();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            match query(session, text, &[&before, &limit_number(PAGE)]).await?.len() {
                0 => break,
                deleted_rows => deleted += deleted_rows,
            }
        }
        Ok(count(deleted))
    }

    async fn forget_schedules(&self, session: &Session, before: Timestamp, until: Monotonic) -> Result<u64, Failure> {
        let before = before.as_millis();
        let mut deleted = 0;
        while self.runtime.monotonic() < until {
            let (ended_at, incarnation) = self.sweep.get();
            let page = query(session, OVER, &[&before, &ended_at, &incarnation, &limit_number(PAGE)]).await?;
            let Some(last) = page.last() else {
                self.sweep.set(Sweep::START);
                break;
            };
            let is_over = |row: &&Row| !row.get::<_, bool>(2);
            let over: Vec<Uuid> = page.iter().filter(is_over).map(|row| row.get(1)).collect();
            if !over.is_empty() {
                deleted += query(session, FORGET_SCHEDULES, &[&over, &before]).await?.len();
            }
            self.sweep.set((last.get(0), last.get(1)));
        }
        Ok(count(deleted))
    }

    async fn forget_asked(&self, session: &Session, before: Timestamp, until: Monotonic) -> Result<u64, Failure> {
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

/// Returns the earlier of two limits: the limit by the member's clock and the limit by the database's clock. A member
/// whose clock jumped ahead therefore deletes no rows that the store must keep by the database's clock.
fn before_by_both(now: Timestamp, before: Timestamp, database: Timestamp) -> Timestamp {
    let ahead = now.as_millis().saturating_sub(database.as_millis());
    before - Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_deletes_history_by_the_clock_with_the_earlier_time() {
        let (database, month) = (Timestamp::from_millis(1_800_000_000_000), Duration::from_secs(30 * 86_400));
        let year_ahead = database + Duration::from_secs(365 * 86_400);
        assert_eq!(before_by_both(year_ahead, year_ahead - month, database), database - month);
        let second_behind = database - Duration::from_secs(1);
        assert_eq!(before_by_both(second_behind, second_behind - month, database), second_behind - month);
    }
}

//! Listing of the runs of a tenant by time. The index `run_time` contains the runs of each state in the order of their
//! nominal instants (migration 0012). This module also creates the index of each partition that lacks one.
//!
//! docs/decisions/0240-list-runs-by-time.md gives the reasons for the design.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{RunOutline, RunStateKind};
use postgres_client::tokio_postgres::error::SqlState;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Session};
use runtime::Runtime;
use store::runs::EXAMINED_MAX;
use store::{Order, RunList, RunRead, StoreError};
use stored::run::kind_number;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::{OccurrenceColumns, limit_number, run_of, uuid};

/// SQL statements that read one page, in one of the two orders.
struct Statements {
    /// Reads one page for each of the states $2, in the order of the index, and merges the pages.
    of_tenant: &'static str,
    /// Reads one page for each of the schedules $2, in the order of the primary key, and merges the pages.
    of_schedules: &'static str,
}

/// Creates the statements. `$after` is the operator that compares an occurrence with the start of the page.
/// `$direction` is the direction of the order.
macro_rules! statements {
    ($after:literal, $direction:literal) => {
        Statements {
            of_tenant: statements!("unnest($2::smallint[]) as s (state)", "r.state = s.state", $after, $direction),
            of_schedules: statements!(
                "unnest($2::uuid[]) as s (incarnation)",
                "r.incarnation = s.incarnation",
                $after,
                $direction
            ),
        }
    };
    ($from:literal, $condition:literal, $after:literal, $direction:literal) => {
        concat!(
            "select r.tenant, r.incarnation, r.nominal, r.version, r.state, r.value from ",
            $from,
            " cross join lateral (select * from reveille.run r where r.tenant = $1 and ",
            $condition,
            " and r.nominal >= $3 and r.nominal < $4 and (r.nominal, r.incarnation, r.version) ",
            $after,
            " ($5, $6, $7) order by r.nominal ",
            $direction,
            ", r.incarnation ",
            $direction,
            ", r.version ",
            $direction,
            " limit $8) r order by r.nominal ",
            $direction,
            ", r.incarnation ",
            $direction,
            ", r.version ",
            $direction,
            " limit $8"
        )
    };
}

const OLDEST: Statements = statements!(">", "asc");
const NEWEST: Statements = statements!("<", "desc");

const IS_VALID: &str = "select indisvalid from pg_index where indexrelid = 'reveille.run_time'::regclass";
/// Selects the partitions of runs that have no part of the index `run_time`.
const WITHOUT_INDEX: &str = "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'reveille.run'::regclass and not exists (
        select from pg_index x join pg_inherits p on p.inhrelid = x.indexrelid
        where x.indrelid = c.oid and p.inhparent = 'reveille.run_time'::regclass)
    order by c.relname limit 1";

/// Takes the lock that excludes other processes from the creation of indexes.
const TRY_LOCK: &str = "select pg_try_advisory_lock(5937281861690354791)";
const LOCK_PERIOD: Duration = Duration::from_millis(100);

/// Knowledge of this process about the index `run_time`.
#[derive(Default)]
pub(crate) struct RunIndex {
    is_valid: AtomicBool,
}

impl Inner {
    pub(crate) async fn list_runs(&self, read: &RunRead) -> Result<RunList, StoreError> {
        if read.schedules.is_none() {
            self.check_run_index().await?;
        }
        let statements = match read.order {
            Order::Oldest => OLDEST,
            Order::Newest => NEWEST,
        };
        let tenant = i64::from(read.tenant.0);
        let kinds = RunStateKind::ALL.into_iter().filter(|kind| read.filter.state.is_none_or(|state| state == *kind));
        let states: Vec<i16> = kinds.map(|kind| i16::from(kind_number(kind))).collect();
        let (from, until) = (read.from.as_millis(), read.until.as_millis());
        let (nominal, incarnation, version) = start_of(read);
        // This method compares the conditions that the statement does not contain with the decoded runs.
        let is_by_state = read.filter.status.is_none() && read.filter.late_by.is_none();
        let is_exact = is_by_state && (read.schedules.is_none() || read.filter.state.is_none());
        let examined_max = if is_exact { read.limit.min(EXAMINED_MAX) } else { EXAMINED_MAX };
        // The statement reads one extra row to find out whether more rows follow the page.
        let rows_max = limit_number(examined_max) + 1;
        let schedules: Vec<Uuid> = read.schedules.iter().flatten().copied().map(uuid).collect();
        let (statement, selected): (_, &(dyn ToSql + Sync)) = match read.schedules {
            None => (statements.of_tenant, &states),
            Some(_) => (statements.of_schedules, &schedules),
        };
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&tenant, selected, &from, &until, &nominal, &incarnation, &version, &rows_max];
        let rows = self.readers.query(statement, parameters).await;
        let rows = rows.map_err(store_error)?;
        let has_more = rows.len() > examined_max;
        let mut runs = rows.iter().take(examined_max).map(run_of).collect::<Result<Vec<Run>, StoreError>>()?;
        let (examined, last) = (runs.len(), runs.last().map(|run| run.occurrence));
        runs.retain(|run| read.filter.matches(&RunOutline::of(run)));
        let mut next = last.filter(|_| has_more);
        if runs.len() > read.limit {
            runs.truncate(read.limit);
            next = runs.last().map(|run| run.occurrence);
        }
        Ok(RunList { runs, next, examined, unreadable: 0 })
    }

    async fn check_run_index(&self) -> Result<(), StoreError> {
        if self.run_index.is_valid.load(Ordering::Acquire) {
            return Ok(());
        }
        let rows = self.readers.query(IS_VALID, &[]).await.map_err(store_error)?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Err(StoreError::Unindexed(
                "the index of runs is incomplete; run `reveille store migrate` to complete it, or list the runs of a \
                 schedule"
                    .to_owned(),
            ));
        }
        self.run_index.is_valid.store(true, Ordering::Release);
        Ok(())
    }
}

/// Returns the nominal instant, the incarnation and the version after which the page starts.
fn start_of(read: &RunRead) -> (i64, Uuid, i64) {
    let Some(after) = read.after else {
        return match read.order {
            Order::Oldest => (i64::MIN, Uuid::nil(), i64::MIN),
            Order::Newest => (i64::MAX, Uuid::max(), i64::MAX),
        };
    };
    let start: OccurrenceColumns = [after].iter().collect();
    (start.nominals[0], start.incarnations[0], start.versions[0])
}

/// Creates the index of each partition that lacks one. Members can read and write runs during this call. A repeated
/// call continues after a failure.
pub(crate) async fn index_partitions(runtime: &Runtime, session: &Session) -> Result<(), Failure> {
    let mut is_alone = false;
    loop {
        let rows = query(session, WITHOUT_INDEX, &[]).await?;
        let Some(partition) = rows.first().map(|row| row.get::<_, String>(0)) else { break };
        if !is_alone {
            // A session that waits for the lock within a statement would delay the creation of an index. This function
            // therefore asks for the lock repeatedly.
            is_alone = query(session, TRY_LOCK, &[]).await?.first().is_some_and(|row| row.get(0));
            if !is_alone {
                runtime.sleep(LOCK_PERIOD).await;
            }
            continue;
        }
        match index_partition(session, &partition).await {
            // A member dropped the partition, because its history is old.
            Err(failure) if failure.code() == Some(SqlState::UNDEFINED_TABLE) => {}
            created => created?,
        }
    }
    if is_alone {
        session.run("select pg_advisory_unlock(5937281861690354791)").await?;
    }
    Ok(())
}

async fn index_partition(session: &Session, partition: &str) -> Result<(), Failure> {
    // An interrupted call may have left an invalid index.
    session.run(&format!("drop index concurrently if exists reveille.{partition}_time")).await?;
    let columns = "(tenant, state, nominal, incarnation, version)";
    session.run(&format!("create index concurrently {partition}_time on reveille.{partition} {columns}")).await?;
    session.run(&format!("alter index reveille.run_time attach partition reveille.{partition}_time")).await
}

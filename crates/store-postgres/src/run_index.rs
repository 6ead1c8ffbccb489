//! Index `run_time`, by which the store lists runs by time. The migration to version 12 declares the index, and this
//! module creates the index of each partition that lacks one, while members read and write runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres_client::tokio_postgres::error::SqlState;
use postgres_client::{Failure, Session};
use runtime::{Monotonic, Runtime};
use store::StoreError;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::store_error;
use crate::partition::Edge;

const IS_VALID: &str = "select indisvalid from pg_index where indexrelid = 'reveille.run_time'::regclass";
/// Selects the partitions of runs that have no part of the index `run_time`.
const WITHOUT_INDEX: &str = "select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'reveille.run'::regclass and not exists (
        select from pg_index x join pg_inherits p on p.inhrelid = x.indexrelid
        where x.indrelid = c.oid and p.inhparent = 'reveille.run_time'::regclass)
    order by c.relname";

/// Takes the lock that excludes other processes from the creation of indexes.
const TRY_LOCK: &str = "select pg_try_advisory_lock(5937281861690354791)";
const LOCK_PERIOD: Duration = Duration::from_millis(100);

/// Time for which this process uses the same list of partitions. An old list makes a listing slower, and not wrong.
const DAYS_FOR: Duration = Duration::from_secs(60);

/// Ranges of the partitions of the runs, in ascending order.
type Days = Arc<[(i64, i64)]>;

/// Knowledge of this process about the index `run_time` and the partitions of the runs.
#[derive(Default)]
pub(crate) struct RunIndex {
    is_valid: AtomicBool,
    days: Mutex<Option<(Monotonic, Days)>>,
}

impl Inner {
    /// Returns true if every partition has its part of the index.
    pub(crate) async fn has_run_index(&self) -> Result<bool, StoreError> {
        if !self.run_index.is_valid.load(Ordering::Acquire) {
            let rows = self.readers.query(IS_VALID, &[]).await.map_err(store_error)?;
            let is_valid = rows.first().is_some_and(|row| row.get(0));
            self.run_index.is_valid.store(is_valid, Ordering::Release);
            return Ok(is_valid);
        }
        Ok(true)
    }

    pub(crate) async fn check_run_index(&self) -> Result<(), StoreError> {
        match self.has_run_index().await? {
            true => Ok(()),
            false => Err(StoreError::Unindexed(
                "the index of runs is incomplete; run `reveille store migrate` to complete it, or list the runs of a \
                 schedule"
                    .to_owned(),
            )),
        }
    }

    /// Returns the ranges of the partitions of the runs in ascending order, in milliseconds, without the default
    /// partition. The list may be a minute old.
    pub(crate) async fn run_days(&self) -> Result<Days, StoreError> {
        let now = self.runtime.monotonic();
        let known = self.run_index.days.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, days)) = known.filter(|(read_at, _)| now < *read_at + DAYS_FOR) {
            return Ok(days);
        }
        let (start, end) = (Edge::Start.bound(), Edge::End.bound());
        let list = format!(
            "select coalesce({start}, {}), coalesce({end}, {})
             from pg_inherits i join pg_class c on c.oid = i.inhrelid
             where i.inhparent = 'reveille.run'::regclass and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
             order by 1",
            "'-9223372036854775808'::bigint",
            i64::MAX
        );
        let rows = self.readers.query_once(&list, &[]).await.map_err(store_error)?;
        let days: Days = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        *self.run_index.days.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, days.clone()));
        Ok(days)
    }
}

/// Creates the index of each partition that lacks one. Members can read and write runs during this call. A repeated
/// call continues after a failure. Before each partition, the function calls `progress` with the name of the partition
/// and the number of partitions that still lack their index.
pub(crate) async fn index_partitions(
    runtime: &Runtime,
    session: &Session,
    mut progress: impl FnMut(&str, usize),
) -> Result<(), Failure> {
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
        progress(&partition, rows.len());
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

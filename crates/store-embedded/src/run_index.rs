//! Build of the rows that list runs by time, in a store of an earlier build. A separate thread appends journal entries,
//! and each entry writes the rows of some runs. The store serves all calls during the build. Only a listing of the runs
//! of all schedules fails until the build is complete.
//!
//! A row of the index stores the progress, so the build continues after a restart. The state machine lists each new run
//! from the start.

use std::sync::Arc;
use std::time::Duration;

use journal::Journal;
use store::StoreError;
use tokio::sync::oneshot;

use crate::apply::Response;
use crate::background::{Shared, Ticket};
use crate::codec::entry::{Builder, Kind};
use crate::runs_by_time::IndexStep;

/// Number of runs whose rows one journal entry writes. Other entries wait for some milliseconds while the applying task
/// applies such an entry.
const RUNS_AT_ONCE: u32 = 500;
const RETRY: Duration = Duration::from_secs(10);

/// Builds the rows until they are complete or the store is closed.
pub(crate) async fn build(shared: Arc<Shared>, journal: Journal<Ticket>) {
    tracing::info!("index of the runs that an earlier build stored is being built");
    loop {
        match step(&shared, &journal).await {
            Ok(IndexStep::Incomplete) => {}
            Ok(IndexStep::Complete) => {
                tracing::info!("index of runs completed");
                return;
            }
            Ok(IndexStep::Damaged) => {
                tracing::error!(
                    "index of runs is incomplete because a stored run is damaged; listings of runs by time stay \
                     unavailable; restore a backup"
                );
                return;
            }
            Err(_) if shared.closed.is_cancelled() => return,
            Err(error) => {
                tracing::error!(%error, "index of runs could not be extended; retrying");
                if shared.runtime.timeout(RETRY, shared.closed.cancelled()).await.is_some() {
                    return;
                }
            }
        }
    }
}

/// Appends one journal entry and waits for its result.
async fn step(shared: &Shared, journal: &Journal<Ticket>) -> Result<IndexStep, StoreError> {
    let closed = || StoreError::Unavailable("the store is closed".to_owned());
    shared.wait_for_capacity().await;
    if shared.closed.is_cancelled() {
        return Err(closed());
    }
    let mut entries = Builder::new(Kind::IndexRuns, shared.options.entry_bytes);
    entries.index_runs(RUNS_AT_ONCE);
    for entry in entries.finish() {
        let (ticket, receiver) = oneshot::channel();
        journal.append(entry.into(), ticket).await.map_err(|error| shared.append_error(&error))?;
        match receiver.await.map_err(|_| closed())?? {
            Response::IndexedRuns(step) => return Ok(step),
            other => unreachable!("the response must have the kind of its journal entry, but it is {other:?}"),
        }
    }
    Ok(IndexStep::Incomplete)
}

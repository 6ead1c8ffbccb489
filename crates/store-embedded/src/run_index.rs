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

use crate::apply::{IndexStep, LISTED_RUN_BYTES, Response};
use crate::background::{Shared, Ticket};
use crate::codec::entry::{Builder, Kind};

/// Number of runs whose rows one journal entry writes. Other entries wait for about a millisecond while the applying
/// task applies such an entry.
const RUNS_AT_ONCE: u32 = 250;
/// Wait after a step that found no space on the disk, or that failed.
const RETRY: Duration = Duration::from_secs(10);
/// Wait after a step that found damage. Only an operator can repair the damage.
const RETRY_DAMAGED: Duration = Duration::from_secs(600);

/// Builds the rows until they are complete or the store is closed.
pub(crate) async fn build(shared: Arc<Shared>, journal: Journal<Ticket>) {
    tracing::info!("index of the runs that an earlier build stored is being built");
    loop {
        let begun = shared.runtime.monotonic();
        let wait = match step(&shared, &journal).await {
            // The build uses at most half of the time of the applying task.
            Ok(IndexStep::Incomplete { .. }) => shared.runtime.monotonic().since(begun),
            Ok(IndexStep::Complete { .. }) => {
                tracing::info!("index of runs completed");
                return;
            }
            Ok(IndexStep::Damaged) => {
                tracing::error!(
                    "index of runs is incomplete because stored data is damaged; listings of runs by time stay \
                     unavailable; restore a backup"
                );
                RETRY_DAMAGED
            }
            Err(_) if shared.closed.is_cancelled() => return,
            Err(error) => {
                tracing::warn!(%error, "index of runs could not be extended; retrying");
                RETRY
            }
        };
        if shared.runtime.timeout(wait, shared.closed.cancelled()).await.is_some() {
            return;
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
    let _space = shared.take_space(u64::from(RUNS_AT_ONCE) * LISTED_RUN_BYTES).await?;
    let mut entries = Builder::new(Kind::IndexRuns, shared.options.entry_bytes);
    entries.index_runs(RUNS_AT_ONCE);
    let entry = entries.finish().pop().expect("a builder with an item returns an entry");
    let (ticket, receiver) = oneshot::channel();
    journal.append(entry.into(), ticket).await.map_err(|error| shared.append_error(&error))?;
    match receiver.await.map_err(|_| closed())?? {
        Response::IndexedRuns(step) => Ok(step),
        other => unreachable!("the response must have the kind of its journal entry, but it is {other:?}"),
    }
}

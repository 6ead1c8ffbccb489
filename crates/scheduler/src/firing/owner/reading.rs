//! Reads of due rows. Each read runs in a task that sends its result to the owner.

use std::sync::Arc;

use futures_util::future::join_all;
use store::{DuePage, DueRead, StoreError};

use crate::firing::context::Context;
use crate::firing::messages::{ReadDone, ToOwner};
use crate::firing::window::{PollerIndex, ReadKind};
use crate::metrics::count_store_error;

/// Largest number of pollers that one call of the store reads.
const READS_PER_CALL: usize = 8;

pub(super) type Read = (PollerIndex, ReadKind, DueRead);

/// Distributes groups of reads to tasks. All reads of a group are in one task.
pub(super) fn tasks(groups: Vec<Vec<Read>>) -> Vec<Vec<Read>> {
    let mut tasks: Vec<Vec<Read>> = Vec::new();
    for group in groups {
        match tasks.last_mut().filter(|task| task.len() + group.len() <= READS_PER_CALL) {
            Some(task) => task.extend(group),
            None => tasks.push(group),
        }
    }
    tasks
}

/// Reads the due rows of several pollers, and sends all results in one message.
pub(super) async fn read_due(context: Arc<Context>, reads: Vec<Read>) {
    let done = join_all(reads.chunks(READS_PER_CALL).map(|reads| read_call(&context, reads))).await;
    let _owner_is_gone = context.to_owner.send(ToOwner::Read(done.into_iter().flatten().collect())).await;
}

/// Reads the due rows of several pollers in one call. If the call fails, reads each poller in its own call, so that a
/// damaged range of one poller does not delay the other pollers.
async fn read_call(context: &Context, reads: &[Read]) -> Vec<ReadDone> {
    let pages = match due(context, reads.iter().map(|(_, _, read)| *read).collect()).await {
        Ok(pages) => pages.into_iter().map(Some).collect(),
        Err(_) if reads.len() == 1 => vec![None],
        Err(_) => {
            let mut pages = Vec::with_capacity(reads.len());
            for (_, _, read) in reads {
                pages.push(due(context, vec![*read]).await.ok().and_then(|mut pages| pages.pop()));
            }
            pages
        }
    };
    reads.iter().zip(pages).map(|((index, kind, read), page)| (*index, *kind, *read, page)).collect()
}

async fn due(context: &Context, reads: Vec<DueRead>) -> Result<Vec<DuePage>, StoreError> {
    let response = context.store.due(reads).await;
    if let Err(error) = &response {
        count_store_error(&context.metrics, "due", error);
    }
    response
}

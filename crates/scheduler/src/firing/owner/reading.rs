//! Reads of due rows. Each read runs in a task that sends its result to the owner.

use std::sync::Arc;

use store::{DuePage, DueRead, StoreError};

use crate::firing::context::Context;
use crate::firing::messages::ToOwner;
use crate::firing::window::{PollerIndex, ReadKind};
use crate::metrics::count_store_error;

/// Reads the due rows of several pollers in one call. If the call fails, reads each poller in its own call, so that a
/// damaged range of one poller does not delay the other pollers.
pub(super) async fn read_due(context: Arc<Context>, reads: Vec<(PollerIndex, ReadKind, DueRead)>) {
    let pages = match due(&context, reads.iter().map(|(_, _, read)| *read).collect()).await {
        Ok(pages) => pages.into_iter().map(Some).collect(),
        Err(_) if reads.len() == 1 => vec![None],
        Err(_) => {
            let mut pages = Vec::with_capacity(reads.len());
            for (_, _, read) in &reads {
                pages.push(due(&context, vec![*read]).await.ok().and_then(|mut pages| pages.pop()));
            }
            pages
        }
    };
    let done = reads.into_iter().zip(pages).map(|((index, kind, read), page)| (index, kind, read, page)).collect();
    let _owner_is_gone = context.to_owner.send(ToOwner::Read(done)).await;
}

async fn due(context: &Context, reads: Vec<DueRead>) -> Result<Vec<DuePage>, StoreError> {
    let response = context.store.due(reads).await;
    if let Err(error) = &response {
        count_store_error(&context.metrics, "due", error);
    }
    response
}

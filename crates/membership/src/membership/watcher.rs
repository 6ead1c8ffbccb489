//! Task that reads the view again after changes.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;

/// Shortest interval between two reads of the view, so that a burst of changes causes few reads.
const LOOK_GAP: Duration = Duration::from_millis(5);

pub(super) async fn run(shared: Arc<Shared>) {
    tokio::select! {
        biased;
        () = shared.stopped() => {}
        () = watch(&shared) => {}
    }
}

async fn watch(shared: &Shared) {
    loop {
        // The task subscribes to changes before the read, so that a change during the read causes another read.
        let changed = shared.ownership.changed();
        let began = shared.runtime.monotonic();
        let first_end = match shared.refresh().await {
            Ok(view) => view.first_end,
            Err(error) => {
                tracing::debug!(%error, "cannot read the view of the members; retrying");
                None
            }
        };
        let period = shared.options.view_period;
        let wait = first_end.map_or(period, |end| period.min(end + Duration::from_millis(1)));
        tokio::select! {
            biased;
            () = changed => {}
            () = shared.look_again.notified() => {}
            () = shared.runtime.sleep(wait) => {}
        }
        shared.runtime.sleep_until(began + LOOK_GAP).await;
    }
}

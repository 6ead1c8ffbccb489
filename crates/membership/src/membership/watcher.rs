//! Keeps the view fresh.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;

/// From one look to the next at least: a burst of changes is seen in few looks.
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
        // Before the look: what changes during it makes another.
        let changed = shared.ownership.changed();
        let began = shared.runtime.monotonic();
        let first_end = match shared.refresh().await {
            Ok(view) => view.first_end,
            Err(error) => {
                tracing::debug!(%error, "the view could not be read");
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

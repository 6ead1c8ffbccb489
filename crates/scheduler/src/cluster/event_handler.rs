//! Handler for the events that the owner and the module `changes` report.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;

use crate::cluster::events::Reported;
use crate::cluster::forwarding::Forwarding;
use crate::cluster::ownership::{lose_superseded, retake};
use crate::metrics::count_store_error;
use crate::shared::Shared;
use crate::tenants::Tenants;

/// Handles events until `stop`. Returns after it has handled all events that other tasks reported before `stop`.
pub(crate) async fn handle_events(shared: Arc<Shared>, forwarding: Arc<Forwarding>, stop: CancellationToken) {
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Reported { superseded, near, unknown_poller, ahead, clock_was_at, outcomes } = shared.events.take() => {
                for (shard, term) in superseded {
                    lose_superseded(&shared, shard, term).await;
                }
                if unknown_poller && let Err(error) = Tenants::new(shared.clone()).refresh().await {
                    count_store_error(&shared.metrics, "tenants", &error);
                }
                if !ahead.is_empty() {
                    retake(&shared, &ahead, clock_was_at).await;
                }
                forwarding.nudge(&near);
                for (outcome, permit) in outcomes {
                    let forwarding = &forwarding;
                    sending.push(Box::pin(async move {
                        forwarding.forward_outcome(outcome).await;
                        drop(permit);
                    }));
                }
            }
            Some(()) = sending.next() => {}
            () = stop.cancelled() => break,
        }
    }
    while sending.next().await.is_some() {}
}

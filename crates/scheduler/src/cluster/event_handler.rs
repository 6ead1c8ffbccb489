//! Handler for the events that the owner and the module `changes` report.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use crate::cluster::events::Reported;
use crate::cluster::forwarding::Forwarding;
use crate::cluster::ownership::{lose_superseded, retake};
use crate::metrics::count_store_error;
use crate::requests::AttemptOutcome;
use crate::shared::Shared;
use crate::tenants::Tenants;

type ToForward = (AttemptOutcome, OwnedSemaphorePermit);

/// Handles events until `stop`. Returns after it has handled all events that other tasks reported before `stop`.
///
/// Outcomes are forwarded while other events are handled. Both wait for the lock [`Shared::moving`]. If one of them
/// got the lock while the other one kept it from running, neither would ever continue.
pub(crate) async fn handle_events(shared: Arc<Shared>, forwarding: Arc<Forwarding>, stop: CancellationToken) {
    let (to_forward, mut outcomes) = mpsc::unbounded_channel();
    let (forwarding, shared) = (&*forwarding, &shared);
    let handling = async {
        let to_forward = to_forward;
        loop {
            tokio::select! {
                biased;
                reported = shared.events.take() => handle(shared, forwarding, reported, &to_forward).await,
                () = stop.cancelled() => return,
            }
        }
    };
    let sending = async {
        let mut sending = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some((outcome, permit)) = outcomes.recv() => sending.push(Box::pin(async move {
                    forwarding.forward_outcome(outcome).await;
                    drop::<OwnedSemaphorePermit>(permit);
                })),
                Some(()) = sending.next() => {}
                else => return,
            }
        }
    };
    futures_util::future::join(handling, sending).await;
}

async fn handle(
    shared: &Arc<Shared>,
    forwarding: &Forwarding,
    reported: Reported,
    to_forward: &mpsc::UnboundedSender<ToForward>,
) {
    let Reported { superseded, near, unknown_poller, ahead, clock_was_at, outcomes } = reported;
    for outcome in outcomes {
        let _receiver_lives_as_long_as_this_task = to_forward.send(outcome);
    }
    forwarding.nudge(&near);
    for (shard, term) in superseded {
        lose_superseded(shared, shard, term).await;
    }
    if unknown_poller && let Err(error) = Tenants::new(shared.clone()).refresh().await {
        count_store_error(&shared.metrics, "tenants", &error);
    }
    if !ahead.is_empty() {
        retake(shared, &ahead, clock_was_at).await;
    }
}

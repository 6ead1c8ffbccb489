//! Acts on what the owner finds out, beside it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::forwarding::Forwarder;
use crate::cluster::ownership::lose_superseded;
use crate::firing::messages::Event;
use crate::metrics::count_store_error;
use crate::shared::Shared;
use crate::tenants::Tenants;

/// Until `stop`, and then until what was told before has been acted on.
pub(crate) async fn hear(
    shared: Arc<Shared>,
    forwarder: Arc<Forwarder>,
    mut events: mpsc::UnboundedReceiver<Event>,
    stop: CancellationToken,
) {
    let mut telling: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => match event {
                Event::UnknownPoller => {
                    if let Err(error) = Tenants::new(shared.clone()).refresh().await {
                        count_store_error(&shared.metrics, "tenants", &error);
                    }
                }
                Event::Superseded(shard, term) => lose_superseded(&shared, shard, term).await,
                Event::Outcome(outcome) => telling.push(Box::pin(forwarder.tell_outcome(outcome))),
                Event::Near(shards) => forwarder.nudge(&shards),
            },
            Some(()) = telling.next() => {}
            () = stop.cancelled() => break,
        }
    }
    while telling.next().await.is_some() {}
}

//! Acts on what the owner finds out, beside it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::bookkeeper::count_store_error;
use crate::owner::News;
use crate::route::Router;
use crate::shared::Shared;
use crate::supervisor::lose_superseded;
use crate::tenants::Tenants;

pub(crate) type ToHear = mpsc::UnboundedReceiver<News>;

/// Until `stop`, and then until what was told before has been acted on.
pub(crate) async fn hear(shared: Arc<Shared>, router: Arc<Router>, mut news: ToHear, stop: CancellationToken) {
    let mut telling: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(news) = news.recv() => match news {
                News::UnknownPoller => {
                    if let Err(error) = Tenants::new(shared.clone()).refresh().await {
                        count_store_error(&shared.metrics, "tenants", &error);
                    }
                }
                News::Superseded(shard, term) => lose_superseded(&shared, shard, term).await,
                News::Outcome(outcome) => telling.push(Box::pin(router.tell_outcome(outcome))),
                News::Near(shards) => router.nudge(&shards),
            },
            Some(()) = telling.next() => {}
            () = stop.cancelled() => break,
        }
    }
    while telling.next().await.is_some() {}
}

//! Listener for the database's notifications of possible changes. If the listener misses a notification, the process
//! finds the change when it polls the database.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use postgres_client::tokio_postgres::AsyncMessage;
use postgres_client::{Failure, Server};
use runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    runtime: Runtime,
    server: Arc<Server>,
    channel: &'static str,
    changes: watch::Sender<()>,
    stop: CancellationToken,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listen_for_ever(&runtime, &server, channel, &changes) => {}
    }
}

async fn listen_for_ever(runtime: &Runtime, server: &Server, channel: &str, changes: &watch::Sender<()>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let began = runtime.monotonic();
        if let Err(failure) = listen(runtime, server, channel, changes).await {
            tracing::debug!(%failure, "cannot listen for database notifications; using polling until the next attempt");
        }
        if runtime.monotonic().since(began) > BACKOFF_MAX {
            backoff = BACKOFF_MIN;
        }
        let half = u64::try_from(backoff.as_millis() / 2).unwrap_or(0);
        runtime.sleep(Duration::from_millis(half + runtime.random() % half.max(1))).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Listens for notifications on `channel` until the connection ends.
async fn listen(runtime: &Runtime, server: &Server, channel: &str, changes: &watch::Sender<()>) -> Result<(), Failure> {
    let (client, mut messages) = server.connect(runtime).await?;
    let subscribing = async {
        let statement = format!("listen {channel}");
        let response = runtime.timeout(server.statement_timeout(), client.batch_execute(&statement));
        match response.await {
            Some(result) => result.map_err(|error| server.failure(&error))?,
            None => return Err(Failure::Silent { server: server.to_string(), waited: server.statement_timeout() }),
        }
        // The task reports a possible change as soon as it listens, because it has missed all notifications that the
        // server sent earlier.
        changes.send_replace(());
        // The task waits forever to keep the client alive, because a drop of the client closes the connection.
        std::future::pending::<()>().await;
        Ok(())
    };
    let receiving = async {
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                changes.send_replace(());
            }
        }
        Ok(())
    };
    tokio::select! {
        biased;
        ended = receiving => ended,
        failed = subscribing => failed,
    }
}

//! Requests on many connections, each of which sends the next request at once after a response.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use cli_support::http1::Connection;
use runtime::TaskSet;

use super::{Attack, Stage};
use crate::message::{Head, write_request};

const CONNECTIONS: usize = 64;
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// Request that a flood repeats, and the numbers of its responses.
struct Flood {
    server: SocketAddr,
    request: Vec<u8>,
    accepted: AtomicU64,
    rejected: AtomicU64,
}

impl Flood {
    /// Opens a connection, and sends requests until the connection fails.
    async fn send(&self) -> io::Result<()> {
        let mut connection = Connection::open(self.server).await?;
        loop {
            let status = connection.exchange(&self.request).await?;
            let is_success = (200..300).contains(&status.0);
            let count = if is_success { &self.accepted } else { &self.rejected };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Starts tasks that send the same request repeatedly. `name` is the name of the attack.
pub(super) fn start(
    stage: &Stage<'_>,
    name: &'static str,
    head: &Head,
    method: &str,
    path: &str,
    body: &[u8],
) -> Attack {
    let mut request = Vec::new();
    write_request(method, path, head, body, &mut request);
    let (accepted, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    let flood = Arc::new(Flood { server: head.host, request, accepted, rejected });
    let tasks = TaskSet::new(stage.runtime);
    for _ in 0..CONNECTIONS {
        let (runtime, flood) = (stage.runtime.clone(), flood.clone());
        tasks.spawn("flood", async move {
            loop {
                if let Err(error) = flood.send().await {
                    tracing::debug!(%error, name, "connection of the attack ended");
                }
                runtime.sleep(RECONNECT_AFTER).await;
            }
        });
    }
    Attack::new(tasks, move || {
        let [accepted, rejected] = [&flood.accepted, &flood.rejected].map(|count| count.load(Ordering::Relaxed));
        ensure!(accepted > 0, "the server accepted no request of the attack `{name}` and rejected {rejected}");
        Ok(format!(
            "{name}: the server accepted {accepted} requests on {CONNECTIONS} connections and rejected {rejected}"
        ))
    })
}

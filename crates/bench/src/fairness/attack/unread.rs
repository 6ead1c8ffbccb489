//! Listings whose responses the client never reads, over HTTP/1.1 and HTTP/2. The client opens each connection again
//! before the server closes it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use hyper::http::Request;
use runtime::{Runtime, TaskSet};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::{Attack, Stage};
use crate::batch;
use crate::create::schedules_far;
use crate::message::{Head, write_request};
use crate::tenant::unlimited_except;

/// Number of schedules of the tenant: enough for a full page.
const SCHEDULES: u64 = 1_000;
const PATH: &str = "/v1/schedules?limit=1000";
const HTTP1_CONNECTIONS: usize = 64;
/// Number of requests that the client sends at once on an HTTP/1.1 connection.
const HTTP1_REQUESTS: usize = 16;
const HTTP2_CONNECTIONS: usize = 16;
const HTTP2_STREAMS: usize = 64;
/// Size of the client's receive buffer. The buffer is small, so that the responses stay in the server.
const BUFFER_BYTES: u32 = 4_096;
/// Time for which the client keeps a connection. It is shorter than the idle timeout of the server.
const OPEN_FOR: Duration = Duration::from_secs(25);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("unread", unlimited_except(None)).await?;
    let head = tenant.head("application/x-ndjson");
    batch::create_all(stage.runtime, head.clone(), schedules_far(stage.runtime), SCHEDULES).await?;
    let tasks = TaskSet::new(stage.runtime);
    let sent: Arc<AtomicU64> = Arc::default();
    for number in 0..HTTP1_CONNECTIONS + HTTP2_CONNECTIONS {
        let (runtime, head, sent) = (stage.runtime.clone(), head.clone(), sent.clone());
        tasks.spawn("unread-client", async move {
            loop {
                let request = async {
                    match number < HTTP1_CONNECTIONS {
                        true => over_http1(&runtime, &head, &sent).await,
                        false => over_http2(&runtime, &head, &sent).await,
                    }
                };
                if let Err(error) = request.await {
                    tracing::debug!(%error, "connection of the attack ended");
                    runtime.sleep(Duration::from_secs(1)).await;
                }
            }
        });
    }
    Ok(Attack::new(tasks, move || {
        let sent = sent.load(Ordering::Relaxed);
        ensure!(sent > 0, "the attack `unread` sent no request");
        Ok(format!("unread: the attack sent {sent} requests for pages of {SCHEDULES} schedules and read no response"))
    }))
}

async fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    Ok(socket.connect(address).await?)
}

async fn over_http1(runtime: &Runtime, head: &Head, sent: &AtomicU64) -> anyhow::Result<()> {
    let mut stream = connect(head.host).await?;
    let mut request = Vec::new();
    write_request("GET", PATH, head, b"", &mut request);
    stream.write_all(&request.repeat(HTTP1_REQUESTS)).await?;
    sent.fetch_add(HTTP1_REQUESTS as u64, Ordering::Relaxed);
    runtime.sleep(OPEN_FOR).await;
    Ok(())
}

async fn over_http2(runtime: &Runtime, head: &Head, sent: &AtomicU64) -> anyhow::Result<()> {
    let (sender, connection) = h2::client::handshake(connect(head.host).await?).await?;
    let requests = async {
        let mut responses = Vec::with_capacity(HTTP2_STREAMS);
        for _ in 0..HTTP2_STREAMS {
            let mut sender = sender.clone().ready().await?;
            let request = Request::get(format!("http://{}{PATH}", head.host));
            let request = request.header("authorization", format!("Bearer {}", head.key)).body(())?;
            responses.push(sender.send_request(request, true)?);
            sent.fetch_add(1, Ordering::Relaxed);
        }
        // The flow-control window of the connection stays full, because the client never reads the response bodies.
        runtime.sleep(OPEN_FOR).await;
        drop(responses);
        anyhow::Ok(())
    };
    tokio::select! {
        biased;
        ended = connection => Ok(ended?),
        ended = requests => ended,
    }
}

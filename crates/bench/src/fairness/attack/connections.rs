//! Connections of clients without a key, as many as the server allows.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use runtime::{Runtime, TaskSet};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::{Attack, Stage, loopback};

/// Number of connections: the default of `--connections-max`.
const CONNECTIONS: u32 = 4_096;
/// Number of client addresses. One address may have only half of the connections.
const CLIENTS: u32 = 4;
/// Time between two requests of a connection. It is shorter than the idle timeout of the server.
const PERIOD: Duration = Duration::from_secs(20);
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

pub(super) fn start(stage: &Stage<'_>) -> Attack {
    let tasks = TaskSet::new(stage.runtime);
    let [answers, opened]: [Arc<AtomicU64>; 2] = Default::default();
    for number in 0..CONNECTIONS {
        let (runtime, server) = (stage.runtime.clone(), stage.server.address);
        let (answers, opened) = (answers.clone(), opened.clone());
        let client = loopback(u64::from(number % CLIENTS));
        // The requests of the connections are spread over the period.
        let pause = PERIOD * number / CONNECTIONS;
        tasks.spawn("idle-client", async move {
            loop {
                if let Err(error) = ask(&runtime, client, server, pause, &answers, &opened).await {
                    tracing::debug!(%error, "connection of the attack ended");
                }
                runtime.sleep(RECONNECT_AFTER).await;
            }
        });
    }
    Attack::new(tasks, move || {
        let [answers, opened] = [&answers, &opened].map(|count| count.load(Ordering::Relaxed));
        ensure!(answers > 0, "the server answered no request of the attack `connections`");
        Ok(format!(
            "connections: {CONNECTIONS} clients without a key opened {opened} connections and received {answers} answers"
        ))
    })
}

/// Opens a connection from `client`, and sends requests until the connection fails. The second request follows after
/// `pause`, and each further request after [`PERIOD`].
async fn ask(
    runtime: &Runtime,
    client: Ipv4Addr,
    server: SocketAddr,
    mut pause: Duration,
    answers: &AtomicU64,
    opened: &AtomicU64,
) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((client, 0)))?;
    let mut stream = socket.connect(server).await?;
    opened.fetch_add(1, Ordering::Relaxed);
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {server}\r\n\r\n");
    let mut answer = [0; 1_024];
    loop {
        stream.write_all(request.as_bytes()).await?;
        if stream.read(&mut answer).await? == 0 {
            return Ok(());
        }
        answers.fetch_add(1, Ordering::Relaxed);
        runtime.sleep(pause).await;
        pause = PERIOD;
    }
}

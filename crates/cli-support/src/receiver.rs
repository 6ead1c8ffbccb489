//! A small HTTP server that callbacks can go to: it takes every request, tells a [`Sink`] of it and answers 200.
//!
//! It is the other end of the benchmark and of `demo`, and `reveille receiver` for whoever wants to see callbacks
//! arrive. It does not verify signatures; a receiver of one's own should.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::Timestamp;
use listener::Shutdown;
use runtime::{Runtime, TaskSet};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::DropGuard;

use crate::http1::Input;

/// Connections at once; one more waits in the kernel.
const CONNECTIONS_MAX: usize = 16_384;

/// Hears of callbacks, on the connection's task.
pub trait Sink: Send + Sync + 'static {
    /// A whole request has been read, `at_micros` by this machine's wall clock (microseconds since 1970).
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8]);
}

/// A header's value, or nothing if there is none or it is not text.
pub fn header<'a>(head: &httparse::Request<'_, 'a>, name: &str) -> &'a str {
    let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    found.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or("")
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How long each answer is held back. Default: not at all.
    pub answer_after: Duration,
}

/// A receiver that runs. Dropped, it stops.
pub struct Receiver {
    pub address: SocketAddr,
    tasks: TaskSet,
    kill: DropGuard,
}

impl Receiver {
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(
        runtime: &Runtime,
        listen: SocketAddr,
        options: Options,
        sink: Arc<dyn Sink>,
    ) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(listen).await;
        let socket = socket.with_context(|| format!("the receiver cannot listen on {listen}"))?;
        let address = socket.local_addr()?;
        let tasks = TaskSet::new(runtime);
        let shutdown = Shutdown::default();
        let kill = shutdown.kill.clone().drop_guard();
        let runtime = runtime.clone();
        tasks.spawn("receiver", async move {
            let serve = |stream| {
                let (runtime, sink) = (runtime.clone(), sink.clone());
                async move {
                    if let Err(error) = exchanges(&runtime, options, &*sink, stream).await {
                        tracing::debug!(%error, "a connection to the receiver broke off");
                    }
                }
            };
            let limits = listener::Options {
                connections_max: CONNECTIONS_MAX,
                drain_timeout: Duration::ZERO,
                task: "receiver-connection",
                accept_failed: "the receiver cannot accept a connection",
                drain_timed_out: "the receiver closes its connections",
            };
            listener::serve_until(&runtime, socket, limits, shutdown, serve, std::future::pending()).await;
        });
        Ok(Receiver { address, tasks, kill })
    }

    /// Waits until it ends, which it does only if it fails.
    pub async fn ended(self) {
        let _kill = self.kill;
        self.tasks.join().await;
    }
}

async fn exchanges(runtime: &Runtime, options: Options, sink: &dyn Sink, mut stream: TcpStream) -> io::Result<()> {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let mut input = Input::default();
    while input.read_request(&mut stream, |head, body| sink.arrived(wall_micros(), head, body)).await?.is_some() {
        if !options.answer_after.is_zero() {
            runtime.sleep(options.answer_after).await;
        }
        stream.write_all(ANSWER).await?;
    }
    Ok(())
}

/// The wall clock in microseconds since 1970: finer than `runtime`'s, for measuring lateness only.
pub fn wall_micros() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

/// How late a callback arrived, in milliseconds; negative if it was early.
pub fn late_millis(at_micros: i64, nominal: Timestamp) -> f64 {
    at_micros.saturating_sub(nominal.as_millis().saturating_mul(1_000)) as f64 / 1_000.0
}

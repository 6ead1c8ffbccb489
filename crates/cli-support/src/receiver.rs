//! A small HTTP server for callbacks. It accepts every request, passes it to a [`Sink`] and responds with 200.
//!
//! The benchmarks, `reveille demo` and `reveille receiver` use this server. It does not verify signatures. The receiver
//! of a real application should verify them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::Timestamp;
use listener::{Shutdown, Slot};
use runtime::{Runtime, TaskSet};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::DropGuard;

use crate::http1::Input;

/// Maximum number of concurrent connections. Further connections wait in the kernel until the receiver accepts them.
const CONNECTIONS_MAX: usize = 16_384;

/// Handler of received callbacks. The receiver calls it on the task of the connection.
pub trait Sink: Send + Sync + 'static {
    /// Handles a complete request. `at_micros` is the time at which the request arrived, by this machine's wall clock,
    /// in microseconds since 1970.
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8]);
}

/// Returns the value of a header, or an empty string if the header is missing or not UTF-8.
pub fn header<'a>(head: &httparse::Request<'_, 'a>, name: &str) -> &'a str {
    let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    found.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or("")
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Time that the receiver waits before each response. Default: zero.
    pub answer_after: Duration,
}

/// Running receiver. It stops when this value is dropped.
pub struct Receiver {
    pub address: SocketAddr,
    tasks: TaskSet,
    kill: DropGuard,
}

impl Receiver {
    /// Starts a receiver.
    ///
    /// # Errors
    /// Returns an error if the receiver cannot listen on the address.
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
            let serve = |stream, slot: Slot| {
                // The receiver does not notify the listener of requests in progress. It therefore marks all connections
                // as trusted, so that the listener closes none of them to free a slot.
                slot.trust();
                let (runtime, sink) = (runtime.clone(), sink.clone());
                async move {
                    if let Err(error) = exchanges(&runtime, options, &*sink, stream).await {
                        tracing::debug!(%error, "connection to the receiver failed");
                    }
                }
            };
            let limits = listener::Options {
                connections_max: CONNECTIONS_MAX,
                share: None,
                drain_timeout: Duration::ZERO,
                task: "receiver-connection",
                accept_failed: "the receiver cannot accept a connection",
                drain_timed_out: "the receiver closes its open connections",
            };
            listener::serve_until(&runtime, socket, limits, shutdown, serve, std::future::pending()).await;
        });
        Ok(Receiver { address, tasks, kill })
    }

    /// Waits until the receiver ends. The receiver ends only after a failure.
    pub async fn ended(self) {
        let _kill = self.kill;
        self.tasks.join().await;
    }
}

async fn exchanges(runtime: &Runtime, options: Options, sink: &dyn Sink, mut stream: TcpStream) -> io::Result<()> {
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let mut input = Input::default();
    while input.read_request(&mut stream, |head, body| sink.arrived(wall_micros(), head, body)).await?.is_some() {
        if !options.answer_after.is_zero() {
            runtime.sleep(options.answer_after).await;
        }
        stream.write_all(RESPONSE).await?;
    }
    Ok(())
}

/// Returns the time of the wall clock in microseconds since 1970. This clock has a higher resolution than the clock of
/// `runtime`. Callers use it only to measure lateness.
pub fn wall_micros() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

/// Returns the lateness of a callback in milliseconds. The value is negative if the callback arrived early.
pub fn late_millis(at_micros: i64, nominal: Timestamp) -> f64 {
    at_micros.saturating_sub(nominal.as_millis().saturating_mul(1_000)) as f64 / 1_000.0
}

//! Listening sockets. The crate accepts connections up to a limit, serves HTTP on each connection, and drains the
//! connections at shutdown.
//!
//! The accept loop does not depend on HTTP. Its caller passes a function that serves one connection. [`http`] contains
//! such a function, which serves HTTP/1.1 and HTTP/2 with hyper-util. The callers provide TLS, authentication and
//! routes.
//!
//! Invariants: at most `connections_max` connections are open, and at most one further connection waits for a slot.
//! When [`serve_until`] returns, no connection is open and no task that holds a token of [`Shutdown::tasks`] runs.

mod http;
mod slots;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select};
use runtime::{Monotonic, Runtime};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use http::{Activity, Builder, End, IdleTimeout, Unread, builder, serve_http};
pub use slots::{AddressShare, Slot};

use slots::{Slots, Taken};

/// Wait after a failed accept. Most causes of a failure, such as a lack of file descriptors, last for some time.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Minimum interval between two warnings about failed accepts. A lack of file descriptors causes 20 failures a second.
const WARNING_PERIOD: Duration = Duration::from_secs(60);
/// Highest value that the limit of open connections can have.
const CONNECTIONS_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{address} is in use by another process; stop that process, or {remedy} on another address")]
    AddressInUse { address: SocketAddr, remedy: &'static str },
    #[error("the user of this process has no permission to listen on {0}; choose port 1024 or a higher port")]
    Forbidden(SocketAddr),
    #[error("cannot listen on {address}")]
    Other {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Binds a socket. Clients can connect at once, but they wait until [`serve_until`] serves the socket. If `address` has
/// port 0, the returned address has the port that the kernel chose.
///
/// `backlog` is the number of connections that the kernel queues until [`serve_until`] accepts them. `remedy` is the
/// verb of the advice in the error text, for example "listen" in "listen on another address".
///
/// # Errors
/// Returns an error if the socket cannot listen on `address`.
#[expect(clippy::unused_async, reason = "the socket needs a Tokio runtime, and only an async caller runs inside one")]
pub async fn bind(
    address: SocketAddr,
    backlog: u32,
    remedy: &'static str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    listen(address, backlog).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::AddressInUse { address, remedy },
        io::ErrorKind::PermissionDenied => BindError::Forbidden(address),
        _ => BindError::Other { address, source },
    })
}

fn listen(address: SocketAddr, backlog: u32) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // With `SO_REUSEADDR`, a new process may listen on the address at once, although the kernel still has connections
    // of the old process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(backlog)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

/// Limits and texts of one accept loop.
#[derive(Clone)]
pub struct Options {
    /// Maximum number of open connections. At this limit, a further connection replaces the untrusted connection that
    /// has been idle longest, see [`Slot::trust`]. If no untrusted connection is idle, further connections wait in the
    /// kernel.
    pub connections_max: usize,
    /// Share of the connections that one client address may have; `None` if one address may have all of them.
    pub share: Option<AddressShare>,
    /// Maximum time for which a stopped listener waits for the end of its connections and tasks.
    pub drain_timeout: Duration,
    /// Name of the task of each connection.
    pub task: &'static str,
    /// Text of the warning that the listener logs after a failed accept.
    pub accept_failed: &'static str,
    /// Text of the warning that the listener logs when `drain_timeout` has passed.
    pub drain_timed_out: &'static str,
}

/// Signals that stop a listener and its tasks.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Signal that ends each connection after its current requests.
    pub drain: CancellationToken,
    /// Signal that drops all connections.
    pub kill: CancellationToken,
    /// Tasks that must end before [`serve_until`] returns, including the tasks of the listener's connections.
    pub tasks: TaskTracker,
}

/// Accepts connections until `stop` resolves. Then the function closes the socket, cancels `shutdown.drain` and waits
/// until all tasks have ended. After `options.drain_timeout`, the function cancels `shutdown.kill`, which drops the
/// remaining connections.
///
/// The function calls `serve` for each connection before it accepts the next connection. The future that `serve`
/// returns runs as the task of the connection. To free a slot for another connection, the function drops the future of
/// an idle connection, unless [`Slot::trust`] protects it.
pub async fn serve_until<F>(
    runtime: &Runtime,
    listener: TcpListener,
    options: Options,
    shutdown: Shutdown,
    serve: impl Fn(TcpStream, Slot) -> F,
    stop: impl Future<Output = ()>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections_max = options.connections_max.clamp(1, CONNECTIONS_MAX);
    let slots = Slots::new(runtime, connections_max, options.share.clone());
    let mut accepts = Accepts { runtime, listener, slots, failed: options.accept_failed, number: 0, warned_at: None };
    let mut stop = pin!(stop.fuse());
    loop {
        let accepted = futures_util::select_biased! {
            () = stop => break,
            accepted = accepts.next().fuse() => accepted,
        };
        let Some((stream, taken)) = accepted else { continue };
        let slot = taken.slot.clone();
        let (connection, kill, token) = (serve(stream, slot.clone()), shutdown.kill.clone(), shutdown.tasks.token());
        // The task holds a token, so `serve_until` waits for the end of the task before it returns.
        drop(runtime.spawn(options.task, async move {
            let _guard = (taken, token);
            let closed = pin!(slot.closed());
            kill.run_until_cancelled(select(pin!(connection), closed)).await;
        }));
    }
    drop(accepts);
    shutdown.drain.cancel();
    shutdown.tasks.close();
    if runtime.timeout(options.drain_timeout, shutdown.tasks.wait()).await.is_none() {
        tracing::warn!("{}", options.drain_timed_out);
        shutdown.kill.cancel();
        shutdown.tasks.wait().await;
    }
}

/// Accepted connections of a socket, with their slots.
struct Accepts<'r> {
    runtime: &'r Runtime,
    listener: TcpListener,
    slots: Arc<Slots>,
    /// Text of the warning that the listener logs after a failed accept.
    failed: &'static str,
    /// Number of accepted connections. This number also identifies the last accepted connection.
    number: u64,
    warned_at: Option<Monotonic>,
}

impl Accepts<'_> {
    /// Waits for the next connection and for its slot. Returns `None` if the accept failed, or if the listener closed
    /// the new connection.
    async fn next(&mut self) -> Option<(TcpStream, Taken)> {
        let (stream, address) = match self.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                self.recover(&error).await;
                return None;
            }
        };
        self.number += 1;
        let Some(taken) = self.slots.take(self.number, address.ip()).await else {
            tracing::debug!(%address, "connection closed, because the client's address has too many connections");
            return None;
        };
        // The server sends a response with one write, so Nagle's algorithm would only delay the response.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection closed before it was served");
            return None;
        }
        Some((stream, taken))
    }

    /// Waits after a failed accept. Most failures are a lack of file descriptors, so the function also closes an idle
    /// connection.
    async fn recover(&mut self, error: &io::Error) {
        let now = self.runtime.monotonic();
        if self.warned_at.is_none_or(|at| now.since(at) >= WARNING_PERIOD) {
            self.warned_at = Some(now);
            tracing::warn!(%error, "{}", self.failed);
        }
        self.slots.free_one();
        self.runtime.sleep(ACCEPT_BACKOFF).await;
    }
}

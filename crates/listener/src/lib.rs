//! Listening sockets: accept connections up to a limit, serve HTTP on each, and drain them at shutdown.
//!
//! The accept loop does not depend on HTTP: its caller passes a function that serves one connection. [`http`] contains
//! that function for HTTP/1.1 and HTTP/2, based on hyper-util. The callers provide TLS, authentication and routes.
//!
//! Invariants: at most `connections_max` connections are open. When [`serve_until`] returns, no connection is open and
//! no task that holds a token of [`Shutdown::tasks`] runs.

mod http;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use runtime::Runtime;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use http::{Activity, Builder, End, IdleTimeout, builder, serve_http};

/// Wait after a failed accept. Most causes, such as a lack of file handles, last for some time.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Upper limit of the number of permits.
const CONNECTIONS_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{address} is in use by another process; stop that process, or {remedy} on another address")]
    AddressInUse { address: SocketAddr, remedy: &'static str },
    #[error("this user may not listen on {0}; choose a port from 1024 on")]
    Forbidden(SocketAddr),
    #[error("cannot listen on {address}")]
    Other {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Binds a socket. Clients can connect at once, but wait until [`serve_until`] serves the socket. If `address` has port
/// 0, the returned address has the port that the kernel chose.
///
/// `backlog` is the number of connections that the kernel queues until they are accepted. `remedy` is the verb in the
/// advice of the error: "listen".
///
/// # Errors
/// Returns an error if the socket cannot listen on `address`.
#[expect(clippy::unused_async, reason = "a socket must be bound inside a reactor, and an async function shows this")]
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
    // A new process may listen on the address at once, although the kernel still keeps connections of the old process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(backlog)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

/// Limits and texts of one accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit of open connections; further ones wait in the kernel.
    pub connections_max: usize,
    /// Time for connections and tasks to end after the stop.
    pub drain_timeout: Duration,
    /// Task name of each connection.
    pub task: &'static str,
    /// Warning text after a failed accept.
    pub accept_failed: &'static str,
    /// Warning text when `drain_timeout` has passed.
    pub drain_timed_out: &'static str,
}

/// Signals that stop a listener and its tasks.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Ends each connection after its current requests.
    pub drain: CancellationToken,
    /// Drops all connections.
    pub kill: CancellationToken,
    /// Tasks that the listener waits for, including its connections.
    pub tasks: TaskTracker,
}

/// Accepts connections until `stop` resolves. Then it closes the socket, cancels `shutdown.drain` and waits for all
/// tasks. After `options.drain_timeout` it cancels `shutdown.kill`, which drops the remaining connections.
///
/// The loop calls `serve` for each connection before it accepts the next. The returned future is the connection's task.
pub async fn serve_until<F>(
    runtime: &Runtime,
    listener: TcpListener,
    options: Options,
    shutdown: Shutdown,
    serve: impl Fn(TcpStream) -> F,
    stop: impl Future<Output = ()>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(options.connections_max.clamp(1, CONNECTIONS_MAX)));
    let mut stop = pin!(stop.fuse());
    loop {
        let accepted = futures_util::select_biased! {
            () = stop => break,
            accepted = accept(runtime, &listener, &permits, options).fuse() => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let (connection, kill, token) = (serve(stream), shutdown.kill.clone(), shutdown.tasks.token());
        // The token makes this function wait for the task at the end.
        drop(runtime.spawn(options.task, async move {
            let _guard = (permit, token);
            kill.run_until_cancelled(connection).await;
        }));
    }
    drop(listener);
    shutdown.drain.cancel();
    shutdown.tasks.close();
    if runtime.timeout(options.drain_timeout, shutdown.tasks.wait()).await.is_none() {
        tracing::warn!("{}", options.drain_timed_out);
        shutdown.kill.cancel();
        shutdown.tasks.wait().await;
    }
}

/// Waits for the next connection and its permit. Returns `None` if the attempt failed.
async fn accept(
    runtime: &Runtime,
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    options: Options,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.expect("no code closes the semaphore");
    match listener.accept().await {
        Ok((stream, _)) => {
            // A response is one write, so Nagle's algorithm would only delay it.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "connection closed before it was served");
                return None;
            }
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "{}", options.accept_failed);
            runtime.sleep(ACCEPT_BACKOFF).await;
            None
        }
    }
}

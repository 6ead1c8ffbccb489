//! Listening sockets: accepts connections up to a limit, serves HTTP on each, and drains them at the stop.
//!
//! The accept loop knows no HTTP: its caller passes a function that serves one connection. [`http`] is that function for
//! HTTP/1.1 and HTTP/2, on top of hyper-util. TLS, authentication and routes are the callers'.
//!
//! Invariants: at most `connections_max` connections are open; when [`serve_until`] returns, no connection is open and no
//! task that holds a token of [`Shutdown::tasks`] runs.

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

/// Wait after a failed accept. Most causes, such as a lack of file handles, do not end at once.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Upper limit of a semaphore's permits.
const CONNECTIONS_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{address} is taken by another process; stop it, or {remedy} elsewhere")]
    AddressInUse { address: SocketAddr, remedy: &'static str },
    #[error("{0} may not be listened on by this user; choose a port from 1024 on")]
    Forbidden(SocketAddr),
    #[error("{address} cannot be listened on")]
    Other {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Binds a socket; clients can connect to it, and wait until it is served. The address that is returned has the port that
/// the kernel chose if `address` has port 0.
///
/// `backlog` is the number of connections that the kernel keeps while none is accepted. `remedy` is the verb of the error's
/// advice: "listen".
///
/// # Errors
/// If `address` cannot be listened on.
#[expect(clippy::unused_async, reason = "a socket is bound inside its reactor, and awaiting shows that")]
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
    // A restart may listen again at once, although the old process's connections linger in the kernel.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(backlog)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

/// Limits and texts of one accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Further connections wait in the kernel.
    pub connections_max: usize,
    /// Time that connections and tasks have to end after the stop.
    pub drain_timeout: Duration,
    /// Name of each connection's task.
    pub task: &'static str,
    /// Warning after a failed accept.
    pub accept_failed: &'static str,
    /// Warning when `drain_timeout` has passed.
    pub drain_timed_out: &'static str,
}

/// Stops a listener and all that it started.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Connections end after the requests that they are serving.
    pub drain: CancellationToken,
    /// Connections are dropped.
    pub kill: CancellationToken,
    /// Tasks that the listener waits for, connections among them.
    pub tasks: TaskTracker,
}

/// Accepts connections until `stop` resolves. Then it closes the socket, cancels `shutdown.drain`, waits for all tasks, and
/// after `options.drain_timeout` cancels `shutdown.kill`, which drops the connections that are left.
///
/// `serve` is called for each connection before the next is accepted; the future that it returns is the connection's task.
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
        // The token is what this function waits for at the end.
        drop(runtime.spawn(options.task, async move {
            let _held = (permit, token);
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

/// The next connection and its permit; `None` if the attempt failed.
async fn accept(
    runtime: &Runtime,
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    options: Options,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.expect("no code closes the semaphore");
    match listener.accept().await {
        Ok((stream, _)) => {
            // A response is one write; a wait to join it with another only delays it.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection went as it came");
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

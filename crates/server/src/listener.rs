//! The listening socket, and the life of the server from its first to its last connection.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use prometheus_client::metrics::gauge::Gauge;
use runtime::Runtime;
use scheduler::Scheduler;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::connection;
use crate::shared::Shared;
use crate::tls::Tls;
use crate::{Options, Readiness, routes};

/// Connections that the kernel keeps while none can be taken.
const BACKLOG: u32 = 4_096;
/// The pause after a failed accept: most causes (no file handles left) do not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{0} is taken by another process; stop it, or listen elsewhere")]
    AddressInUse(SocketAddr),
    #[error("{0} may not be listened on by this user; choose a port from 1024 on")]
    Forbidden(SocketAddr),
    #[error("{address} cannot be listened on")]
    Other {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// A bound server that does not serve yet: clients can connect, and wait.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl Server {
    /// # Errors
    /// If the address of `options` cannot be listened on.
    #[expect(clippy::unused_async, reason = "a socket is bound inside its reactor, and awaiting shows that")]
    pub async fn bind(runtime: Runtime, scheduler: Scheduler, options: Options) -> Result<Self, BindError> {
        let address = options.listen;
        let (listener, local_addr) = listen(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse(address),
            io::ErrorKind::PermissionDenied => BindError::Forbidden(address),
            _ => BindError::Other { address, source },
        })?;
        let shared = Arc::new(Shared::new(runtime, scheduler, options));
        Ok(Server { shared, listener, local_addr })
    }

    /// The address, with the port that the kernel chose if 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What `/readyz` goes by, beside the store.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness.clone()
    }

    /// Serves until `stop` resolves, then takes no more connections, lets the requests under way end within
    /// `drain_timeout`, and closes what is left. When it returns, no connection is open.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        let Server { shared, listener, .. } = self;
        let (drain, kill) = (CancellationToken::new(), CancellationToken::new());
        let places = Arc::new(Semaphore::new(shared.options.connections_max));
        let handshakes = Arc::new(Semaphore::new(shared.options.handshakes_max));
        let router = routes::router(shared.clone());
        let mut stop = pin!(stop.fuse());
        loop {
            let accepted = futures_util::select_biased! {
                () = stop => break,
                accepted = accept(&shared.runtime, &listener, &places).fuse() => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            let place = Place::new(shared.metrics.connections.clone(), place);
            let (shared, router) = (shared.clone(), router.clone());
            let (drain, kill, handshakes) = (drain.clone(), kill.clone(), handshakes.clone());
            let runtime = shared.runtime.clone();
            let task = async move {
                let _place = place;
                let Some(tls) = shared.options.tls.clone() else {
                    return connection::serve(shared, router, stream, drain, kill).await;
                };
                let secured = drain.run_until_cancelled(handshake(&shared, &tls, &handshakes, stream)).await;
                if let Some(stream) = secured.flatten() {
                    Box::pin(connection::serve(shared, router, stream, drain.clone(), kill)).await;
                }
            };
            // Its place is what this server waits for at the end.
            drop(runtime.spawn("connection", task));
        }
        drop(listener);
        drain.cancel();
        if shared.runtime.timeout(shared.options.drain_timeout, all_back(&shared.options, &places)).await.is_none() {
            tracing::warn!("requests are under way after the drain's time; their connections are closed");
            kill.cancel();
            all_back(&shared.options, &places).await;
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart may listen again at once, although the old process's connections linger in the kernel.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

/// The next connection and its place among the open ones; `None` if there was none this time.
async fn accept(
    runtime: &Runtime,
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.expect("nobody closes the semaphore");
    match listener.accept().await {
        Ok((stream, _)) => {
            // An answer is one write; waiting to join it with another only makes it late.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection went as it came");
                return None;
            }
            Some((stream, place))
        }
        Err(error) => {
            tracing::warn!(%error, "no connection can be taken; raise the limit of open files if this goes on");
            runtime.sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// `None` if the client breaks it off, does it wrong, or takes too long; the time of waiting for a turn counts.
async fn handshake(
    shared: &Shared,
    tls: &Tls,
    handshakes: &Semaphore,
    stream: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let secured = shared.runtime.timeout(shared.options.handshake_timeout, async {
        let _turn = handshakes.acquire().await.expect("nobody closes the semaphore");
        tls.acceptor().accept(stream).await
    });
    match secured.await {
        Some(Ok(stream)) => return Some(stream),
        Some(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        None => tracing::debug!("a TLS handshake took too long"),
    }
    shared.metrics.handshakes_failed.inc();
    None
}

/// Waits until no connection holds a place.
async fn all_back(options: &Options, places: &Semaphore) {
    let all = u32::try_from(options.connections_max).unwrap_or(u32::MAX);
    let _all = places.acquire_many(all).await.expect("nobody closes the semaphore");
}

/// What an open connection holds, and gives back however it ends.
struct Place {
    connections: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn new(connections: Gauge, permit: OwnedSemaphorePermit) -> Self {
        connections.inc();
        Place { connections, _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.dec();
    }
}

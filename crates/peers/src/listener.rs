//! The answering side's socket, and its life from the first to the last connection.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use membership::MemberId;
use prometheus_client::registry::Registry;
use runtime::Runtime;
use scheduler::InvalidRequest;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::metrics::Answered;
use crate::secret::ClusterSecret;
use crate::service::Service;
use crate::{connection, service};

/// Connections that the kernel keeps while none can be taken.
const BACKLOG: u32 = 1_024;
/// The pause after a failed accept: most causes (no file handles left) do not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Handles a request for an operation: `Scheduler::handle`. It continues if the peer does not wait for the response.
pub type Handler = Arc<dyn Fn(String, Bytes) -> BoxFuture<'static, Result<Bytes, InvalidRequest>> + Send + Sync>;

/// Whether this member's present session has this id: requests for any other are not answered.
pub type IsMe = Arc<dyn Fn(MemberId) -> bool + Send + Sync>;

/// The limits of answering. Each has a default that suits most.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Further ones wait in the kernel. Default 1,024.
    pub connections_max: usize,
    /// Asks being read or answered at once; further ones wait, for `read_timeout` at most. Default 256. Each may hold
    /// [`scheduler::REQUEST_BYTES_MAX`] bytes of its body, and about twice as much while it is decoded.
    pub asks_max: usize,
    /// From the head of an ask to the end of its body; and for a new connection to send its first head. Default 5 s.
    pub read_timeout: Duration,
    /// For the handler. Default 30 s, longer than anybody waits: it is there so that a store that hangs does not hold
    /// on to asks for ever. After it what was asked may be half-done.
    pub answer_timeout: Duration,
    /// A connection is closed after this long without a request. Default 60 s; it is to be above the asking side's
    /// own, so that it is not closed while an ask is on its way.
    pub idle_timeout: Duration,
    /// How far a sender's clock may be off, either way. Default 30 s; each request is remembered for about as long.
    pub clock_offset_max: Duration,
    /// Requests that are remembered, so that none is answered twice; beyond it asks are refused. Default 1,048,576:
    /// with the default offset, 35,000 asks a second, in about 70 MB.
    pub nonces_max: usize,
    /// How long asks under way have when the listener stops. Default 10 s.
    pub drain_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions {
            connections_max: 1_024,
            asks_max: 256,
            read_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            clock_offset_max: Duration::from_secs(30),
            nonces_max: 1 << 20,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{0} is taken by another process; stop it, or listen for peers elsewhere")]
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

/// A bound socket that does not answer yet: peers can connect, and wait.
pub struct Listener {
    runtime: Runtime,
    options: ListenerOptions,
    listener: TcpListener,
    local_addr: SocketAddr,
    answered: Arc<Answered>,
}

impl Listener {
    /// # Errors
    /// If `address` cannot be listened on.
    #[expect(clippy::unused_async, reason = "a socket is bound inside its reactor, and awaiting shows that")]
    pub async fn bind(runtime: &Runtime, address: SocketAddr, options: ListenerOptions) -> Result<Self, BindError> {
        let (listener, local_addr) = listen(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse(address),
            io::ErrorKind::PermissionDenied => BindError::Forbidden(address),
            _ => BindError::Other { address, source },
        })?;
        Ok(Listener { runtime: runtime.clone(), options, listener, local_addr, answered: Arc::default() })
    }

    /// The address, with the port that the kernel chose if 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Adds what is counted here to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.answered.register(registry);
    }

    /// Answers until `stop` resolves, then takes no more connections, lets the asks under way end within
    /// `drain_timeout`, and drops what is left. When it returns, no connection is open and no handler runs.
    pub async fn serve_until(
        self,
        secret: ClusterSecret,
        is_me: IsMe,
        handler: Handler,
        stop: impl Future<Output = ()>,
    ) {
        let Listener { runtime, options, listener, answered, .. } = self;
        let (drain, kill) = (CancellationToken::new(), CancellationToken::new());
        let (connections_max, asks_max) = (permits(options.connections_max), permits(options.asks_max));
        let places = Arc::new(Semaphore::new(connections_max));
        let asks = Arc::new(Semaphore::new(asks_max));
        let drain_timeout = options.drain_timeout;
        let parts = service::Parts {
            runtime: runtime.clone(),
            secret,
            is_me,
            handler,
            options,
            asks,
            answered,
            kill: kill.clone(),
        };
        let service = Arc::new(Service::new(parts));
        let mut stop = pin!(stop.fuse());
        loop {
            let accepted = futures_util::select_biased! {
                () = stop => break,
                accepted = accept(&runtime, &listener, &places).fuse() => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            let connection = connection::serve(service.clone(), stream, drain.clone());
            let kill = kill.clone();
            // Its place is what this listener waits for at the end.
            drop(runtime.spawn("peer connection", async move {
                let _place = place;
                kill.run_until_cancelled(connection).await;
            }));
        }
        drop(listener);
        drain.cancel();
        let ended = async {
            all_back(&places, connections_max).await;
            all_back(&service.parts.asks, asks_max).await;
        };
        let mut ended = pin!(ended);
        if runtime.timeout(drain_timeout, &mut ended).await.is_none() {
            tracing::warn!("peers' asks are under way after the drain's time; they are dropped");
            kill.cancel();
            ended.await;
        }
    }
}

fn permits(limit: usize) -> usize {
    limit.clamp(1, 1 << 20)
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
            tracing::warn!(%error, "no connection of peers can be taken; raise the limit of open files if this goes on");
            runtime.sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Waits until nobody holds one of the `count` permits there are.
async fn all_back(permits: &Semaphore, count: usize) {
    let all = u32::try_from(count).unwrap_or(u32::MAX);
    let _all = permits.acquire_many(all).await.expect("nobody closes the semaphore");
}

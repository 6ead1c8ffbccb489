//! The answering side's socket, and its life from the first to the last connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use listener::{BindError, Shutdown};
use membership::MemberId;
use prometheus_client::registry::Registry;
use runtime::Runtime;
use scheduler::InvalidRequest;
use tokio::net::TcpListener;

use crate::connection;
use crate::metrics::Answered;
use crate::secret::ClusterSecret;
use crate::service::{Parts, Service};

/// Connections that the kernel keeps while none can be taken.
const BACKLOG: u32 = 1_024;

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
    pub async fn bind(runtime: &Runtime, address: SocketAddr, options: ListenerOptions) -> Result<Self, BindError> {
        let (listener, local_addr) = listener::bind(address, BACKLOG, "listen for peers").await?;
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
        let shutdown = Shutdown::default();
        let limits = listener::Options {
            connections_max: options.connections_max,
            drain_timeout: options.drain_timeout,
            task: "peer connection",
            accept_failed: "no connection of peers can be taken; raise the limit of open files if this goes on",
            drain_timed_out: "peers' asks are under way after the drain's time; they are dropped",
        };
        let parts =
            Parts { runtime: runtime.clone(), secret, is_me, handler, options, answered, shutdown: shutdown.clone() };
        let service = Arc::new(Service::new(parts));
        let serve = |stream| connection::serve(service.clone(), stream);
        listener::serve_until(&runtime, listener, limits, shutdown, serve, stop).await;
    }
}

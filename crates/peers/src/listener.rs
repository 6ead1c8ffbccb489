//! The answering side's socket, and its life from the first to the last connection.

use std::net::SocketAddr;
use std::sync::Arc;

use listener::{BindError, Shutdown};
use prometheus_client::registry::Registry;
use runtime::Runtime;
use tokio::net::TcpListener;

use crate::connection;
use crate::metrics::Answered;
use crate::secret::ClusterSecret;
use crate::service::{Handler, IsMe, ListenerOptions, Parts, Service};

/// Connections that the kernel keeps while none can be taken.
const BACKLOG: u32 = 1_024;

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

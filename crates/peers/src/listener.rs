//! Listener for the requests of other members. After a stop, it accepts no more connections and waits for the requests
//! in progress.

use std::net::SocketAddr;
use std::sync::Arc;

use listener::{BindError, Shutdown};
use prometheus_client::registry::Registry;
use runtime::Runtime;
use tokio::net::TcpListener;

use crate::connection;
use crate::identity::{Identity, IsCurrentSession};
use crate::metrics::RequestCounter;
use crate::service::{Handler, ListenerOptions, Parts, Service};

/// Number of connections that the kernel queues while the listener cannot accept connections.
const BACKLOG: u32 = 1_024;

/// Bound socket that does not respond yet. Peers can connect and wait for a response.
pub struct Listener {
    runtime: Runtime,
    options: ListenerOptions,
    listener: TcpListener,
    local_addr: SocketAddr,
    request_counter: Arc<RequestCounter>,
}

impl Listener {
    /// Binds the socket.
    ///
    /// # Errors
    /// Returns [`BindError`] if the process cannot listen on `address`.
    pub async fn bind(runtime: &Runtime, address: SocketAddr, options: ListenerOptions) -> Result<Self, BindError> {
        let (listener, local_addr) = listener::bind(address, BACKLOG, "listen for peers").await?;
        Ok(Listener { runtime: runtime.clone(), options, listener, local_addr, request_counter: Arc::default() })
    }

    /// Returns the local address, with the port that the kernel chose if the requested port was 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Registers the listener's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.request_counter.register(registry);
    }

    /// Responds to requests until `stop` resolves. Then the listener accepts no more connections, waits up to
    /// `drain_timeout` for the requests in progress, and drops the requests that remain. When this function returns, no
    /// connection is open and no handler runs.
    pub async fn serve_until(
        self,
        identity: Identity,
        is_me: IsCurrentSession,
        handler: Handler,
        stop: impl Future<Output = ()>,
    ) {
        let Listener { runtime, options, listener, request_counter, .. } = self;
        let shutdown = Shutdown::default();
        let limits = listener::Options {
            connections_max: options.connections_max,
            share: None,
            drain_timeout: options.drain_timeout,
            task: "peer connection",
            accept_failed: "cannot accept connections from peers; if this continues, raise the limit on open files",
            drain_timed_out: "the drain timeout has passed; dropping the peers' requests that are still in progress",
        };
        let parts = Parts {
            runtime: runtime.clone(),
            identity,
            is_me,
            handler,
            options,
            request_counter,
            shutdown: shutdown.clone(),
        };
        let service = Arc::new(Service::new(parts));
        let serve = |stream, slot| connection::serve(service.clone(), stream, slot);
        listener::serve_until(&runtime, listener, limits, shutdown, serve, stop).await;
    }
}

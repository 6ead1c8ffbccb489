//! HTTP server, with its socket, its connections and its shutdown.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::{Either, OptionFuture, join3};
use listener::{AddressShare, BindError, Shutdown};
use runtime::Runtime;
use scheduler::Scheduler;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::Open;
use crate::state::AppState;
use crate::tls::Tls;
use crate::{Options, Readiness, connection, routes};

/// Maximum number of connections that the kernel queues until the server accepts them.
const BACKLOG: u32 = 4_096;

/// Maximum number of open connections of the listener for metrics. Few programs read metrics.
const METRICS_CONNECTIONS_MAX: usize = 64;
const ACCEPT_FAILED: &str =
    "cannot accept a connection; if this error repeats, raise the hard limit of open files (ulimit -Hn, LimitNOFILE)";

/// Server that has bound its sockets but does not read requests yet. Clients can connect, but must wait for responses.
pub struct Server {
    app: Arc<AppState>,
    listener: TcpListener,
    local_addr: SocketAddr,
    /// Listener for metrics, with its address.
    metrics: Option<(TcpListener, SocketAddr)>,
}

impl Server {
    /// Binds the server's sockets.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen on an address of `options`.
    pub async fn bind(runtime: Runtime, scheduler: Scheduler, options: Options) -> Result<Self, BindError> {
        let (listener, local_addr) = listener::bind(options.listen, BACKLOG, "listen").await?;
        let metrics = match options.metrics_listen {
            Some(address) => Some(listener::bind(address, BACKLOG, "listen for metrics").await?),
            None => None,
        };
        let app = Arc::new(AppState::new(runtime, scheduler, options));
        Ok(Server { app, listener, local_addr, metrics })
    }

    /// Returns the server's address, with the port that the kernel chose if the requested port was 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the address of the listener for metrics.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, address)| *address)
    }

    /// Returns the readiness that `/readyz` reports in addition to the store's health.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.app.readiness.clone()
    }

    /// Serves requests until `stop` resolves. Then the server accepts no more connections, lets current requests end
    /// within `drain_timeout`, and closes the remaining connections. When this function returns, no connection is open.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        let Server { app, listener, metrics, .. } = self;
        let stopped = CancellationToken::new();
        let serving = serve_users(app.clone(), listener, stopped.cancelled());
        let metrics = metrics.map(|(listener, _)| serve_metrics(app, listener, stopped.cancelled()));
        let stop = async {
            stop.await;
            stopped.cancel();
        };
        join3(stop, serving, OptionFuture::from(metrics)).await;
    }
}

async fn serve_users(app: Arc<AppState>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let shutdown = Shutdown::default();
    let options = listener::Options {
        connections_max: app.options.connections_max,
        share: Some(address_share(&app)),
        drain_timeout: app.options.drain_timeout,
        task: "connection",
        accept_failed: ACCEPT_FAILED,
        drain_timed_out: "drain timed out; closing the connections of unfinished requests",
    };
    let handshakes = Arc::new(Semaphore::new(app.options.handshakes_max));
    let router = routes::router(app.clone());
    let (runtime, drain) = (app.runtime.clone(), shutdown.drain.clone());
    let serve = |stream, slot| {
        let open = Open::new(&app.metrics, slot);
        let (app, router, drain) = (app.clone(), router.clone(), drain.clone());
        let Some(tls) = app.options.tls.clone() else {
            return Either::Left(connection::serve(app, router, stream, drain, open));
        };
        let handshakes = handshakes.clone();
        Either::Right(async move {
            let secured = drain.run_until_cancelled(handshake(&app, &tls, &handshakes, stream)).await;
            if let Some(stream) = secured.flatten() {
                Box::pin(connection::serve(app, router, stream, drain.clone(), open)).await;
            }
        })
    };
    listener::serve_until(&runtime, listener, options, shutdown, serve, stop).await;
}

async fn serve_metrics(app: Arc<AppState>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let shutdown = Shutdown::default();
    let options = listener::Options {
        connections_max: METRICS_CONNECTIONS_MAX,
        share: None,
        drain_timeout: app.options.drain_timeout,
        task: "metrics connection",
        accept_failed: ACCEPT_FAILED,
        drain_timed_out: "drain timed out; closing the connections that read metrics",
    };
    let router = routes::metrics_router(app.clone());
    let (runtime, drain) = (app.runtime.clone(), shutdown.drain.clone());
    let serve = |stream, slot| {
        let open = Open::new(&app.metrics, slot);
        connection::serve(app.clone(), router.clone(), stream, drain.clone(), open)
    };
    listener::serve_until(&runtime, listener, options, shutdown, serve, stop).await;
}

/// Returns the share of the connections that one client address may use: half, or all for a trusted proxy.
fn address_share(app: &AppState) -> AddressShare {
    let (proxies, rejected) = (app.options.trusted_proxies.clone(), app.metrics.connections_rejected.clone());
    AddressShare {
        connections_max: app.options.connections_max.div_ceil(2),
        is_exempt: Arc::new(move |address| proxies.iter().any(|network| network.contains(address))),
        rejected: Arc::new(move || {
            rejected.inc();
        }),
    }
}

/// Performs a TLS handshake. Returns `None` if the handshake fails or takes too long. The time limit includes the wait
/// for a permit to start the handshake.
async fn handshake(
    app: &AppState,
    tls: &Tls,
    handshakes: &Semaphore,
    stream: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let secured = app.runtime.timeout(app.options.handshake_timeout, async {
        let _permit = handshakes.acquire().await.expect("no code closes the semaphore");
        tls.acceptor().accept(stream).await
    });
    match secured.await {
        Some(Ok(stream)) => return Some(stream),
        Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        None => tracing::debug!("TLS handshake timed out"),
    }
    app.metrics.handshakes_failed.inc();
    None
}

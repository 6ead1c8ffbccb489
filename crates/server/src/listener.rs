//! The server's life from its socket to its last connection.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::Either;
use listener::{BindError, Shutdown};
use runtime::Runtime;
use scheduler::Scheduler;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

use crate::metrics::Open;
use crate::state::AppState;
use crate::tls::Tls;
use crate::{Options, Readiness, connection, routes};

/// Connections that the kernel keeps while none can be taken.
const BACKLOG: u32 = 4_096;

/// A bound server that does not serve yet: clients can connect, and wait.
pub struct Server {
    app: Arc<AppState>,
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl Server {
    /// # Errors
    /// If the address of `options` cannot be listened on.
    pub async fn bind(runtime: Runtime, scheduler: Scheduler, options: Options) -> Result<Self, BindError> {
        let (listener, local_addr) = listener::bind(options.listen, BACKLOG, "listen").await?;
        let app = Arc::new(AppState::new(runtime, scheduler, options));
        Ok(Server { app, listener, local_addr })
    }

    /// The address, with the port that the kernel chose if 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What `/readyz` goes by, beside the store.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.app.readiness.clone()
    }

    /// Serves until `stop` resolves, then takes no more connections, lets the requests under way end within
    /// `drain_timeout`, and closes what is left. When it returns, no connection is open.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        let Server { app, listener, .. } = self;
        let shutdown = Shutdown::default();
        let options = listener::Options {
            connections_max: app.options.connections_max,
            drain_timeout: app.options.drain_timeout,
            task: "connection",
            accept_failed: "no connection can be taken; raise the limit of open files if this goes on",
            drain_timed_out: "requests are under way after the drain's time; their connections are closed",
        };
        let handshakes = Arc::new(Semaphore::new(app.options.handshakes_max));
        let router = routes::router(app.clone());
        let (runtime, drain) = (app.runtime.clone(), shutdown.drain.clone());
        let serve = |stream| {
            let open = Open::new(&app.metrics.connections);
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
}

/// `None` if the client breaks it off, does it wrong, or takes too long; the time of waiting for a turn counts.
async fn handshake(
    app: &AppState,
    tls: &Tls,
    handshakes: &Semaphore,
    stream: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let secured = app.runtime.timeout(app.options.handshake_timeout, async {
        let _turn = handshakes.acquire().await.expect("nobody closes the semaphore");
        tls.acceptor().accept(stream).await
    });
    match secured.await {
        Some(Ok(stream)) => return Some(stream),
        Some(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        None => tracing::debug!("a TLS handshake took too long"),
    }
    app.metrics.handshakes_failed.inc();
    None
}

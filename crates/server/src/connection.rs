//! Client connection, with its protocol limits and its streamed responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use futures_util::future::FutureExt;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use listener::{Activity, Builder, End, IdleTimeout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::metrics::Open;
use crate::routes;
use crate::state::AppState;
use crate::unread::{Budget, watched};

/// Maximum number of bytes in the send buffer of one HTTP/2 stream. The HTTP library takes a further piece of a
/// response body only while the buffer contains fewer bytes than this number. A small number limits the data rate to
/// distant clients.
const SEND_BYTES_MAX: usize = 128 << 10;
/// Maximum number of HTTP/2 streams that the client has reset before the server accepted them. The HTTP library closes
/// a connection that exceeds this number (CVE-2023-44487).
const RESET_STREAMS_MAX: usize = 20;

/// Serves a connection until the client closes it or the connection is idle for too long. After a caller cancels
/// the token `drain`, the function returns as soon as the current requests have ended.
pub(crate) async fn serve(
    app: Arc<AppState>,
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    drain: CancellationToken,
    open: Open,
) {
    let idle_timeout = IdleTimeout { first: app.options.idle_timeout, period: app.options.idle_timeout };
    let slot = open.slot();
    let budget = Budget::new(app.options.response_bytes_per_connection_max);
    let service = |request: Request<Incoming>, activity| {
        let mut request = watched_request(request, &activity);
        request.extensions_mut().insert(budget.clone());
        request.extensions_mut().insert(slot.clone());
        let response = router.clone().call(routes::with_known_path(request));
        response.map(|response| {
            let Ok(response) = response;
            watched(response, activity)
        })
    };
    let builder = builder(&app);
    match listener::serve_http(&app.runtime, &builder, stream, slot.clone(), idle_timeout, &drain, service).await {
        Ok(End::Closed) => {}
        Ok(End::Idle) => {
            app.metrics.connections_idle_closed.inc();
        }
        Err(error) => tracing::debug!(%error, "connection failed"),
    }
}

fn builder(app: &AppState) -> Builder {
    let options = &app.options;
    let mut builder = listener::builder(&app.runtime);
    // Without `writev`, the HTTP library would copy each response body to its buffer and then drop the body. The server
    // would therefore release the bytes reserved for the response before the client reads the response.
    builder.http1().max_buf_size(options.head_bytes_max.max(8_192)).pipeline_flush(false).writev(true);
    let head_bytes_max = u32::try_from(options.head_bytes_max).unwrap_or(u32::MAX);
    builder
        .http2()
        .max_header_list_size(head_bytes_max)
        .max_concurrent_streams(options.streams_max)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Wraps the body of a request so that each piece of the body counts as activity of the connection. Otherwise the idle
/// timeout could end a batch whose client sends lines for a long time before it reads the first result.
fn watched_request(request: Request<Incoming>, activity: &Arc<Activity>) -> Request<Body> {
    if request.body().is_end_stream() {
        return request.map(Body::new);
    }
    request.map(|body| Body::new(WatchedRequest { body, activity: activity.clone() }))
}

struct WatchedRequest {
    body: Incoming,
    activity: Arc<Activity>,
}

impl HttpBody for WatchedRequest {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.activity.touch();
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

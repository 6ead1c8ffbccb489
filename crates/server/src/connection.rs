//! Client connection, with its protocol limits and its streamed responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
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

/// Serves a connection until the client closes it or the connection is idle for too long. After a caller cancels
/// `drain`, the function returns as soon as the current requests have ended.
pub(crate) async fn serve(
    app: Arc<AppState>,
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    drain: CancellationToken,
    _open: Open,
) {
    let idle_timeout = IdleTimeout { first: app.options.idle_timeout, period: app.options.idle_timeout };
    let service = |request: Request<Incoming>, activity| {
        let response = router.clone().call(routes::with_colons(request.map(Body::new)));
        response.map(|response| {
            let Ok(response) = response;
            watched(response, activity)
        })
    };
    let builder = builder(&app);
    match listener::serve_http(&app.runtime, &builder, stream, idle_timeout, &drain, service).await {
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
    builder.http1().max_buf_size(options.head_bytes_max.max(8_192));
    let head_bytes_max = u32::try_from(options.head_bytes_max).unwrap_or(u32::MAX);
    builder
        .http2()
        .max_header_list_size(head_bytes_max)
        .max_concurrent_streams(options.streams_max)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Wraps a streamed response so that each step of its body counts as activity. A response of known length needs no
/// wrapper, because the server passes such a response to the kernel at once.
fn watched(response: Response<Body>, activity: Arc<Activity>) -> Response<Body> {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| Body::new(WatchedBody { body, activity }))
}

struct WatchedBody {
    body: Body,
    activity: Arc<Activity>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
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

//! One connection: HTTP/1.1 or 2 by its first bytes, and an eye on whether anything goes on.
//!
//! The watch stands in for the HTTP library's own timer of heads: that one is set anew for each request, this one
//! sleeps through all of them, and sees a silent HTTP/2 connection, an unread answer and a missing preface, too.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use futures_util::future::{Either, FutureExt, select};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use runtime::{Monotonic, Runtime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::shared::Shared;

/// Serves until the client goes, nothing goes on for too long, or the server stops.
///
/// `drain` ends it after the requests under way, `kill` at once.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    drain: CancellationToken,
    kill: CancellationToken,
) {
    let watch = Arc::new(Watch::new(shared.runtime.clone()));
    let builder = builder(&shared);
    let service = service_fn(|request: Request<Incoming>| {
        let (mut router, watch) = (router.clone(), watch.clone());
        async move {
            let _busy = watch.begin();
            let response = router.call(request.map(Body::new)).await;
            response.map(|response| watched(response, &watch))
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stop = pin!(drain.cancelled().fuse());
    let mut is_draining = false;
    loop {
        let mut idle = pin!(shared.runtime.sleep_until(watch.deadline(shared.options.idle_timeout)));
        let mut ends = pin!(async {
            futures_util::select_biased! { () = stop => {}, () = kill.cancelled().fuse() => {} }
        });
        match select(&mut connection, select(&mut ends, &mut idle)).await {
            Either::Left((Ok(()), _)) => return,
            Either::Left((Err(error), _)) => {
                tracing::debug!(%error, "a connection ended");
                return;
            }
            Either::Right((Either::Left(_), _)) => {
                if kill.is_cancelled() {
                    return;
                }
                if !is_draining {
                    is_draining = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
            Either::Right((Either::Right(_), _)) => {
                if watch.is_idle_for(shared.options.idle_timeout) {
                    shared.metrics.connections_idle_closed.inc();
                    return;
                }
            }
        }
    }
}

fn builder(shared: &Shared) -> auto::Builder<Executor> {
    let options = &shared.options;
    let mut builder = auto::Builder::new(Executor(shared.runtime.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(options.head_bytes_max.max(8_192));
    let head_bytes_max = u32::try_from(options.head_bytes_max).unwrap_or(u32::MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(head_bytes_max)
        .max_concurrent_streams(options.streams_max)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Runs the streams of HTTP/2 connections; each ends with its request.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("http2 stream", future));
    }
}

/// When something last went on.
struct Watch {
    runtime: Runtime,
    /// Requests whose answer is being made.
    busy: AtomicUsize,
    /// The last begin or end of a request, or step of a streamed answer, in milliseconds of the monotonic clock.
    last_millis: AtomicU64,
}

impl Watch {
    fn new(runtime: Runtime) -> Self {
        let watch = Watch { runtime, busy: AtomicUsize::new(0), last_millis: AtomicU64::new(0) };
        watch.touch();
        watch
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Busy(self.clone())
    }

    fn touch(&self) {
        let millis = self.runtime.monotonic().since_start().as_millis();
        self.last_millis.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn last(&self) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// When to look again.
    fn deadline(&self, idle_timeout: Duration) -> Monotonic {
        let from = if self.is_busy() { self.runtime.monotonic() } else { self.last() };
        from + idle_timeout
    }

    fn is_idle_for(&self, idle_timeout: Duration) -> bool {
        !self.is_busy() && self.runtime.monotonic().since(self.last()) >= idle_timeout
    }
}

/// While this lives, a request's answer is being made.
struct Busy(Arc<Watch>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A streamed answer tells the watch of each step; one of known length is at most the kernel's to send.
fn watched(response: Response<Body>, watch: &Arc<Watch>) -> Response<Body> {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let watch = watch.clone();
    response.map(|body| Body::new(WatchedBody { body, watch }))
}

struct WatchedBody {
    body: Body,
    watch: Arc<Watch>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.watch.touch();
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

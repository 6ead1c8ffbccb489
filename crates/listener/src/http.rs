//! One HTTP connection, closed after an idle timeout.
//!
//! [`Activity`] replaces the header timer of the HTTP library. The library sets its timer again for each request. This
//! timer sleeps across requests, and also covers a silent HTTP/2 connection, an unread response and a missing preface.
//!
//! docs/decisions/0061-set-one-idle-timer-per-connection.md gives the reasons for the design.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use runtime::{Monotonic, Runtime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Protocol limits of a connection.
pub type Builder = auto::Builder<Executor>;

/// Returns a builder without a header timeout, because [`serve_http`] watches the connection instead.
#[must_use]
pub fn builder(runtime: &Runtime) -> Builder {
    let mut builder = auto::Builder::new(Executor(runtime.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder.http2().timer(TokioTimer::new());
    builder
}

/// Spawns the streams of HTTP/2 connections. Each stream ends with its request.
#[derive(Clone)]
pub struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("http2 stream", future));
    }
}

/// Idle timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimeout {
    /// Timeout before the first response. Each response can set another one with [`Activity::set_idle_timeout`].
    pub first: Duration,
    /// Period of the checks, at most the shortest timeout, because a response may shorten the timeout during the wait.
    pub period: Duration,
}

/// End of a connection without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Idle,
}

/// Serves a connection until the client closes it, it is idle for too long, or `drain` is cancelled and the current
/// requests have their responses.
///
/// # Errors
/// Returns an error if the connection breaks, or its bytes are not HTTP.
pub async fn serve_http<S, F, B>(
    runtime: &Runtime,
    builder: &Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    idle_timeout: IdleTimeout,
    drain: &CancellationToken,
    service: S,
) -> Result<End, Box<dyn Error + Send + Sync>>
where
    S: Fn(Request<Incoming>, Arc<Activity>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let activity = Arc::new(Activity::new(runtime.clone(), idle_timeout.first));
    let service = service_fn(|request| {
        let busy = activity.begin();
        let response = service(request, activity.clone());
        async move {
            let _busy = busy;
            Ok::<_, Infallible>(response.await)
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stop = pin!(drain.cancelled().fuse());
    loop {
        let idle = pin!(runtime.sleep_until(activity.check_at(idle_timeout.period)));
        match select(&mut connection, select(stop.as_mut(), idle)).await {
            Either::Left((ended, _)) => return ended.map(|()| End::Closed),
            Either::Right((Either::Left(_), _)) => connection.as_mut().graceful_shutdown(),
            Either::Right((Either::Right(_), _)) if activity.is_idle() => return Ok(End::Idle),
            Either::Right((Either::Right(_), _)) => {}
        }
    }
}

/// Activity of one connection and the time of the last activity.
pub struct Activity {
    runtime: Runtime,
    /// Requests without a response.
    busy: AtomicUsize,
    idle_timeout_millis: AtomicU64,
    /// Last start or end of a request, or last [`Activity::touch`], in milliseconds of the monotonic clock.
    last_millis: AtomicU64,
}

impl Activity {
    fn new(runtime: Runtime, idle_timeout: Duration) -> Self {
        let activity = Activity {
            runtime,
            busy: AtomicUsize::new(0),
            idle_timeout_millis: AtomicU64::new(0),
            last_millis: AtomicU64::new(0),
        };
        activity.set_idle_timeout(idle_timeout);
        activity.touch();
        activity
    }

    /// Sets the idle timeout after the current response.
    pub fn set_idle_timeout(&self, idle_timeout: Duration) {
        self.idle_timeout_millis.store(millis(idle_timeout), Ordering::Relaxed);
    }

    /// Records progress of a streamed response.
    pub fn touch(&self) {
        self.last_millis.store(millis(self.runtime.monotonic().since_start()), Ordering::Relaxed);
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Busy(self.clone())
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    fn idle_from(&self) -> Monotonic {
        let millis = self.last_millis.load(Ordering::Relaxed) + self.idle_timeout_millis.load(Ordering::Relaxed);
        Monotonic::from_start(Duration::from_millis(millis))
    }

    fn check_at(&self, period: Duration) -> Monotonic {
        let next = self.runtime.monotonic() + period;
        if self.is_busy() { next } else { next.min(self.idle_from()) }
    }

    fn is_idle(&self) -> bool {
        !self.is_busy() && self.runtime.monotonic() >= self.idle_from()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Guards a request that has no response yet.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

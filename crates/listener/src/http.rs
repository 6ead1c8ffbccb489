//! One HTTP connection, closed when nothing happens on it for too long.
//!
//! [`Activity`] replaces the HTTP library's own timer of heads: that timer is set again for each request, while this one
//! sleeps through all of them, and also notices a silent HTTP/2 connection, an unread response and a missing preface.

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

/// Limits of the protocols.
pub type Builder = auto::Builder<Executor>;

/// A builder whose timeout of heads is off: [`serve_http`] watches the connection instead.
#[must_use]
pub fn builder(runtime: &Runtime) -> Builder {
    let mut builder = auto::Builder::new(Executor(runtime.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder.http2().timer(TokioTimer::new());
    builder
}

/// Runs the streams of HTTP/2 connections; each ends with its request.
#[derive(Clone)]
pub struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("http2 stream", future));
    }
}

/// When a connection counts as idle.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimeout {
    /// Before the first response; each response can set another ([`Activity::set_idle_timeout`]).
    pub first: Duration,
    /// Period of the checks. It is at most the shortest timeout, since the timeout may change during the wait.
    pub period: Duration,
}

/// How a connection ended without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Idle,
}

/// Serves until the client closes the connection, the connection is idle for too long, or `drain` is cancelled and the
/// requests being served have their responses.
///
/// # Errors
/// If the connection breaks, or its bytes are not HTTP.
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

/// What happens on a connection, and when it last did.
pub struct Activity {
    runtime: Runtime,
    /// Requests without a response.
    busy: AtomicUsize,
    idle_timeout_millis: AtomicU64,
    /// Last begin or end of a request, or [`Activity::touch`], in milliseconds of the monotonic clock.
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

    /// Sets the time that the connection may be idle after this response.
    pub fn set_idle_timeout(&self, idle_timeout: Duration) {
        self.idle_timeout_millis.store(millis(idle_timeout), Ordering::Relaxed);
    }

    /// Notes a step of a streamed response.
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

//! Serves one HTTP connection and closes it after an idle timeout.
//!
//! Each connection has one idle timer, see [`Activity`]. The HTTP library would create a header timer for each request,
//! so the idle timer replaces the library's header timer. The idle timer also closes an HTTP/2 connection without
//! requests, and a connection whose client does not read a response or does not send the HTTP/2 preface. Further
//! requests do not extend the time for which a client may leave responses unread.
//!
//! docs/decisions/0061-set-one-idle-timer-per-connection.md and 0193-bound-the-bytes-of-unread-responses.md give the
//! reasons for the design.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
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

use crate::slots::{InProgress, Slot};

/// Builder of HTTP connections, which contains their protocol limits.
pub type Builder = auto::Builder<Executor>;

/// Returns a builder without a header timeout, because [`serve_http`] closes an idle connection instead.
#[must_use]
pub fn builder(runtime: &Runtime) -> Builder {
    let mut builder = auto::Builder::new(Executor(runtime.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder.http2().timer(TokioTimer::new());
    builder
}

/// Executor that spawns a task for each stream of an HTTP/2 connection. The task ends with the request of the stream.
#[derive(Clone)]
pub struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("http2 stream", future));
    }
}

/// Idle timeout of a connection.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimeout {
    /// Idle timeout until the handler of a request sets another timeout with [`Activity::set_idle_timeout`].
    pub first: Duration,
    /// Interval at which [`serve_http`] checks whether the connection is idle. It must not exceed the shortest idle
    /// timeout, because the handler of a request may shorten the timeout between two checks.
    pub period: Duration,
}

/// Reason why a connection ended without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Idle,
}

/// Serves a connection until the client closes it or the connection is idle for too long. After a cancellation of
/// `drain`, the connection ends when all current requests have their responses.
///
/// # Errors
/// Returns an error if the connection fails, or if the client does not send valid HTTP.
pub async fn serve_http<S, F, B>(
    runtime: &Runtime,
    builder: &Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    slot: Slot,
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
    let activity = Arc::new(Activity::new(runtime.clone(), slot, idle_timeout.first));
    let service = service_fn(|request| {
        let busy = activity.begin();
        let response = busy.is_some().then(|| service(request, activity.clone()));
        async move {
            let _busy = busy;
            match response {
                Some(response) => Ok::<_, Infallible>(response.await),
                // The listener is closing the connection, so the request gets no response.
                None => pending().await,
            }
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stop = pin!(drain.cancelled().fuse());
    loop {
        let idle = pin!(runtime.sleep_until(activity.check_at(idle_timeout.period)));
        match select(&mut connection, select(stop.as_mut(), idle)).await {
            Either::Left((ended, _)) => return ended.map(|()| End::Closed),
            Either::Right((Either::Left(_), _)) => connection.as_mut().graceful_shutdown(),
            Either::Right((Either::Right(_), _)) if activity.is_idle() || activity.is_stalled() => {
                return Ok(End::Idle);
            }
            Either::Right((Either::Right(_), _)) => {}
        }
    }
}

/// State of one connection: the requests in progress, the unread responses, the time of the last activity, and the idle
/// timeout.
pub struct Activity {
    runtime: Runtime,
    /// Slot of the connection, which counts the requests that have no response yet.
    slot: Slot,
    idle_timeout_millis: AtomicU64,
    /// Time of the last activity, in milliseconds of the monotonic clock. The start of a request, its end, and a call
    /// of [`Activity::touch`] count as activity.
    last_millis: AtomicU64,
    /// Times in milliseconds of the monotonic clock, one for each piece of a response that the client has not read
    /// completely. Each value is the time at which the client last read a part of the piece. Before the client's first
    /// read, the value is the time of the call of [`Activity::unread`].
    unread: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Activity {
    fn new(runtime: Runtime, slot: Slot, idle_timeout: Duration) -> Self {
        let activity = Activity {
            runtime,
            slot,
            idle_timeout_millis: AtomicU64::new(0),
            last_millis: AtomicU64::new(0),
            unread: Mutex::default(),
        };
        activity.set_idle_timeout(idle_timeout);
        activity.touch();
        activity
    }

    /// Sets the idle timeout that applies after the current response.
    pub fn set_idle_timeout(&self, idle_timeout: Duration) {
        self.idle_timeout_millis.store(millis(idle_timeout), Ordering::Relaxed);
    }

    /// Records activity on the connection, for example progress of a streamed response.
    pub fn touch(&self) {
        self.last_millis.store(self.now_millis(), Ordering::Relaxed);
    }

    /// Returns a guard for a piece of a response that the connection has not written yet. The connection ends if the
    /// client reads no part of the piece for the length of the idle timeout.
    #[must_use]
    pub fn unread(self: &Arc<Self>) -> Unread {
        let read_millis = Arc::new(AtomicU64::new(self.now_millis()));
        self.pieces().push(read_millis.clone());
        Unread { activity: self.clone(), read_millis }
    }

    fn pieces(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.unread.lock().expect("no holder of this lock panics")
    }

    fn now_millis(&self) -> u64 {
        millis(self.runtime.monotonic().since_start())
    }

    /// Prevents the listener from closing the connection to free its slot, see [`Slot::trust`].
    pub fn trust(&self) {
        self.slot.trust();
    }

    /// Counts a request as in progress. Returns `None` if the listener is closing the connection.
    fn begin(self: &Arc<Self>) -> Option<Busy> {
        let in_progress = self.slot.begin()?;
        self.touch();
        Some(Busy { activity: self.clone(), _in_progress: in_progress })
    }

    fn is_busy(&self) -> bool {
        self.slot.is_busy()
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

    /// Returns true if a piece of a response is unread, and the client has read no part of this piece for the length of
    /// the idle timeout.
    fn is_stalled(&self) -> bool {
        let (now, timeout) = (self.now_millis(), self.idle_timeout_millis.load(Ordering::Relaxed));
        self.pieces().iter().any(|read_millis| now >= read_millis.load(Ordering::Relaxed).saturating_add(timeout))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Guard of a piece of a response. The piece counts as unread until the drop of the guard.
pub struct Unread {
    activity: Arc<Activity>,
    read_millis: Arc<AtomicU64>,
}

impl Unread {
    /// Records that the connection has written a part of the piece.
    pub fn advance(&self) {
        self.read_millis.store(self.activity.now_millis(), Ordering::Relaxed);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.activity.pieces().retain(|other| !Arc::ptr_eq(other, &self.read_millis));
    }
}

/// Guard of a request. The request counts as in progress until the drop of the guard.
struct Busy {
    activity: Arc<Activity>,
    _in_progress: InProgress,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.touch();
    }
}

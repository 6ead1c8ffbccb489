//! One connection: HTTP/1.1, and an eye on whether anything goes on.
//!
//! Always true here: a connection that has not proved that it is a member's is closed with its first answer, or within
//! about the read timeout.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime::{Monotonic, Runtime};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::HEAD_BYTES_MAX;
use crate::service::Service;

const HEADERS_MAX: usize = 32;

/// Serves until the peer goes, nothing goes on for too long, or `drain` and the request under way has its answer.
pub(crate) async fn serve(service: Arc<Service>, stream: TcpStream, drain: CancellationToken) {
    let watch = Watch::new(&service.parts.runtime, service.parts.options.read_timeout);
    let answering = service_fn(|request: Request<Incoming>| {
        let (service, watch) = (service.clone(), &watch);
        async move {
            watch.begin();
            let (mut response, is_member) = service.answer(request).await;
            if is_member {
                watch.end(service.parts.options.idle_timeout);
            } else {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                watch.end(service.parts.options.read_timeout);
            }
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answering));
    let mut stop = pin!(drain.cancelled());
    let mut is_draining = false;
    // The end may come nearer while this sleeps.
    let period = service.parts.options.idle_timeout.min(service.parts.options.read_timeout);
    loop {
        let idle = pin!(service.parts.runtime.sleep_until(watch.look_again_at(period)));
        let stop = async {
            if is_draining {
                std::future::pending::<()>().await;
            }
            stop.as_mut().await;
        };
        match select(&mut connection, select(pin!(stop), idle)).await {
            Either::Left((ended, _)) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a peer's connection ended");
                }
                return;
            }
            Either::Right((Either::Left(_), _)) => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
            Either::Right((Either::Right(_), _)) => {
                if watch.is_over() {
                    return;
                }
            }
        }
    }
}

/// Until when a connection is worth keeping.
struct Watch<'a> {
    runtime: &'a Runtime,
    /// A request's answer is being made, under limits of its own.
    is_busy: AtomicBool,
    /// In milliseconds of the monotonic clock.
    until_millis: AtomicU64,
}

impl<'a> Watch<'a> {
    fn new(runtime: &'a Runtime, first: Duration) -> Self {
        let watch = Watch { runtime, is_busy: AtomicBool::new(false), until_millis: AtomicU64::new(0) };
        watch.end(first);
        watch
    }

    fn begin(&self) {
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// An answer was made; it may take `limit` until it is sent and the next request's head is there.
    fn end(&self, limit: Duration) {
        let until = (self.runtime.monotonic() + limit).since_start().as_millis();
        self.until_millis.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.is_busy.store(false, Ordering::Relaxed);
    }

    fn until(&self) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(self.until_millis.load(Ordering::Relaxed)))
    }

    fn look_again_at(&self, period: Duration) -> Monotonic {
        let next = self.runtime.monotonic() + period;
        if self.is_busy.load(Ordering::Relaxed) { next } else { next.min(self.until()) }
    }

    fn is_over(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed) && self.runtime.monotonic() >= self.until()
    }
}

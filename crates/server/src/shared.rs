//! What every request needs.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use futures_util::FutureExt;
use runtime::Runtime;
use scheduler::Scheduler;

use crate::Options;
use crate::metrics::{HttpMetrics, Route};
use crate::refusal::{Kind, Refused, refuse};

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) scheduler: Scheduler,
    pub(crate) options: Options,
    pub(crate) metrics: HttpMetrics,
    /// Request ids are this random beginning and a count: unique without asking for randomness each time.
    request_id_start: u32,
    requests: AtomicU64,
}

impl Shared {
    pub(crate) fn new(runtime: Runtime, scheduler: Scheduler, options: Options) -> Self {
        let request_id_start = u32::try_from(runtime.random() >> 32).unwrap_or(0);
        let metrics = HttpMetrics::new();
        Shared { runtime, scheduler, options, metrics, request_id_start, requests: AtomicU64::new(0) }
    }

    /// Turns what a route came to into its response, and measures it.
    pub(crate) async fn answer(
        &self,
        route: Route,
        work: impl Future<Output = Result<Response<Body>, Refused>>,
    ) -> Response<Body> {
        let started = self.runtime.monotonic();
        let outcome = AssertUnwindSafe(work).catch_unwind().await;
        let response = match outcome.unwrap_or_else(|_| Err(refuse(Kind::Internal, "this is a fault of the server"))) {
            Ok(response) => response,
            Err(refused) => {
                let request_id = self.request_id();
                let status = refused.status();
                // Full and unreachable stores have lines of their own; one for each request would bury them.
                if status == StatusCode::INTERNAL_SERVER_ERROR {
                    tracing::error!(request_id, ?route, "a request failed");
                } else {
                    tracing::debug!(request_id, ?route, %status, "a request was refused");
                }
                refused.into_response(request_id)
            }
        };
        self.metrics.observe(route, response.status(), self.runtime.monotonic().since(started));
        response
    }

    pub(crate) fn request_id(&self) -> String {
        format!("{:08x}-{:x}", self.request_id_start, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

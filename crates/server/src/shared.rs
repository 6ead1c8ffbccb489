//! What every request needs.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use domain::{ScheduleId, Spec, Tenant, Timestamp};
use futures_util::FutureExt;
use runtime::Runtime;
use scheduler::{Scheduler, Tenants};
use tracing::Instrument;

use crate::Options;
use crate::metrics::{HttpMetrics, Route};
use crate::openapi;
use crate::quota::{self, Creates, Pending, Room};
use crate::readiness::Readiness;
use crate::refusal::{Kind, Refused, refuse};
use crate::spans;

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) scheduler: Scheduler,
    pub(crate) tenants: Tenants,
    pub(crate) options: Options,
    pub(crate) metrics: HttpMetrics,
    pub(crate) creates: Creates,
    pub(crate) pending: Pending,
    pub(crate) readiness: Readiness,
    document: OnceLock<Bytes>,
    /// Request ids are this random beginning and a count: unique without asking for randomness each time.
    request_id_start: u32,
    requests: AtomicU64,
}

impl Shared {
    pub(crate) fn new(runtime: Runtime, scheduler: Scheduler, options: Options) -> Self {
        let request_id_start = u32::try_from(runtime.random() >> 32).unwrap_or(0);
        let metrics = HttpMetrics::new();
        let (creates, pending, readiness) = (Creates::default(), Pending::default(), Readiness::default());
        let requests = AtomicU64::new(0);
        let document = OnceLock::new();
        Shared {
            runtime,
            tenants: scheduler.tenants(),
            scheduler,
            options,
            metrics,
            creates,
            pending,
            readiness,
            document,
            request_id_start,
            requests,
        }
    }

    /// Turns what a route came to into its response, and measures it.
    ///
    /// A route's work is several KiB: it is boxed here, once, before anything that the router copies holds it.
    pub(crate) fn answer<'a>(
        &'a self,
        route: Route,
        work: impl Future<Output = Result<Response<Body>, Refused>> + Send + 'a,
    ) -> impl Future<Output = Response<Body>> + Send + 'a {
        let work = Box::pin(work);
        async move {
            let started = self.runtime.monotonic();
            let span = spans::request(route);
            let outcome = AssertUnwindSafe(work).catch_unwind().instrument(span.clone()).await;
            let outcome = outcome.unwrap_or_else(|_| Err(refuse(Kind::Internal, "this is a fault of the server")));
            let response = outcome.unwrap_or_else(|refused| {
                let (request_id, status) = (self.request_id(), refused.status());
                // Full and unreachable stores have lines of their own; one for each request would bury them.
                if status == StatusCode::INTERNAL_SERVER_ERROR {
                    tracing::error!(request_id, ?route, "a request failed");
                } else {
                    tracing::debug!(request_id, ?route, %status, "a request was refused");
                }
                refused.into_response(request_id)
            });
            spans::answered(&span, response.status());
            self.metrics.observe(route, response.status(), self.runtime.monotonic().since(started));
            response
        }
    }

    /// Whether the tenant's quotas allow one more such schedule; `replaced` is the id that it takes if there is one of it.
    /// [`Pending::settle`] takes the room.
    pub(crate) async fn admit(
        &self,
        tenant: &Tenant,
        replaced: Option<&ScheduleId>,
        spec: &Spec,
        now: Timestamp,
    ) -> Result<Room, Refused> {
        quota::check_spec(tenant, spec, now)?;
        self.creates.admit(tenant, self.runtime.monotonic())?;
        self.pending.admit(&self.scheduler, tenant, replaced, self.runtime.monotonic()).await
    }

    /// What the API is, made when it is first asked for.
    pub(crate) fn document(&self) -> Bytes {
        self.document.get_or_init(|| openapi::document(&self.options).into()).clone()
    }

    pub(crate) fn request_id(&self) -> String {
        format!("{:08x}-{:x}", self.request_id_start, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

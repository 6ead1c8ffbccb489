//! What every request needs.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use domain::{ScheduleId, Spec, Tenant, Timestamp};
use futures_util::FutureExt;
use runtime::Runtime;
use scheduler::{Scheduler, Tenants};
use tracing::Instrument;

use crate::Options;
use crate::metrics::HttpMetrics;
use crate::quota::{self, Creates, Pending, Room};
use crate::readiness::Readiness;
use crate::refusal::{Answered, Code, Refused, refuse};
use crate::route::Route;
use crate::spans;

/// The state as handlers take it.
pub(crate) type App = State<Arc<AppState>>;

pub(crate) struct AppState {
    pub(crate) runtime: Runtime,
    pub(crate) scheduler: Scheduler,
    pub(crate) tenants: Tenants,
    pub(crate) options: Options,
    pub(crate) metrics: HttpMetrics,
    pub(crate) creates: Creates,
    pub(crate) pending: Pending,
    pub(crate) readiness: Readiness,
    /// Request ids are this random beginning and a count: unique without asking for randomness each time.
    request_id_start: u32,
    requests: AtomicU64,
}

impl AppState {
    pub(crate) fn new(runtime: Runtime, scheduler: Scheduler, options: Options) -> Self {
        let request_id_start = u32::try_from(runtime.random() >> 32).unwrap_or(0);
        let metrics = HttpMetrics::new();
        let (creates, pending, readiness) = (Creates::default(), Pending::default(), Readiness::default());
        let requests = AtomicU64::new(0);
        AppState {
            runtime,
            tenants: scheduler.tenants(),
            scheduler,
            options,
            metrics,
            creates,
            pending,
            readiness,
            request_id_start,
            requests,
        }
    }

    /// Measures a request and traces it. A refusal and a panic become problem documents with the request's id.
    pub(crate) async fn respond(&self, route: &Route, work: impl Future<Output = Answered>) -> Response<Body> {
        let started = self.runtime.monotonic();
        let span = spans::request(route.name);
        let outcome = AssertUnwindSafe(work).catch_unwind().instrument(span.clone()).await;
        let outcome = outcome.unwrap_or_else(|_| Err(refuse(Code::Internal, "this is a fault of the server")));
        let mut response = outcome.unwrap_or_else(IntoResponse::into_response);
        if let Some(refused) = response.extensions_mut().remove::<Refused>() {
            let (request_id, status, route) = (self.request_id(), refused.status(), route.id);
            // Full and unreachable stores have lines of their own; one for each request would bury them.
            if status == StatusCode::INTERNAL_SERVER_ERROR {
                tracing::error!(request_id, %route, "a request failed");
            } else {
                tracing::debug!(request_id, %route, %status, "a request was refused");
            }
            response = refused.into_problem_response(request_id);
        }
        spans::answered(&span, response.status());
        self.metrics.observe(route.name, response.status(), self.runtime.monotonic().since(started));
        response
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

    pub(crate) fn request_id(&self) -> String {
        format!("{:08x}-{:x}", self.request_id_start, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

//! State that all requests share.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use domain::{ScheduleId, Spec, Tenant, TenantId, Timestamp};
use futures_util::FutureExt;
use runtime::Runtime;
use scheduler::{Scheduler, Tenants};
use tracing::Instrument;

use crate::Options;
use crate::metrics::HttpMetrics;
use crate::quota::{self, Creates, Reservation, Stored};
use crate::readiness::Readiness;
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::route::Route;
use crate::spans;
use crate::spool::Spools;
use crate::unread::{Budget, Budgets, Reserved, TENANT_PART};

/// Longest time for which a request waits for bytes from the budget of its tenant or of all connections. This time is
/// short, because other clients may have used up these budgets.
const TOTAL_WAIT_MAX: Duration = Duration::from_secs(2);

/// Argument with which a handler receives the state that all requests share.
pub(crate) type App = State<Arc<AppState>>;

pub(crate) struct AppState {
    pub(crate) runtime: Runtime,
    pub(crate) scheduler: Scheduler,
    pub(crate) tenants: Tenants,
    pub(crate) options: Options,
    pub(crate) metrics: HttpMetrics,
    pub(crate) creates: Creates,
    pub(crate) stored: Stored,
    pub(crate) readiness: Readiness,
    pub(crate) spools: Arc<Spools>,
    /// Budgets of bytes for the unread responses of each tenant and of all connections.
    pub(crate) unread: Budgets,
    /// Random prefix of request ids. A counter follows it, so that ids are unique without a random number per request.
    request_id_start: u32,
    requests: AtomicU64,
}

impl AppState {
    pub(crate) fn new(runtime: Runtime, scheduler: Scheduler, options: Options) -> Self {
        let request_id_start = u32::try_from(runtime.random() >> 32).unwrap_or(0);
        let metrics = HttpMetrics::new();
        let (creates, stored, readiness) = (Creates::default(), Stored::default(), Readiness::default());
        let (requests, unread) = (AtomicU64::new(0), Budgets::new(options.response_bytes_max));
        let spools = Arc::new(Spools::new(&runtime, &options));
        AppState {
            runtime,
            tenants: scheduler.tenants(),
            scheduler,
            options,
            metrics,
            creates,
            stored,
            readiness,
            spools,
            unread,
            request_id_start,
            requests,
        }
    }

    /// Runs a request, and records its metric and its span. Converts a rejection or a panic into a problem document
    /// with the request's id.
    pub(crate) async fn respond(&self, route: &Route, work: impl Future<Output = HandlerResult>) -> Response<Body> {
        let started = self.runtime.monotonic();
        let span = spans::request(route.name);
        let outcome = AssertUnwindSafe(work).catch_unwind().instrument(span.clone()).await;
        let outcome = outcome.unwrap_or_else(|_| Err(reject(Code::Internal, "internal error; see the server's log")));
        let mut response = outcome.unwrap_or_else(IntoResponse::into_response);
        if let Some(rejected) = response.extensions_mut().remove::<Rejected>() {
            let (request_id, status, route) = (self.request_id(), rejected.status(), route.id);
            // Only an internal error gets an error line in the log. Other code logs that the store is full or
            // unreachable, and an error line for each rejected request would hide these log lines.
            if status == StatusCode::INTERNAL_SERVER_ERROR {
                tracing::error!(request_id, %route, "request failed");
            } else {
                tracing::debug!(request_id, %route, %status, "request rejected");
            }
            response = rejected.into_problem_response(request_id);
        }
        spans::record_status(&span, response.status());
        self.metrics.observe(route.name, response.status(), self.runtime.monotonic().since(started));
        response
    }

    /// Counts one request or batch line toward the tenant's quota `creates_per_second`. A caller calls this function
    /// before it parses the body, so that the quota also limits the work for invalid bodies.
    ///
    /// docs/decisions/0192-count-rejected-bodies-as-creates.md gives the reasons for the design.
    pub(crate) fn count_create(&self, tenant: &Tenant) -> Result<(), Rejected> {
        self.creates.admit(tenant, self.runtime.monotonic())
    }

    /// Checks that the tenant's quotas allow another schedule with this spec, and reserves the quota for this schedule.
    /// The caller has already counted the request with [`AppState::count_create`]. `replaced` is the id of the schedule
    /// that the new schedule replaces, or `None`. [`Stored::finish`] ends the reservation.
    pub(crate) async fn admit(
        &self,
        tenant: &Tenant,
        replaced: Option<&ScheduleId>,
        spec: &Spec,
        now: Timestamp,
    ) -> Result<Reservation, Rejected> {
        quota::check_spec(tenant, spec, now)?;
        self.stored.admit(&self.scheduler, tenant, replaced, spec, self.runtime.monotonic()).await
    }

    /// Reserves bytes for the response to a request of `tenant` on `route`. `connection` is the budget of the request's
    /// connection. Returns `None` if the route has only small responses.
    pub(crate) async fn reserve(
        &self,
        connection: &Budget,
        tenant: TenantId,
        route: &Route,
    ) -> Result<Option<Arc<Reserved>>, Rejected> {
        let Some(bytes) = route.reserved_bytes() else { return Ok(None) };
        let Options { response_bytes_max, response_bytes_per_connection_max, idle_timeout, .. } = self.options;
        let bytes_max = response_bytes_per_connection_max.min(response_bytes_max / TENANT_PART);
        let bytes = bytes.min(bytes_max);
        let own = self.runtime.timeout(idle_timeout, connection.take(bytes)).await.ok_or_else(|| {
            let detail = format!(
                "the connection has about {bytes_max} bytes of unread responses; read them, then send the request again"
            );
            reject(Code::Overloaded, detail)
        })?;
        let of_tenant = self.unread.of_tenant(tenant);
        let of_tenant = self.runtime.timeout(TOTAL_WAIT_MAX, of_tenant.take(bytes)).await.ok_or_else(|| {
            let detail = "the connections of this tenant have too many bytes of unread responses; read them, then send \
                          the request again";
            reject(Code::Overloaded, detail)
        })?;
        let total = self.runtime.timeout(TOTAL_WAIT_MAX, self.unread.total.take(bytes)).await.ok_or_else(|| {
            let detail = "the clients of this server have too many bytes of unread responses; send the request again \
                          later";
            reject(Code::Overloaded, detail)
        })?;
        Ok(Some(Arc::new(Reserved::new(own, of_tenant, total, self.metrics.response_bytes.clone()))))
    }

    pub(crate) fn request_id(&self) -> String {
        format!("{:08x}-{:x}", self.request_id_start, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

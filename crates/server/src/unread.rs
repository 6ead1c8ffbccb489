//! Bounds on the memory that unread responses take.
//!
//! Before the handler of a route with large responses runs, the server reserves bytes for the largest response of the
//! route. The budgets of the connection, of the tenant and of all connections provide these bytes. If a budget is used
//! up, the server waits for other responses to release bytes, and rejects the request after a timeout. After the
//! handler has run, the server shrinks the reservation to the size of the response, if this size is known. The
//! connection releases the reservation when it has written or dropped the last piece of the body. Other routes have
//! small responses and reserve nothing, so that a client that does not read cannot delay them.
//!
//! Invariant: the sizes of the reservations of a connection, of a tenant and of all connections never exceed their
//! budgets.
//!
//! docs/decisions/0193-bound-the-bytes-of-unread-responses.md gives the reasons for the design.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Response;
use bytes::{Buf, Bytes};
use domain::TenantId;
use http_body::{Body as HttpBody, Frame, SizeHint};
use listener::{Activity, Unread};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of bytes that the server reserves for a page. The store limits a page to 4 MiB of schedules.
pub(crate) const PAGE_BYTES: usize = 4 << 20;
/// Number of bytes that the server reserves for one schedule with its payload.
pub(crate) const SCHEDULE_BYTES: usize = 128 << 10;
/// Number of bytes that the server reserves for the unread results of a batch. The results of several groups of lines
/// fit into these bytes.
pub(crate) const BATCH_BYTES: usize = 768 << 10;

/// Number of bytes that one permit of a budget represents.
const UNIT_BYTES: usize = 1 << 10;
/// Ratio of the total budget to the budget of one tenant.
pub(crate) const TENANT_PART: usize = 4;

/// Budget of bytes, with one permit for every `UNIT_BYTES` bytes.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Budget(Arc::new(Semaphore::new((bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits until `bytes` bytes of the budget are free, and takes them. `bytes` must not exceed the whole budget.
    pub(crate) async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        self.0.clone().acquire_many_owned(units).await.expect("no code closes the semaphore")
    }
}

/// Budgets of all connections and of each tenant.
pub(crate) struct Budgets {
    pub(crate) total: Budget,
    of_tenant_bytes: usize,
    of_tenants: Mutex<HashMap<TenantId, Weak<Semaphore>>>,
}

impl Budgets {
    /// Creates a total budget of `bytes` bytes. Each tenant has a budget of a quarter of this number.
    pub(crate) fn new(bytes: usize) -> Self {
        Budgets { total: Budget::new(bytes), of_tenant_bytes: bytes / TENANT_PART, of_tenants: Mutex::default() }
    }

    /// Returns the budget of a tenant. The budget exists while the server reserves bytes for a response to the tenant.
    pub(crate) fn of_tenant(&self, tenant: TenantId) -> Budget {
        let mut budgets = self.of_tenants.lock().expect("no holder of this lock panics");
        if let Some(budget) = budgets.get(&tenant).and_then(Weak::upgrade) {
            return Budget(budget);
        }
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Budget::new(self.of_tenant_bytes);
        budgets.insert(tenant, Arc::downgrade(&budget.0));
        budget
    }
}

/// Reservation of the bytes of one response.
pub(crate) struct Reserved {
    own: OwnedSemaphorePermit,
    of_tenant: OwnedSemaphorePermit,
    total: OwnedSemaphorePermit,
    bytes: Gauge,
}

impl Reserved {
    /// Creates a reservation from permits of the budgets of the connection, the tenant and all connections. Adds the
    /// reserved bytes to the metric `bytes`.
    pub(crate) fn new(
        own: OwnedSemaphorePermit,
        of_tenant: OwnedSemaphorePermit,
        total: OwnedSemaphorePermit,
        bytes: Gauge,
    ) -> Self {
        bytes.inc_by(bytes_of(own.num_permits()));
        Reserved { own, of_tenant, total, bytes }
    }

    /// Shrinks the reservation to `bytes` bytes, and releases the remaining bytes.
    fn shrink(&mut self, bytes: u64) {
        let needed = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(UNIT_BYTES);
        let excess = self.own.num_permits().saturating_sub(needed);
        self.bytes.dec_by(bytes_of(excess));
        drop((self.own.split(excess), self.of_tenant.split(excess), self.total.split(excess)));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.bytes.dec_by(bytes_of(self.own.num_permits()));
    }
}

fn bytes_of(units: usize) -> i64 {
    i64::try_from(units * UNIT_BYTES).unwrap_or(i64::MAX)
}

/// Wraps the body of a response. Each piece of the body retains the reservation until the connection drops the piece,
/// and reports the client's progress to `activity`.
pub(crate) fn watched(mut response: Response<Body>, activity: Arc<Activity>) -> Response<WatchedBody> {
    let length = response.body().size_hint().exact();
    let mut reserved = response.extensions_mut().remove::<Arc<Reserved>>();
    if let (Some(length), Some(reserved)) = (length, reserved.as_mut().and_then(Arc::get_mut)) {
        reserved.shrink(length);
    }
    response.map(|body| WatchedBody { body, activity, reserved, is_streamed: length.is_none() })
}

pub(crate) struct WatchedBody {
    body: Body,
    activity: Arc<Activity>,
    reserved: Option<Arc<Reserved>>,
    /// True for a body of unknown length. Each poll of this body counts as activity of the connection.
    is_streamed: bool,
}

impl HttpBody for WatchedBody {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        if self.is_streamed {
            self.activity.touch();
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| {
                    let guard = self.reserved.clone().map(|reserved| (self.activity.unread(), reserved));
                    Piece { bytes, guard }
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Piece of a body. The HTTP library drops the piece when it has written or discarded all of its bytes.
pub(crate) struct Piece {
    bytes: Bytes,
    /// Guard that retains the reservation of the response. `None` if the response has no reservation.
    guard: Option<(Unread, Arc<Reserved>)>,
}

impl Piece {
    fn note_progress(&self) {
        if let Some((unread, _)) = &self.guard {
            unread.advance();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.note_progress();
        self.bytes.advance(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.note_progress();
        self.bytes.copy_to_bytes(count)
    }
}

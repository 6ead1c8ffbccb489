//! Port for callbacks: the transport that makes one attempt.

use std::sync::Arc;
use std::time::Duration;

use domain::{AttemptResult, Occurrence, Schedule, Tenant, Term, Timestamp};
use futures_util::future::BoxFuture;
use runtime::Monotonic;

/// One attempt, with all data that the transport needs.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Tenant that owns the schedule, with its signing secret.
    pub tenant: Arc<Tenant>,
    pub schedule: Arc<Schedule>,
    pub occurrence: Occurrence,
    /// Number of the attempt, from 1.
    pub attempt: u16,
    pub term: Term,
    /// Start of the attempt, by the wall clock.
    pub started_at: Timestamp,
    /// End of the right to send, by the monotonic clock, exclusive. The transport sends no byte from this instant on.
    pub deadline: Monotonic,
}

/// Result of an attempt that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    pub result: AttemptResult,
    /// The target's `Retry-After`, relative to the response.
    pub retry_after: Option<Duration>,
}

/// Transport that makes attempts. Each attempt ends within the target's timeout. It never panics, and it reports every
/// failure in its result.
pub trait Deliver: Send + Sync + 'static {
    /// Makes one attempt. Returns `None` if it sent nothing because [`Delivery::deadline`] had passed.
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>>;
}

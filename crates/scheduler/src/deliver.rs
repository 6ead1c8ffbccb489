//! Port for callbacks: the transport that makes one attempt.

use std::sync::Arc;
use std::time::Duration;

use domain::{AttemptResult, Occurrence, Schedule, Secret, Tenant, Term, Timestamp};
use futures_util::future::BoxFuture;
use runtime::Monotonic;

/// Longest time for which an attempt may wait for a connection before its timeout starts.
pub const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(5);

/// Attempt, with all data that the transport needs.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Tenant that owns the schedule. This value contains the tenant's signing secret.
    pub tenant: Arc<Tenant>,
    pub schedule: Arc<Schedule>,
    pub occurrence: Occurrence,
    /// Number of the attempt. The first attempt of a run has the number 1.
    pub attempt: u16,
    pub term: Term,
    /// Start of the attempt, by the wall clock.
    pub started_at: Timestamp,
    /// Deadline for sending the callback, by the monotonic clock. The transport sends no byte at or after this instant.
    pub deadline: Monotonic,
}

/// Result of an attempt that the transport sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    pub result: AttemptResult,
    /// `Retry-After` of the target's response, as a duration from the arrival of the response.
    pub retry_after: Option<Duration>,
    /// First bytes of the response's body, at most [`domain::limits::EXCERPT_BYTES_MAX`], if the tenant has switched
    /// excerpts on ([`Tenant::excerpts`]) and a byte of a body arrived. The excerpt never changes the result.
    pub excerpt: Option<Secret>,
}

/// Transport that makes attempts. Each attempt must end within the target's timeout. The timeout starts when the
/// transport has a connection or begins to connect, at most [`CONNECTION_WAIT_MAX`] after the call of
/// [`Deliver::deliver`]. The transport must not panic, and it must report every failure in the result of the attempt.
pub trait Deliver: Send + Sync + 'static {
    /// Makes one attempt. Returns `None` if [`Delivery::deadline`] passed before the transport sent a byte.
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>>;
}

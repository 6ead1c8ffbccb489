//! The other side of an attempt: how a callback leaves the house.

use std::sync::Arc;
use std::time::Duration;

use domain::{AttemptResult, Occurrence, Schedule, Tenant, Term, Timestamp};
use futures_util::future::BoxFuture;
use runtime::Monotonic;

/// One attempt, with everything that it needs.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The signing secret is here.
    pub tenant: Arc<Tenant>,
    pub schedule: Arc<Schedule>,
    pub occurrence: Occurrence,
    /// From 1.
    pub attempt: u16,
    pub term: Term,
    /// When the attempt starts, by the wall clock.
    pub started_at: Timestamp,
    /// When the right to send it ends, by the monotonic clock: not a byte of it goes out from then on.
    pub deadline: Monotonic,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    pub result: AttemptResult,
    /// The target's `Retry-After`, counted from the answer.
    pub retry_after: Option<Duration>,
}

/// Makes attempts. Each ends within the target's timeout, and never panics or fails otherwise than by its result.
pub trait Deliver: Send + Sync + 'static {
    /// `None`: nothing was sent, because [`Delivery::deadline`] had passed.
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>>;
}

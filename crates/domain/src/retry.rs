//! When a failed attempt is followed by another.

use std::time::Duration;

/// Exponential backoff with full jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1.
    pub attempts_max: u16,
    /// The bound of the wait before the second attempt; doubled for each further one.
    pub backoff: Duration,
    /// No wait is drawn above this.
    pub backoff_max: Duration,
}

//! When a failed attempt is followed by another.

use std::time::Duration;

/// Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1. Default 5: with the other defaults the last one starts at most
    /// 15 s after the first, longer only for a target that asks for it. Too few turn a restart of the target into dead
    /// letters, too many keep asking for what will not come.
    pub attempts_max: u16,
    /// The bound of the wait before the second attempt; doubled for each further one. Default 1 s.
    pub backoff: Duration,
    /// No wait is longer than this, whatever the target asks for. Default 10 min.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { attempts_max: 5, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(600) }
    }
}

impl RetryPolicy {
    /// The wait before the next attempt, or `None` once the attempts are used up.
    ///
    /// `attempt` is the number of the one that failed, from 1. The wait is drawn by `random`, evenly from nothing to
    /// `backoff * 2^(attempt - 1)`, and comes on top of `retry_after`, so that the callers that a target has sent away
    /// together do not come back together. It is at least 1 ms, the grain of time, and at most `backoff_max`.
    #[must_use]
    pub fn wait(&self, attempt: u16, random: u64, retry_after: Option<Duration>) -> Option<Duration> {
        if attempt >= self.attempts_max {
            return None;
        }
        let doublings = u32::from(attempt.max(1) - 1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let bound = self.backoff.saturating_mul(factor).min(self.backoff_max);
        let asked = retry_after.unwrap_or_default().min(self.backoff_max);
        let wait = asked.saturating_add(fraction(bound, random)).min(self.backoff_max);
        Some(wait.max(Duration::from_millis(1)))
    }
}

/// `bound * random / 2^64`.
fn fraction(bound: Duration, random: u64) -> Duration {
    let nanos = bound.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(u64::try_from((nanos * u128::from(random)) >> 64).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;

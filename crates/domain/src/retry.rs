//! Retries of failed attempts: their number and the waits between them.

use std::time::Duration;

/// Policy for retries: exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS
/// Architecture Blog, 2015).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Maximum number of attempts, including the first attempt; at least 1. Default 5. With all defaults, the waits
    /// between the attempts are at most 15 s in total, unless the target requests additional waits. If the number is
    /// too small, a restart of the target causes dead letters. If the number is too large, a target that does not
    /// recover receives useless attempts.
    pub attempts_max: u16,
    /// Upper bound of the random wait before the second attempt. The bound doubles for each further attempt. Default
    /// 1 s.
    pub backoff: Duration,
    /// Upper bound of every wait, even if the target requests a longer wait. Default 10 min.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { attempts_max: 5, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(600) }
    }
}

impl RetryPolicy {
    /// Returns the wait before the next attempt, or `None` if the policy allows no further attempt.
    ///
    /// `attempt` is the number of the failed attempt, from 1. `random` selects a wait from the range from zero to
    /// `backoff * 2^(attempt - 1)`, with a uniform distribution. The function adds this wait to `retry_after`, the wait
    /// that the target requested. The sum is at least 1 ms, the resolution of all instants, and at most `backoff_max`.
    /// If a target rejects several attempts at the same time, the random waits spread the retries of these attempts
    /// over time.
    #[must_use]
    pub fn wait(&self, attempt: u16, random: u64, retry_after: Option<Duration>) -> Option<Duration> {
        if attempt >= self.attempts_max {
            return None;
        }
        let doublings = u32::from(attempt.max(1) - 1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let bound = self.backoff.saturating_mul(factor).min(self.backoff_max);
        let requested = retry_after.unwrap_or_default().min(self.backoff_max);
        let wait = requested.saturating_add(fraction(bound, random)).min(self.backoff_max);
        Some(wait.max(Duration::from_millis(1)))
    }
}

/// Returns `bound * random / 2^64`.
fn fraction(bound: Duration, random: u64) -> Duration {
    let nanos = bound.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(u64::try_from((nanos * u128::from(random)) >> 64).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;

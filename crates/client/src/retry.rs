//! Decides, without side effects, when the client sends a failed request again.
//!
//! docs/decisions/0120-repeat-only-safe-requests-in-the-sdk.md gives the reasons for the design.

use std::time::Duration;

use crate::{Error, Options};

/// States whether the client may send a request again after an attempt that the server may have carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repeat {
    /// The client may always send the request again, because the server carries out the operation once even if it
    /// receives the request twice.
    Always,
    /// The client may send the request again only if the server certainly did not carry out the earlier attempt.
    IfUntouched,
}

/// Returns the wait before the next attempt, or `None` if the call must return `error`. `attempt` is the number of the
/// failed attempt, from 1. `left` is the remaining time until the deadline. `random` selects the jitter.
pub(crate) fn wait(
    error: &Error,
    repeat: Repeat,
    attempt: u32,
    left: Duration,
    options: &Options,
    random: u64,
) -> Option<Duration> {
    let may_repeat = repeat == Repeat::Always || !error.is_outcome_unknown();
    if !error.is_retryable() || !may_repeat || attempt >= options.attempts_max {
        return None;
    }
    let doubled = options.backoff.saturating_mul(1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX));
    // The wait is the time that the server requested, plus full jitter (Brooker, "Exponential Backoff And Jitter").
    let bound = u64::try_from(doubled.min(options.backoff_max).as_nanos()).unwrap_or(u64::MAX);
    let jitter = Duration::from_nanos(random.checked_rem(bound).unwrap_or(0));
    let wait = error.retry_after().unwrap_or_default().saturating_add(jitter);
    (wait < left).then_some(wait)
}

#[cfg(test)]
mod tests;

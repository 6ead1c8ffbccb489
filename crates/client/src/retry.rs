//! When a request is sent again: a pure decision.

use std::time::Duration;

use crate::{Error, Options};

/// Whether a request may be sent again although an earlier one may have been obeyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repeat {
    /// Twice does what once does.
    Always,
    /// Only if it is certain that nothing was done.
    IfUntouched,
}

/// The wait before the next attempt; `None` if `error` is the caller's. `attempt` is the number of the one that failed, from 1;
/// `left` what is left of the deadline; `random` decides how much of the backoff is waited.
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
    // Full jitter (Brooker, "Exponential Backoff And Jitter"), on top of what the server asks for.
    let bound = u64::try_from(doubled.min(options.backoff_max).as_nanos()).unwrap_or(u64::MAX);
    let jitter = Duration::from_nanos(random.checked_rem(bound).unwrap_or(0));
    let wait = error.retry_after().unwrap_or_default().saturating_add(jitter);
    (wait < left).then_some(wait)
}

#[cfg(test)]
mod tests;

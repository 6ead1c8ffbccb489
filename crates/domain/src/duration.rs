//! Texts of durations, for example `30s`, `1h30m` and `PT30S`.
//!
//! A day has 24 hours, and a week has seven days. The parser rejects months and years, because they have no fixed
//! length. It also rejects fractions of a millisecond.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

pub const TEXT_BYTES_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DurationError {
    #[error("duration has {0} bytes, more than the limit of {TEXT_BYTES_MAX}")]
    TooLong(usize),
    #[error("text is not a duration; use a form such as 30s, 5m, 1h30m, 500ms or PT30S")]
    Syntax,
    #[error("months and years have no fixed length; use weeks, days, hours, minutes or seconds, such as 30d")]
    Calendar,
    #[error("duration is negative; leave out the minus sign or \"ago\"")]
    Negative,
    #[error("duration has a fraction of a millisecond; round it to whole milliseconds")]
    TooFine,
}

/// Parses a duration. `text` consists of numbers with units from weeks to milliseconds, with larger units before
/// smaller units (`1h30m`, `90 min`, `1d 12h`, `1.5h`), or it has the form of ISO 8601 (`PT1H30M`).
///
/// # Errors
/// Returns an error if `text` is not a duration, or if the duration is not a fixed number of whole milliseconds.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(DurationError::TooLong(text.len()));
    }
    let span: Span = text.parse().map_err(|_| DurationError::Syntax)?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(DurationError::Calendar);
    }
    if span.is_negative() {
        return Err(DurationError::Negative);
    }
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| DurationError::Syntax)?;
    let duration = Duration::try_from(exact).map_err(|_| DurationError::Negative)?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(DurationError::TooFine);
    }
    Ok(duration)
}

/// Returns a text of `duration` in days, hours, minutes, seconds and milliseconds, which [`parse`] can read. The text
/// omits units whose number is zero, and fractions of a millisecond. The text of zero is `0s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut text = String::new();
    let mut secs = duration.as_secs();
    for (unit_secs, unit) in UNITS {
        if secs >= unit_secs {
            text.push_str(&(secs / unit_secs).to_string());
            text.push_str(unit);
            secs %= unit_secs;
        }
    }
    if duration.subsec_millis() > 0 {
        text.push_str(&duration.subsec_millis().to_string());
        text.push_str("ms");
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests;

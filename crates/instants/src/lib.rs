//! Instants: [`Timestamp`] of the wall clock, [`Monotonic`] of a clock that never goes back, and [`Deadline`], a shared
//! instant of the monotonic clock.
//!
//! This crate reads no clock. The crate `runtime` reads the clocks, and pure code takes the current instant as an
//! argument.

#![warn(missing_docs)]

mod deadline;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

pub use deadline::Deadline;

/// Instant of the wall clock, in milliseconds since 1970-01-01T00:00:00Z, without leap seconds. All times in Reveille
/// are whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z, the earliest instant that a subtraction can return.
    pub const MIN: Timestamp = Timestamp(0);
    /// 9999-12-30T22:00:00Z, the last instant that has an RFC 3339 form in every time zone.
    pub const MAX: Timestamp = Timestamp(253_402_207_200_000);

    /// Creates the instant `millis` milliseconds after 1970-01-01T00:00:00Z. Does not check the range.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    /// Returns the number of milliseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the duration from `earlier` to `self`, in whole milliseconds. Returns zero if `earlier` is after `self`.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Adds a duration, rounded down to whole milliseconds. The sum is at most [`Timestamp::MAX`].
    fn add(self, rhs: Duration) -> Timestamp {
        let millis = i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(millis)).min(Timestamp::MAX)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    /// Subtracts a duration, rounded down to whole milliseconds. The result is at least [`Timestamp::MIN`].
    fn sub(self, rhs: Duration) -> Timestamp {
        let millis = i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(millis)).max(Timestamp::MIN)
    }
}

/// Formats the instant as RFC 3339 in UTC, with three fractional digits of the second.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Instant of a clock for timeouts and leases. The clock never goes back, and continues while the machine is suspended
/// (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// Creates the instant `since_start` after the clock's start.
    #[must_use]
    pub const fn from_start(since_start: Duration) -> Self {
        Monotonic(since_start)
    }

    /// Returns the duration from the clock's start to this instant.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Returns the duration from `earlier` to `self`, or zero if `earlier` is after `self`.
    #[must_use]
    pub fn since(self, earlier: Monotonic) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Monotonic {
    type Output = Monotonic;

    fn add(self, rhs: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(rhs))
    }
}

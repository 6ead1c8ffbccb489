//! Comparison of this machine's wall clock with the engine's wall clock.

use std::time::Duration;

use instants::Timestamp;
use runtime::{Monotonic, Runtime};

use crate::Renewed;

/// Difference between the engine's wall clock and this machine's wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOffset {
    /// Time by which the engine's clock is ahead. The value is negative if the engine's clock is behind.
    pub ahead_millis: i64,
    /// Possible error of the difference, in either direction: half of the call's duration, plus the resolution of the
    /// clocks. The engine may read its clock at any time during the call (Cristian, 1989).
    pub uncertainty: Duration,
}

const GRAIN: Duration = Duration::from_millis(1);

/// Reading of this machine's monotonic clock at the start of a call. When the response arrives, this reading gives the
/// duration of the call, which determines the uncertainty of the measured clock offset.
pub(super) struct CallStart {
    monotonic: Monotonic,
}

impl CallStart {
    pub(super) fn now(runtime: &Runtime) -> Self {
        CallStart { monotonic: runtime.monotonic() }
    }

    pub(super) fn offset(&self, runtime: &Runtime, renewed: Renewed) -> ClockOffset {
        ClockOffset::of(runtime.monotonic().since(self.monotonic), runtime.now(), renewed)
    }
}

impl ClockOffset {
    fn of(round_trip: Duration, received: Timestamp, renewed: Renewed) -> Self {
        let half = round_trip / 2;
        let ahead_millis = renewed.engine_now.as_millis().saturating_sub((received - half).as_millis());
        ClockOffset { ahead_millis, uncertainty: half + GRAIN }
    }
}

/// Last measured offset of the clocks, and whether the offset is too large.
pub(super) struct Clock {
    offset_max: Duration,
    offset: Option<ClockOffset>,
    is_off: bool,
}

impl Clock {
    pub(super) fn new(offset_max: Duration) -> Self {
        Clock { offset_max, offset: None, is_off: false }
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    pub(super) fn offset(&self) -> Option<ClockOffset> {
        self.offset
    }

    /// Records a measurement, and returns whether the measurement changed [`Clock::is_off`]. If the measurement is too
    /// uncertain to show whether the clock is off, [`Clock::is_off`] does not change.
    pub(super) fn measured(&mut self, offset: ClockOffset) -> bool {
        self.offset = Some(offset);
        let distance = Duration::from_millis(offset.ahead_millis.unsigned_abs());
        let is_off = if distance.saturating_sub(offset.uncertainty) > self.offset_max {
            true
        } else if distance + offset.uncertainty <= self.offset_max {
            false
        } else {
            self.is_off
        };
        std::mem::replace(&mut self.is_off, is_off) != is_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offset_accounts_for_half_the_duration_of_the_call() {
        let at = Timestamp::from_millis;
        let offset = |engine_now| ClockOffset::of(Duration::from_millis(100), at(10_000), Renewed { engine_now });
        assert_eq!(offset(at(9_950)), ClockOffset { ahead_millis: 0, uncertainty: Duration::from_millis(51) });
        assert_eq!(offset(at(10_950)).ahead_millis, 1_000);
        assert_eq!(offset(at(8_950)).ahead_millis, -1_000);
    }

    #[test]
    fn uncertain_measurement_does_not_change_the_clock_status() {
        let mut clock = Clock::new(Duration::from_millis(500));
        let mut measured = |ahead_millis, uncertainty| {
            let is_changed =
                clock.measured(ClockOffset { ahead_millis, uncertainty: Duration::from_millis(uncertainty) });
            (clock.is_off(), is_changed)
        };
        assert_eq!(measured(-700, 300), (false, false), "the offset may be only 400");
        assert_eq!(measured(-700, 100), (true, true));
        assert_eq!(measured(450, 100), (true, false), "the offset may still be 550");
        assert_eq!(measured(450, 10), (false, true));
    }
}

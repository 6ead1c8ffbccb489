//! This machine's wall clock beside the engine's.

use std::time::Duration;

use instants::Timestamp;
use runtime::{Monotonic, Runtime};

use crate::Renewed;

/// How far the engine's wall clock is ahead of this machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOffset {
    /// Negative: behind.
    pub ahead_millis: i64,
    /// By how much that may be wrong, either way: half of the call's time, as nobody knows when in it the engine looked
    /// at its clock (Cristian, 1989), and the clocks' grain.
    pub uncertainty: Duration,
}

const GRAIN: Duration = Duration::from_millis(1);

/// When a call was made, to be compared with the engine's clock once it is answered.
pub(super) struct Asked {
    monotonic: Monotonic,
}

impl Asked {
    pub(super) fn now(runtime: &Runtime) -> Self {
        Asked { monotonic: runtime.monotonic() }
    }

    pub(super) fn answered(&self, runtime: &Runtime, seen: Renewed) -> ClockOffset {
        ClockOffset::of(runtime.monotonic().since(self.monotonic), runtime.now(), seen)
    }
}

impl ClockOffset {
    fn of(round_trip: Duration, received: Timestamp, seen: Renewed) -> Self {
        let half = round_trip / 2;
        let ahead_millis = seen.engine_now.as_millis().saturating_sub((received - half).as_millis());
        ClockOffset { ahead_millis, uncertainty: half + GRAIN }
    }
}

/// What is known of the offset so far.
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

    /// Whether that changed [`Clock::is_off`]: a measurement that leaves both open changes nothing.
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
    fn the_engine_is_taken_to_have_looked_in_the_middle_of_the_call() {
        let at = Timestamp::from_millis;
        let offset = |engine_now| ClockOffset::of(Duration::from_millis(100), at(10_000), Renewed { engine_now });
        assert_eq!(offset(at(9_950)), ClockOffset { ahead_millis: 0, uncertainty: Duration::from_millis(51) });
        assert_eq!(offset(at(10_950)).ahead_millis, 1_000);
        assert_eq!(offset(at(8_950)).ahead_millis, -1_000);
    }

    #[test]
    fn a_clock_is_off_only_when_the_measurement_leaves_no_doubt() {
        let mut clock = Clock::new(Duration::from_millis(500));
        let mut measured = |ahead_millis, uncertainty| {
            let is_changed =
                clock.measured(ClockOffset { ahead_millis, uncertainty: Duration::from_millis(uncertainty) });
            (clock.is_off(), is_changed)
        };
        assert_eq!(measured(-700, 300), (false, false), "it may be 400 only");
        assert_eq!(measured(-700, 100), (true, true));
        assert_eq!(measured(450, 100), (true, false), "it may be 550 still");
        assert_eq!(measured(450, 10), (false, true));
    }
}

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

    pub(super) fn measurement(&self, runtime: &Runtime, renewed: Renewed) -> Measurement {
        Measurement::of(self.monotonic, runtime.monotonic(), runtime.now(), renewed)
    }
}

/// Measurement of the engine's clock, by one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Measurement {
    pub(super) offset: ClockOffset,
    /// Earliest and latest time that the engine's clock may have shown at the instant `at`.
    engine: (Timestamp, Timestamp),
    /// Instant at which the response arrived.
    at: Monotonic,
}

impl Measurement {
    fn of(called: Monotonic, responded: Monotonic, wall: Timestamp, renewed: Renewed) -> Self {
        let round_trip = responded.since(called);
        let half = round_trip / 2;
        let ahead_millis = renewed.engine_now.as_millis().saturating_sub((wall - half).as_millis());
        Measurement {
            offset: ClockOffset { ahead_millis, uncertainty: half + GRAIN },
            engine: (renewed.engine_now, renewed.engine_now + round_trip + GRAIN),
            at: responded,
        }
    }
}

/// Last measured offset of the clocks, and whether the offset is too large.
pub(super) struct Clock {
    offset_max: Duration,
    offset: Option<ClockOffset>,
    is_off: bool,
    /// Time that the engine's clock showed at least at an instant. If the engine responds slowly, the bound of an
    /// earlier measurement is better than the bound of the last one.
    engine_least: Option<(Timestamp, Monotonic)>,
}

impl Clock {
    pub(super) fn new(offset_max: Duration) -> Self {
        Clock { offset_max, offset: None, is_off: false, engine_least: None }
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    pub(super) fn offset(&self) -> Option<ClockOffset> {
        self.offset
    }

    /// Returns a time that is at most the largest permitted offset ahead of the engine's clock at `now`. Returns `None`
    /// before the first measurement. A leap of this machine's wall clock does not change the result, because the
    /// monotonic clock measures the time since the measurement.
    pub(super) fn limit(&self, now: Monotonic) -> Option<Timestamp> {
        self.engine_least.map(|(least, at)| least + now.since(at) + self.offset_max)
    }

    /// Records a measurement, and returns whether the measurement changed [`Clock::is_off`]. If the measurement is too
    /// uncertain to show whether the clock is off, [`Clock::is_off`] does not change.
    pub(super) fn measured(&mut self, measurement: Measurement) -> bool {
        let Measurement { offset, engine: (least, most), at } = measurement;
        self.offset = Some(offset);
        // If the earlier bound contradicts this measurement, the engine's clock went back.
        let earlier = self.engine_least.map(|(least, since)| least + at.since(since)).filter(|bound| *bound <= most);
        self.engine_least = Some((earlier.map_or(least, |bound| bound.max(least)), at));
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

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn monotonic(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn clock_offset_accounts_for_half_the_duration_of_the_call() {
        let offset = |engine_now| {
            let renewed = Renewed { engine_now };
            Measurement::of(monotonic(400), monotonic(500), at(10_000), renewed).offset
        };
        assert_eq!(offset(at(9_950)), ClockOffset { ahead_millis: 0, uncertainty: Duration::from_millis(51) });
        assert_eq!(offset(at(10_950)).ahead_millis, 1_000);
        assert_eq!(offset(at(8_950)).ahead_millis, -1_000);
    }

    #[test]
    fn uncertain_measurement_does_not_change_the_clock_status() {
        let mut clock = Clock::new(Duration::from_millis(500));
        let mut measured = |ahead_millis, uncertainty| {
            let offset = ClockOffset { ahead_millis, uncertainty: Duration::from_millis(uncertainty) };
            let is_changed = clock.measured(Measurement { offset, engine: (at(0), at(0)), at: monotonic(0) });
            (clock.is_off(), is_changed)
        };
        assert_eq!(measured(-700, 300), (false, false), "the offset may be only 400");
        assert_eq!(measured(-700, 100), (true, true));
        assert_eq!(measured(450, 100), (true, false), "the offset may still be 550");
        assert_eq!(measured(450, 10), (false, true));
    }

    #[test]
    fn limit_follows_the_engine_clock_and_not_the_wall_clock() {
        let mut clock = Clock::new(Duration::from_millis(500));
        assert_eq!(clock.limit(monotonic(0)), None);
        let mut measured = |called, responded, engine_now| {
            let renewed = Renewed { engine_now: at(engine_now) };
            clock.measured(Measurement::of(monotonic(called), monotonic(responded), at(3_600_000), renewed));
            (clock.limit(monotonic(responded)).unwrap(), clock.limit(monotonic(responded + 2_000)).unwrap())
        };
        assert_eq!(measured(0, 10, 10_000), (at(10_500), at(12_500)));
        // The response may have waited for 1.5 s in the engine, so the earlier measurement is better.
        assert_eq!(measured(2_000, 3_510, 12_000).0, at(14_000));
        // The engine's clock has gone back.
        assert_eq!(measured(4_000, 4_010, 5_000).0, at(5_500));
        assert_eq!(measured(6_000, 6_010, 7_005).0, at(7_505), "the engine's clock is a little faster");
    }
}

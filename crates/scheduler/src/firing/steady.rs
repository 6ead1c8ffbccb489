//! A wall clock that does not leap ahead: closing a stretch of time that has not passed would hold its rows back.

use std::time::Duration;

use domain::Timestamp;
use runtime::Monotonic;

/// How far the wall clock may run ahead of the monotonic one between two looks before it is doubted.
const LEAP_MIN: Duration = Duration::from_secs(1);
/// How long a leap must last before it is believed.
const DOUBT: Duration = Duration::from_secs(30);

/// Follows the wall clock, except that a leap ahead is believed only after 30 s; a step back is believed at once.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    wall: Timestamp,
    monotonic: Monotonic,
    doubted_since: Option<Monotonic>,
}

impl SteadyClock {
    pub(crate) fn new(wall: Timestamp, monotonic: Monotonic) -> Self {
        SteadyClock { wall, monotonic, doubted_since: None }
    }

    /// The instant to act on, given what both clocks say now.
    pub(crate) fn at(&mut self, wall: Timestamp, monotonic: Monotonic) -> Timestamp {
        let expected = self.wall + monotonic.since(self.monotonic);
        let leaps = wall > expected + LEAP_MIN;
        let since = *self.doubted_since.get_or_insert(monotonic);
        if leaps && monotonic.since(since) < DOUBT {
            return expected;
        }
        *self = SteadyClock::new(wall, monotonic);
        wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn monotonic(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn it_follows_an_even_clock() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(1_005), monotonic(5)), wall(1_005));
        assert_eq!(clock.at(wall(1_006), monotonic(6)), wall(1_006));
    }

    #[test]
    fn a_leap_ahead_is_believed_only_after_a_while() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(5_001), monotonic(1)), wall(1_001));
        assert_eq!(clock.at(wall(5_020), monotonic(20)), wall(1_020));
        assert_eq!(clock.at(wall(5_031), monotonic(31)), wall(5_031));
    }

    #[test]
    fn a_leap_that_is_taken_back_leaves_nothing_behind() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(5_001), monotonic(1)), wall(1_001));
        assert_eq!(clock.at(wall(1_002), monotonic(2)), wall(1_002));
        assert_eq!(clock.at(wall(5_040), monotonic(40)), wall(1_040));
    }

    #[test]
    fn a_step_back_is_believed_at_once() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(400), monotonic(1)), wall(400));
    }
}

//! Wall clock with a filter for sudden leaps ahead. Without the filter, a leap would make the owner advance `closed`
//! over a range of time that has not passed. All new rows in that range would then fire late. Creators and retries use
//! the same clock, so that their rows are not late after an operator has corrected the clock.

use std::time::Duration;

use domain::Timestamp;
use runtime::Monotonic;

/// Smallest size of a leap of the wall clock. The size is the progress of the wall clock since the previous reading,
/// minus the progress of the monotonic clock in the same time.
const LEAP_MIN: Duration = Duration::from_secs(1);
/// Time for which the wall clock must remain ahead after a leap. After this time, the steady clock follows the leap.
pub(crate) const LEAP_ACCEPTED_AFTER: Duration = Duration::from_secs(30);

/// Clock that follows the wall clock. The steady clock follows a leap ahead only after 30 s, and a step back at once.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    wall: Timestamp,
    monotonic: Monotonic,
    leap_since: Option<Monotonic>,
}

impl SteadyClock {
    pub(crate) fn new(wall: Timestamp, monotonic: Monotonic) -> Self {
        SteadyClock { wall, monotonic, leap_since: None }
    }

    /// Returns the reading of the steady clock for the current readings of the wall clock and the monotonic clock.
    pub(crate) fn at(&mut self, wall: Timestamp, monotonic: Monotonic) -> Timestamp {
        let expected = self.wall + monotonic.since(self.monotonic);
        let leaps = wall > expected + LEAP_MIN;
        let since = *self.leap_since.get_or_insert(monotonic);
        if leaps && monotonic.since(since) < LEAP_ACCEPTED_AFTER {
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
    fn steady_clock_equals_a_wall_clock_that_does_not_jump() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(1_005), monotonic(5)), wall(1_005));
        assert_eq!(clock.at(wall(1_006), monotonic(6)), wall(1_006));
    }

    #[test]
    fn steady_clock_follows_a_forward_jump_only_after_30_seconds() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(5_001), monotonic(1)), wall(1_001));
        assert_eq!(clock.at(wall(5_020), monotonic(20)), wall(1_020));
        assert_eq!(clock.at(wall(5_031), monotonic(31)), wall(5_031));
    }

    #[test]
    fn steady_clock_ignores_a_forward_jump_that_ends_within_30_seconds() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(5_001), monotonic(1)), wall(1_001));
        assert_eq!(clock.at(wall(1_002), monotonic(2)), wall(1_002));
        assert_eq!(clock.at(wall(5_040), monotonic(40)), wall(1_040));
    }

    #[test]
    fn steady_clock_follows_a_backward_jump_at_once() {
        let mut clock = SteadyClock::new(wall(1_000), monotonic(0));
        assert_eq!(clock.at(wall(400), monotonic(1)), wall(400));
    }
}

//! Wall clock with a resolution of microseconds.

use std::time::Duration;

use domain::Timestamp;
use runtime::{Monotonic, Runtime};

/// Relation between the wall clock, which [`Runtime::now`] reads in whole milliseconds, and the monotonic clock.
pub(super) struct WallClock {
    runtime: Runtime,
    /// Start of a millisecond by both clocks.
    start: (Timestamp, Monotonic),
}

impl WallClock {
    /// Waits for the start of the next millisecond.
    pub(super) fn new(runtime: &Runtime) -> Self {
        let before = runtime.now();
        loop {
            let start = (runtime.now(), runtime.monotonic());
            if start.0 != before {
                return WallClock { runtime: runtime.clone(), start };
            }
        }
    }

    /// Returns the monotonic time at which the wall clock shows `at`, or the start of this clock if `at` is earlier.
    fn monotonic(&self, at: Timestamp) -> Monotonic {
        self.start.1 + at.since(self.start.0)
    }

    /// Returns the time since `earlier`, which is after the start of this clock.
    pub(super) fn since(&self, earlier: Timestamp) -> Duration {
        self.runtime.monotonic().since(self.monotonic(earlier))
    }

    /// Returns the time until the wall clock shows `at`; zero if `at` has passed.
    pub(super) fn until(&self, at: Timestamp) -> Duration {
        self.monotonic(at).since(self.runtime.monotonic())
    }

    /// Returns a whole millisecond in the near future.
    pub(super) fn soon(&self) -> Timestamp {
        self.runtime.now() + Duration::from_millis(5)
    }
}

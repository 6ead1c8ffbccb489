//! Settings of the scheduler, each with its default and the cost of a value that is too small or too large.

use std::time::Duration;

/// Settings of the scheduler.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time ahead of now for which due rows are read into the window. Default 2 s. Smaller: a slow read makes rows
    /// late. Larger: more keys in memory.
    pub window_ahead: Duration,
    /// Largest number of keys in the window. One tenant has at most as many as are left over. Default 2,097,152, about
    /// 100 bytes each. Smaller: a burst is read in more pages. Larger: more memory.
    pub window_keys_max: usize,
    /// Period of reading ahead, of reading insert logs and of closing. Default 200 ms. Smaller: more reads of the
    /// store. Larger: more rows to check after a restart.
    pub period: Duration,
    /// Largest number of attempts in flight to one target of one tenant. Default 256. Smaller: a slow target gets fewer
    /// callbacks per second. Larger: a target may be overloaded.
    pub in_flight_per_target: usize,
    /// Largest number of attempts in flight, until their outcome is durable. Default 4,096. Smaller: less throughput
    /// with slow targets. Larger: more possible duplicates after a kill.
    pub in_flight_max: usize,
    /// Largest number of keys that wait for one target, and never more than the window has left for others. Further
    /// keys are written again at a later position. Default 1,048,576. Smaller: a burst for one target is deferred
    /// although the target keeps up. Larger: slow targets leave less of the window to others.
    pub parked_per_target: usize,
    /// Longest wait of a key for its target in memory. After that the key is written again at a later position.
    /// Default 10 s. Smaller: more writes while a target is slow. Larger: `done` lags further behind, and a restart
    /// reads more rows.
    pub parked_for: Duration,
    /// Longest delay that such a deferral adds. Default 60 s. Smaller: more writes while the target is slow. Larger:
    /// rows fire later after the target has recovered.
    pub defer_max: Duration,
    /// Pollers of a tenant that is created at the first start. Default 64.
    pub pollers: u16,
    /// Longest wait for attempts in flight at a stop. Default 10 s. Smaller: more duplicates after a stop. Larger: a
    /// slower stop.
    pub drain: Duration,
    /// Shortest time for which runs and ended or cancelled schedules are retained. Default 30 days. Shorter: a put that
    /// is retried later creates its schedule again, and older dead letters cannot be redriven. Longer: more storage.
    /// The embedded engine has its own option.
    pub history: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window_ahead: Duration::from_secs(2),
            window_keys_max: 2_097_152,
            period: Duration::from_millis(200),
            in_flight_per_target: 256,
            in_flight_max: 4_096,
            parked_per_target: 1_048_576,
            parked_for: Duration::from_secs(10),
            defer_max: Duration::from_secs(60),
            pollers: 64,
            drain: Duration::from_secs(10),
            history: Duration::from_secs(30 * 86_400),
        }
    }
}

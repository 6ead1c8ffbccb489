//! The scheduler's settings, each with its default and what too small and too large cost.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// How far ahead of now due rows are read into the window. Default 2 s. Smaller: a slow read makes rows late;
    /// larger: more keys in memory.
    pub window_ahead: Duration,
    /// Keys that the window holds at most, of one tenant at most as many as are left over. Default 2,097,152, about 100 bytes
    /// each. Smaller: a burst is read in more pieces; larger: more memory.
    pub window_keys_max: usize,
    /// The rhythm of reading ahead, of arrivals from elsewhere and of closing. Default 200 ms. Smaller: more reads of
    /// the store; larger: more to look at after a restart.
    pub period: Duration,
    /// Attempts in flight to one target of one tenant. Default 256. Smaller: a target with long answers is slowed;
    /// larger: it may be overrun.
    pub in_flight_per_target: usize,
    /// Attempts in flight in all, until their outcome is durable: the bound of what a kill can double. Default 4,096.
    pub in_flight_max: usize,
    /// Keys that wait for one target at most, and never more than the window has left for others; further ones are
    /// written again at a later position. Default 1,048,576. Smaller: a burst for one target is put off although the
    /// target keeps up; larger: slow targets leave less of the window to the rest.
    pub parked_per_target: usize,
    /// How long a key waits for its target in memory before it, too, is written again. Default 10 s. It bounds how
    /// far `done` lags behind, and so what a restart reads.
    pub parked_for: Duration,
    /// How much later a row is put by such a deferral at most. Default 60 s. Smaller: more rewriting while the target
    /// is slow; larger: rows come later once it has recovered.
    pub defer_max: Duration,
    /// Pollers of a tenant made at first start. Default 64.
    pub pollers: u16,
    /// How long a stop waits for attempts in flight. Default 10 s.
    pub drain: Duration,
    /// How long runs, and schedules that are over, are kept at least. Default 30 days. Shorter: a put that is tried again
    /// later than that makes its schedule anew, and a dead letter of before cannot be redriven; longer: more to store. The
    /// embedded engine has an option of its own.
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

//! The limits of a schedule, each with its name, default, and what too small and too large cost.

use std::time::Duration;

/// How many attempts a run's record keeps; older ones are dropped from it. A retry rewrites the record, so this bounds its size.
pub const ATTEMPTS_KEPT: usize = 16;

/// What a schedule may ask for. All of it is configuration; these are the defaults.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A time further in the past than this is refused, a nearer one fires at once. Default 60 s.
    pub past_max: Duration,
    /// The shortest `every` and the shortest distance of a cron. Default 1 s; shorter ones let one schedule fill a queue.
    pub interval_min: Duration,
    /// How far ahead `at` may be and the longest `every`. Default 10 years.
    pub horizon: Duration,
    /// The payload's bytes. Default 64 KiB.
    pub payload_bytes_max: usize,
    /// Default 20.
    pub attempts_max: u16,
    /// The longest `backoff_max`. Default 24 h.
    pub backoff_max: Duration,
    /// The longest `timeout`. Default 5 min; a slow target holds a slot for so long.
    pub timeout_max: Duration,
    /// Headers of a target, and their bytes in all. Defaults 32 and 8 KiB.
    pub headers_max: usize,
    pub header_bytes_max: usize,
    /// Labels of a schedule, and the bytes of a name or value. Defaults 16 and 256.
    pub labels_max: usize,
    pub label_bytes_max: usize,
    /// A target URL's bytes. Default 2,048.
    pub url_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            past_max: Duration::from_secs(60),
            interval_min: Duration::from_secs(1),
            horizon: Duration::from_secs(10 * 366 * 86_400),
            payload_bytes_max: 64 * 1024,
            attempts_max: 20,
            backoff_max: Duration::from_secs(86_400),
            timeout_max: Duration::from_secs(300),
            headers_max: 32,
            header_bytes_max: 8 * 1024,
            labels_max: 16,
            label_bytes_max: 256,
            url_bytes_max: 2_048,
        }
    }
}

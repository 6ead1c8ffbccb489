//! Limits of a schedule, each with its name, its default, and the cost of a value that is too small or too large.

use std::time::Duration;

/// Number of attempts in the record of a run; older attempts are dropped. Each retry rewrites the record, so this
/// limits its size.
pub const ATTEMPTS_KEPT: usize = 16;

/// Limits of the values in a schedule. All of them are configurable; the documented values are the defaults.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Oldest accepted `at`. An instant that is further in the past is rejected; a nearer one fires at once. Default 60
    /// s.
    pub past_max: Duration,
    /// Shortest `every`, and shortest distance of a cron expression. Default 1 s. A shorter one lets one schedule fill
    /// a queue.
    pub interval_min: Duration,
    /// Longest time from now to `at`, and longest `every`. Default 10 years.
    pub horizon: Duration,
    /// Bytes of a payload. Default 64 KiB.
    pub payload_bytes_max: usize,
    /// Highest `attempts_max`. Default 20.
    pub attempts_max: u16,
    /// Longest `backoff_max`. Default 24 h.
    pub backoff_max: Duration,
    /// Longest `timeout`. Default 5 min. A slow target occupies a slot for this long.
    pub timeout_max: Duration,
    /// Number of headers of a target (default 32), and their total bytes (default 8 KiB).
    pub headers_max: usize,
    pub header_bytes_max: usize,
    /// Number of labels of a schedule (default 16), and bytes of a label's name or value (default 256).
    pub labels_max: usize,
    pub label_bytes_max: usize,
    /// Bytes of a target URL. Default 2,048.
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

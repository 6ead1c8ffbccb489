//! Limits of a schedule, with their defaults. Some comments state the effect of a value that is too small or too large.

use std::time::Duration;

/// Maximum number of attempts in the record of a run. The store drops older attempts. Each retry rewrites the record,
/// so this number limits the size of the record.
pub const ATTEMPTS_KEPT: usize = 16;

/// Maximum number of bytes of a response's body that the record of an attempt contains, if the tenant switched excerpts
/// on. A record contains at most [`ATTEMPTS_KEPT`] excerpts.
pub const EXCERPT_BYTES_MAX: usize = 1_024;

/// Limits of the values in a schedule. An operator can configure all limits. The comments state the defaults.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest time by which the `at` of a new schedule may lie in the past. The server rejects an older instant. A
    /// schedule with a more recent instant in the past fires at once. Default 60 s.
    pub past_max: Duration,
    /// Shortest `every`, and shortest distance between two instants of a cron expression. Default 1 s. With a shorter
    /// interval, a single schedule could fill the queue of its target.
    pub interval_min: Duration,
    /// Maximum time from now until `at`, and maximum length of `every`. Default 10 years.
    pub horizon: Duration,
    /// Maximum size of a payload in bytes. Default 64 KiB.
    pub payload_bytes_max: usize,
    /// Highest `attempts_max` that a schedule may set. Default 20.
    pub attempts_max: u16,
    /// Longest `backoff_max` that a schedule may set. Default 24 h.
    pub backoff_max: Duration,
    /// Longest `timeout` that a schedule may set. Default 5 min. An attempt to a slow target can occupy a slot of the
    /// service for this time.
    pub timeout_max: Duration,
    /// Maximum number of headers of a target (default 32), and their maximum total size in bytes (default 8 KiB).
    pub headers_max: usize,
    pub header_bytes_max: usize,
    /// Maximum number of labels of a schedule (default 16), and maximum size of a label's name or value in bytes
    /// (default 256).
    pub labels_max: usize,
    pub label_bytes_max: usize,
    /// Maximum size of a target URL in bytes. Default 2,048.
    pub url_bytes_max: usize,
    /// True if the service has a message bus. Otherwise no schedule may have a bus target. Default false.
    pub has_bus: bool,
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
            has_bus: false,
        }
    }
}

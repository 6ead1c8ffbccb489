//! Settings of the scheduler. The comment on a setting states the default, and the disadvantages of a smaller and of a
//! larger value.

use std::time::Duration;

/// Settings of the scheduler.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time by which the owner reads due rows ahead of their instants. Default 2 s. With a smaller value, a slow read
    /// makes rows late. With a larger value, more keys are in memory.
    pub window_ahead: Duration,
    /// Largest number of keys in the window. One tenant has at most as many keys as the window has free entries.
    /// Default 2,097,152, with about 100 bytes per key. With a smaller value, the owner reads a burst in more pages.
    /// With a larger value, the window uses more memory.
    pub window_keys_max: usize,
    /// Period in which the owner reads due rows ahead, reads the insert logs and advances `closed`. Default 200 ms.
    /// With a smaller value, the owner reads the store more often. With a larger value, the owner reads more rows
    /// after a restart.
    pub period: Duration,
    /// Largest number of attempts in flight to one target, if the tenant has no quota for this number. Default 256.
    /// With a smaller value, a slow target gets fewer callbacks per second. With a larger value, the callbacks may
    /// overload a target.
    pub in_flight_per_target: usize,
    /// Largest number of attempts in flight. As many ended attempts may wait until their outcomes are durable. Default
    /// 4,096. With a smaller value, slow targets reduce the throughput. With a larger value, a kill of the process may
    /// cause more duplicates.
    pub in_flight_max: usize,
    /// Largest number of attempts that wait for a processor at the same time, while several tenants have due keys. The
    /// owner starts the other due keys later, in the order of the tenants' turns. Default 32. With a smaller value, a
    /// machine with many processors may lack work. With a larger value, a tenant with few callbacks waits for more
    /// attempts of other tenants while the processors are saturated.
    pub starts_ready_max: usize,
    /// Largest number of keys that wait for one target. This number also never exceeds the number of free entries of
    /// the window. The owner writes all further keys again at a later position. Default 1,048,576. With a smaller
    /// value, the owner defers a burst for a target although the target is fast enough. With a larger value, slow
    /// targets use more of the window.
    pub parked_per_target: usize,
    /// Longest time for which a key waits in memory for its target. After this time, the owner writes the key again at
    /// a later position. Default 10 s. With a smaller value, a slow target causes more writes. With a larger value, the
    /// watermark `done` advances later, and the owner reads more rows after a restart.
    pub parked_for: Duration,
    /// Longest delay that one deferral of a key adds. Default 60 s. With a smaller value, a slow target causes more
    /// writes. With a larger value, rows that the owner does not remember fire later after the target has recovered.
    pub defer_max: Duration,
    /// Number of pollers of the first tenant, which the process creates at its first start. Default 64.
    pub pollers: u16,
    /// Longest time for which a stopping owner waits for its attempts in flight. Default 10 s. With a smaller value, a
    /// stop causes more duplicates. With a larger value, a stop takes longer.
    pub drain: Duration,
    /// Shortest time for which the store retains runs, and ended or cancelled schedules, of tenants without a class of
    /// retention; see [`domain::Tenant::retention`]. Default 30 days. After this time, a retried put creates its
    /// schedule again, and no request can redrive the schedule's dead letters. A longer time needs more storage. The
    /// embedded engine has its own option for this time.
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
            starts_ready_max: 32,
            parked_per_target: 1_048_576,
            parked_for: Duration::from_secs(10),
            defer_max: Duration::from_secs(60),
            pollers: 64,
            drain: Duration::from_secs(10),
            history: Duration::from_secs(30 * 86_400),
        }
    }
}

//! What a node takes for the time.

/// A node's monotonic clock: it goes on at a rate of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) true_base: u64,
    pub(crate) base: u64,
    /// In millionths of the true rate.
    pub(crate) rate_ppm: i64,
    /// By how much the wall clock is ahead of where the monotonic one would have it.
    pub(crate) wall: i64,
}

impl Clock {
    pub(crate) fn read(&self, now: u64) -> u64 {
        let passed = i128::from(now - self.true_base) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        self.base + u64::try_from(passed).expect("clocks go forward")
    }
}

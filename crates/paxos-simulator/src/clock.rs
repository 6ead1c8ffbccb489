//! Clocks of nodes.

/// Monotonic clock of a node. The clock runs at its own rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) true_base: u64,
    pub(crate) base: u64,
    /// Difference of the clock's rate from the true rate, in millionths.
    pub(crate) rate_ppm: i64,
    /// Difference between the node's wall clock and its monotonic clock, in microseconds.
    pub(crate) wall: i64,
}

impl Clock {
    pub(crate) fn read(&self, now: u64) -> u64 {
        let passed = i128::from(now - self.true_base) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        self.base + u64::try_from(passed).expect("clocks go forward")
    }
}

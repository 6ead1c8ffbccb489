//! Options of nodes and paxos groups.

use std::time::Duration;

use crate::mover;
use crate::simulation::Deviation;

/// Options of a node. All nodes must use the same values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time for which a master may serve after its last renewal. With a shorter lease, other nodes take over from a
    /// dead master sooner. A longer lease needs fewer renewals and tolerates slower disks.
    pub lease: Duration,
    /// Maximum difference between the rates of two clocks, in millionths. If the difference is greater, leases are not
    /// safe.
    pub drift_ppm: u32,
    /// Time without a response after which a node sends a message again.
    pub resend: Duration,
    /// Approximate delay of a candidacy. Nodes delay their candidacies by different times, so that they do not depose
    /// each other.
    pub stagger: Duration,
    /// Time after which a master that consented to a takeover may become master again. The time starts again with each
    /// prepare or pull message of the node that takes over.
    pub consent: Duration,
    /// Maximum number of undecided slots in a log.
    pub window_slots: usize,
    /// Maximum number of bytes in flight to one member.
    pub window_bytes: usize,
    /// Maximum number of entries in a slot.
    pub batch_entries: usize,
    /// Maximum number of bytes in a slot. A single entry may be larger.
    pub batch_bytes: usize,
    /// Time for which an entry waits for further entries while other slots are in flight.
    pub linger: Duration,
    /// Maximum size, in bytes, of all entries that wait for a slot. Above this size, the master rejects further
    /// entries. A single entry may be larger. The size of a waiting entry includes a fixed number of bytes for its
    /// place in the queue.
    pub waiting_bytes: usize,
    /// Maximum number of bytes in a message to a member that is behind. A single slot may be larger.
    pub chunk_bytes: usize,
    /// Number of slots of the system group that a node applies before it creates another snapshot of the system group.
    pub system_slots: u64,
    /// Interval at which a node reports its masterships to the master of the system group. During a move that concerns
    /// the node, the interval is `resend`.
    pub report: Duration,
    /// Options for moves of masters.
    pub mover: mover::Options,
    /// Deviation from the rules of this crate. Only the simulator sets it.
    pub deviation: Deviation,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(5),
            drift_ppm: 1_000,
            resend: Duration::from_millis(200),
            stagger: Duration::from_millis(20),
            consent: Duration::from_secs(1),
            window_slots: 256,
            window_bytes: 8 << 20,
            batch_entries: 64,
            batch_bytes: 256 << 10,
            linger: Duration::from_millis(2),
            waiting_bytes: 16 << 20,
            chunk_bytes: 1 << 20,
            system_slots: 1_000,
            report: Duration::from_secs(1),
            mover: mover::Options::default(),
            deviation: Deviation::default(),
        }
    }
}

impl Options {
    /// # Panics
    /// Panics if a paxos group with these options could not decide any slot, or if its leases would be unsafe.
    pub(crate) fn check(&self) {
        let limits = [self.window_slots, self.window_bytes, self.batch_entries, self.chunk_bytes];
        assert!(limits.iter().all(|limit| *limit > 0), "the limits of windows, batches and chunks must not be zero");
        assert!(!self.lease.is_zero() && !self.resend.is_zero(), "the lease and the resend interval must not be zero");
        assert!(self.drift_ppm < 1_000_000, "the clock drift must be less than 1,000,000 parts per million");
    }

    /// Returns `duration` plus the possible clock drift. The returned time by one clock is at least as long as
    /// `duration` by any other clock.
    #[must_use]
    pub fn stretched(&self, duration: Duration) -> Duration {
        duration + self.drift(duration)
    }

    /// Returns `duration` minus the possible clock drift. The returned time by one clock is at most as long as
    /// `duration` by any other clock.
    #[must_use]
    pub fn shrunk(&self, duration: Duration) -> Duration {
        duration.saturating_sub(self.drift(duration))
    }

    fn drift(&self, duration: Duration) -> Duration {
        let micros = u128::from(self.drift_ppm) * duration.as_micros() / 1_000_000;
        // The drift includes two more microseconds, because both clocks round instants to whole microseconds.
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).saturating_add(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_check_panics_if_an_option_is_invalid() {
        Options::default().check();
        let wrong: [fn(&mut Options); 7] = [
            |options| options.window_slots = 0,
            |options| options.window_bytes = 0,
            |options| options.batch_entries = 0,
            |options| options.chunk_bytes = 0,
            |options| options.lease = Duration::ZERO,
            |options| options.resend = Duration::ZERO,
            |options| options.drift_ppm = 1_000_000,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let mut options = Options::default();
            change(&mut options);
            assert!(std::panic::catch_unwind(|| options.check()).is_err(), "{index}");
        }
    }
}

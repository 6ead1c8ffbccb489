//! What can be set.

use std::time::Duration;

use crate::mover;
use crate::simulation::Deviation;

/// The same at all members, but for what says otherwise.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a master may serve after its last renewal. Shorter finds dead ones sooner; longer costs less and bears slower disks.
    pub lease: Duration,
    /// By how much the rates of any two clocks differ at most, in millionths. Leases are not safe beyond it.
    pub drift_ppm: u32,
    /// How long to wait for an answer before asking again.
    pub resend: Duration,
    /// About how long candidates stay out of each other's way.
    pub stagger: Duration,
    /// How long after giving consent, or hearing its taker prepare or pull, a master wants to serve again.
    pub consent: Duration,
    /// Slots that wait for their decision, at most.
    pub window_slots: usize,
    /// Bytes that are on their way to one member, at most.
    pub window_bytes: usize,
    /// Entries in a slot, at most.
    pub batch_entries: usize,
    /// Bytes in a slot, at most, but for one entry that is larger.
    pub batch_bytes: usize,
    /// How long an entry waits for company while others are in flight.
    pub linger: Duration,
    /// Bytes that wait for a slot, at most, but for one entry that is larger; more are refused. Each that waits counts
    /// for its bytes and for what keeps it.
    pub waiting_bytes: usize,
    /// Bytes in a message for who is behind, at most, but for one slot that is larger.
    pub chunk_bytes: usize,
    /// Slots of the system group that a node keeps, at least, before it makes a snapshot.
    pub system_slots: u64,
    /// How often a node tells the system group's master what it is master of. During a move it does so after each `resend`.
    pub report: Duration,
    /// How masters are moved.
    pub mover: mover::Options,
    /// Nothing but what the simulator sets.
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
    /// If nothing could be decided, or no lease could be relied on, with these.
    pub(crate) fn check(&self) {
        let room = [self.window_slots, self.window_bytes, self.batch_entries, self.chunk_bytes];
        assert!(room.iter().all(|room| *room > 0), "a window, a batch and a chunk have room for something");
        assert!(
            !self.lease.is_zero() && !self.resend.is_zero(),
            "a lease and the time between two questions are not zero"
        );
        assert!(self.drift_ppm < 1_000_000, "a clock of which another may go twice as fast tells no time");
    }

    /// So long on one clock is at least `duration` on any other.
    #[must_use]
    pub fn stretched(&self, duration: Duration) -> Duration {
        duration + self.drift(duration)
    }

    /// So long on one clock is at most `duration` on any other.
    #[must_use]
    pub fn shrunk(&self, duration: Duration) -> Duration {
        duration.saturating_sub(self.drift(duration))
    }

    fn drift(&self, duration: Duration) -> Duration {
        let micros = u128::from(self.drift_ppm) * duration.as_micros() / 1_000_000;
        // Up, as instants are whole microseconds, on both clocks.
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).saturating_add(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_with_which_nothing_goes_on_are_refused() {
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

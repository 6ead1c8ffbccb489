//! Deadline that several tasks of one process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Monotonic;

/// Instant of the monotonic clock until which a right, such as a lease, is valid. Several tasks can share, extend and
/// end the deadline. A clone is cheap, and a check is one atomic load.
///
/// Invariant: after one task has observed that the deadline has passed, no task can extend the deadline.
#[derive(Clone)]
pub struct Deadline(Arc<AtomicU64>);

/// Value of a deadline after a task has ended it or has observed that it has passed. All other values are nanoseconds
/// since the clock's start.
const ENDED: u64 = 0;

impl Deadline {
    /// Creates a deadline at `at`, the first instant at which the deadline has passed.
    #[must_use]
    pub fn new(at: Monotonic) -> Self {
        Deadline(Arc::new(AtomicU64::new(nanos(at))))
    }

    /// Returns the first instant at which the deadline has passed. Returns the clock's start if a task has ended the
    /// deadline or has observed that the deadline has passed.
    #[must_use]
    pub fn at(&self) -> Monotonic {
        Monotonic::from_start(Duration::from_nanos(self.0.load(Ordering::Acquire)))
    }

    /// Returns true if the deadline lies after `now`, the current instant.
    #[must_use]
    pub fn is_ahead(&self, now: Monotonic) -> bool {
        let mut deadline = self.0.load(Ordering::Acquire);
        loop {
            if nanos(now) < deadline {
                return true;
            }
            if deadline == ENDED {
                return false;
            }
            // This call reports to its caller that the deadline has passed, so every later extension must fail.
            match self.0.compare_exchange(deadline, ENDED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(extended) => deadline = extended,
            }
        }
    }

    /// Moves the deadline to `to`, unless the deadline is already later. Returns false, and changes nothing, if the
    /// deadline has passed.
    pub fn extend(&self, now: Monotonic, to: Monotonic) -> bool {
        let later = |known: u64| (known != ENDED).then(|| known.max(nanos(to)));
        self.is_ahead(now) && self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later).is_ok()
    }

    /// Ends the deadline at once. No task can extend it afterwards.
    pub fn end(&self) {
        self.0.store(ENDED, Ordering::Release);
    }
}

/// Nanoseconds since the clock's start, limited to values from 1 to `u64::MAX`, because 0 means [`ENDED`].
fn nanos(at: Monotonic) -> u64 {
    u64::try_from(at.since_start().as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn deadline_passes_exactly_at_its_instant() {
        let deadline = Deadline::new(at(10));
        assert!(deadline.is_ahead(at(9)) && deadline.extend(at(9), at(20)) && deadline.is_ahead(at(19)));
        assert_eq!(deadline.at(), at(20));
        assert!(!deadline.is_ahead(at(20)));
    }

    #[test]
    fn passed_deadline_rejects_extension() {
        let deadline = Deadline::new(at(10));
        assert!(!deadline.clone().is_ahead(at(10)));
        assert!(!deadline.extend(at(9), at(30)) && !deadline.is_ahead(at(9)));
        let unseen = Deadline::new(at(10));
        assert!(!unseen.extend(at(10), at(30)) && !unseen.is_ahead(at(9)), "the extension comes too late");
        let ended = Deadline::new(at(10));
        ended.end();
        assert!(!ended.is_ahead(at(0)) && !ended.extend(at(1), at(30)));
    }

    #[test]
    fn extension_never_shortens_a_deadline() {
        let deadline = Deadline::new(at(10));
        assert!(deadline.extend(at(1), at(20)) && deadline.extend(at(2), at(15)));
        assert_eq!(deadline.at(), at(20));
    }

    #[test]
    fn infinite_deadline_never_passes() {
        let deadline = Deadline::new(at(5) + Duration::MAX);
        assert!(deadline.is_ahead(at(u64::MAX / 2_000_000_000)));
    }
}

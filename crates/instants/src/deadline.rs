//! A moment that several tasks of one process share, extend and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Monotonic;

/// The moment until which something may be relied on, by this machine's clock alone. A clone is cheap; a look is one
/// atomic load.
///
/// Always true here: once it was seen to have passed, it has passed for good.
#[derive(Clone)]
pub struct Deadline(Arc<AtomicU64>);

/// In place of nanoseconds since the clock's start.
const OVER: u64 = 0;

impl Deadline {
    #[must_use]
    pub fn new(at: Monotonic) -> Self {
        Deadline(Arc::new(AtomicU64::new(nanos(at))))
    }

    /// The first instant at which it has passed, unless it is extended before; the clock's start if it was ended.
    #[must_use]
    pub fn at(&self) -> Monotonic {
        Monotonic::from_start(Duration::from_nanos(self.0.load(Ordering::Acquire)))
    }

    /// Whether it is still to come at `now`, the present instant.
    #[must_use]
    pub fn is_ahead(&self, now: Monotonic) -> bool {
        let mut deadline = self.0.load(Ordering::Acquire);
        loop {
            if nanos(now) < deadline {
                return true;
            }
            if deadline == OVER {
                return false;
            }
            // No extension may come after someone has seen it passed.
            match self.0.compare_exchange(deadline, OVER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(extended) => deadline = extended,
            }
        }
    }

    /// Whether it was still ahead; if so, it is at `to` now, or at a later instant that it had.
    pub fn extend(&self, now: Monotonic, to: Monotonic) -> bool {
        let later = |known: u64| (known != OVER).then(|| known.max(nanos(to)));
        self.is_ahead(now) && self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later).is_ok()
    }

    /// Makes it pass, for good.
    pub fn end(&self) {
        self.0.store(OVER, Ordering::Release);
    }
}

/// An instant that no `u64` holds is after every clock's end.
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
    fn it_is_ahead_before_it_only() {
        let deadline = Deadline::new(at(10));
        assert!(deadline.is_ahead(at(9)) && deadline.extend(at(9), at(20)) && deadline.is_ahead(at(19)));
        assert_eq!(deadline.at(), at(20));
        assert!(!deadline.is_ahead(at(20)));
    }

    #[test]
    fn once_seen_to_have_passed_it_is_never_ahead_again() {
        let deadline = Deadline::new(at(10));
        assert!(!deadline.clone().is_ahead(at(10)));
        assert!(!deadline.extend(at(9), at(30)) && !deadline.is_ahead(at(9)));
        let unseen = Deadline::new(at(10));
        assert!(!unseen.extend(at(10), at(30)) && !unseen.is_ahead(at(9)), "too late, though nobody looked");
        let ended = Deadline::new(at(10));
        ended.end();
        assert!(!ended.is_ahead(at(0)) && !ended.extend(at(1), at(30)));
    }

    #[test]
    fn an_earlier_extension_that_comes_later_takes_nothing_away() {
        let deadline = Deadline::new(at(10));
        assert!(deadline.extend(at(1), at(20)) && deadline.extend(at(2), at(15)));
        assert_eq!(deadline.at(), at(20));
    }

    #[test]
    fn one_without_end_has_no_last_instant() {
        let deadline = Deadline::new(at(5) + Duration::MAX);
        assert!(deadline.is_ahead(at(u64::MAX / 2_000_000_000)));
    }
}

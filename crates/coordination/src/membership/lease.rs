//! How long a session may be relied on, by this machine's clock alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runtime::Monotonic;

use crate::MemberId;

/// A cheap clone; a look at it is one atomic load.
///
/// Always true here: once it was seen to be invalid, it is never valid again.
#[derive(Clone)]
pub struct Lease(Arc<State>);

struct State {
    member: MemberId,
    /// In nanoseconds since the clock's start, or [`OVER`].
    deadline: AtomicU64,
}

const OVER: u64 = 0;

impl Lease {
    pub(super) fn new(member: MemberId, deadline: Monotonic) -> Self {
        Lease(Arc::new(State { member, deadline: AtomicU64::new(nanos(deadline)) }))
    }

    /// Whose session it is.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.0.member
    }

    /// The first instant at which it is not valid, unless it is renewed before; the clock's start if it is over.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        Monotonic::from_start(Duration::from_nanos(self.0.deadline.load(Ordering::Acquire)))
    }

    /// Whether what the session has claimed may be acted on at `now`, the present instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        let mut deadline = self.0.deadline.load(Ordering::Acquire);
        loop {
            if nanos(now) < deadline {
                return true;
            }
            if deadline == OVER {
                return false;
            }
            // No renewal may come after someone has seen it invalid.
            match self.0.deadline.compare_exchange(deadline, OVER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(renewed) => deadline = renewed,
            }
        }
    }

    /// Whether it was still valid; if so, it is until `deadline` now, or until a later one that it had.
    pub(super) fn extend(&self, now: Monotonic, deadline: Monotonic) -> bool {
        let later = |known: u64| (known != OVER).then(|| known.max(nanos(deadline)));
        self.is_valid(now) && self.0.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, later).is_ok()
    }

    pub(super) fn end(&self) {
        self.0.deadline.store(OVER, Ordering::Release);
    }
}

/// An instant that no `u64` holds is after every clock's end.
fn nanos(at: Monotonic) -> u64 {
    u64::try_from(at.since_start().as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} until {:?})", self.member(), self.deadline().since_start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lease_is_valid_before_its_deadline_only() {
        let lease = Lease::new(MemberId(1), at(10));
        assert!(lease.is_valid(at(9)) && lease.extend(at(9), at(20)) && lease.is_valid(at(19)));
        assert_eq!(lease.deadline(), at(20));
        assert!(!lease.is_valid(at(20)));
    }

    #[test]
    fn a_lease_that_was_seen_invalid_is_never_valid_again() {
        let lease = Lease::new(MemberId(1), at(10));
        assert!(!lease.clone().is_valid(at(10)));
        assert!(!lease.extend(at(9), at(30)) && !lease.is_valid(at(9)));
        let unseen = Lease::new(MemberId(1), at(10));
        assert!(!unseen.extend(at(10), at(30)) && !unseen.is_valid(at(9)), "too late, though nobody looked");
        let ended = Lease::new(MemberId(1), at(10));
        ended.end();
        assert!(!ended.is_valid(at(0)) && !ended.extend(at(1), at(30)));
    }

    #[test]
    fn an_earlier_renewal_that_is_answered_later_takes_nothing_away() {
        let lease = Lease::new(MemberId(1), at(10));
        assert!(lease.extend(at(1), at(20)) && lease.extend(at(2), at(15)));
        assert_eq!(lease.deadline(), at(20));
    }

    #[test]
    fn an_endless_lease_has_no_last_instant() {
        let lease = Lease::new(MemberId(1), at(5) + Duration::MAX);
        assert!(lease.is_valid(at(u64::MAX / 2_000_000_000)));
    }
}

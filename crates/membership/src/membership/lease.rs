//! Validity of a session, by this machine's clock alone.

use std::fmt;

use instants::{Deadline, Monotonic};

use crate::MemberId;

/// Right to use a session's claims. Cloning is cheap, and checking it is one atomic load.
///
/// Invariant: a lease that was observed as invalid never becomes valid again.
#[derive(Clone)]
pub struct Lease {
    member: MemberId,
    deadline: Deadline,
}

impl Lease {
    pub(super) fn new(member: MemberId, deadline: Monotonic) -> Self {
        Lease { member, deadline: Deadline::new(deadline) }
    }

    /// Member whose session this is.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// First instant at which the lease is invalid, unless it is renewed before; the clock's start if it has
    /// ended.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.deadline.at()
    }

    /// Returns whether the member may rely on the session's claims at `now`, the current instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.deadline.is_ahead(now)
    }

    /// Extends the lease to `deadline`, unless it already ends later. Returns false, without a change, if it was
    /// no longer valid.
    pub(super) fn extend(&self, now: Monotonic, deadline: Monotonic) -> bool {
        self.deadline.extend(now, deadline)
    }

    pub(super) fn end(&self) {
        self.deadline.end();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} until {:?})", self.member(), self.deadline().since_start())
    }
}

//! Lease of a session. The validity of the lease depends only on this machine's clock.

use std::fmt;

use instants::{Deadline, Monotonic};

use crate::MemberId;

/// Right to use a session's claims. A clone of the lease is cheap, and a check is one atomic load.
///
/// Invariant: after a task has observed that the lease is invalid, the lease never becomes valid again.
#[derive(Clone)]
pub struct Lease {
    member: MemberId,
    deadline: Deadline,
}

impl Lease {
    pub(super) fn new(member: MemberId, deadline: Monotonic) -> Self {
        Lease { member, deadline: Deadline::new(deadline) }
    }

    /// Returns the member that opened the session.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// Returns the first instant at which the lease is invalid if the member does not renew the lease. Returns the
    /// start of the clock if a task has ended the lease or has observed that the lease is invalid.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.deadline.at()
    }

    /// Returns whether the member may rely on the session's claims at `now`, the current instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.deadline.is_ahead(now)
    }

    /// Extends the lease to `deadline`, unless the lease already ends later. Returns false, and changes nothing, if the
    /// lease is no longer valid.
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

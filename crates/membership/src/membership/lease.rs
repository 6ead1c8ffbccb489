//! How long a session may be relied on, by this machine's clock alone.

use std::fmt;

use instants::{Deadline, Monotonic};

use crate::MemberId;

/// A cheap clone; a look at it is one atomic load.
///
/// Always true here: once it was seen to be invalid, it is never valid again.
#[derive(Clone)]
pub struct Lease {
    member: MemberId,
    deadline: Deadline,
}

impl Lease {
    pub(super) fn new(member: MemberId, deadline: Monotonic) -> Self {
        Lease { member, deadline: Deadline::new(deadline) }
    }

    /// Whose session it is.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// The first instant at which it is not valid, unless it is renewed before; the clock's start if it is over.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.deadline.at()
    }

    /// Whether what the session has claimed may be acted on at `now`, the present instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.deadline.is_ahead(now)
    }

    /// Whether it was still valid; if so, it is until `deadline` now, or until a later one that it had.
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

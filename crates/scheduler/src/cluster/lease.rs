//! Lease of this member: the deadline until which it may act as an owner.

use std::sync::RwLock;
use std::time::Duration;

use runtime::Monotonic;

/// Right of this member to act as an owner. By this member's own clock, the right ends before another member may take
/// the shards.
pub(crate) struct Lease(RwLock<Right>);

enum Right {
    /// No other process uses the store, so this member may always act as an owner.
    Unlimited,
    /// This member has no session, so it may not act as an owner.
    None,
    Session(membership::Lease),
}

impl Lease {
    pub(crate) fn forever() -> Self {
        Lease(RwLock::new(Right::Unlimited))
    }

    pub(crate) fn none() -> Self {
        Lease(RwLock::new(Right::None))
    }

    /// Replaces the session. The caller must already have released all shards that it owned under the previous session.
    pub(crate) fn set_session(&self, session: membership::Lease) {
        *self.0.write().expect("no holder of this lock panics") = Right::Session(session);
    }

    /// Returns the first instant at which the lease is no longer valid.
    pub(crate) fn deadline(&self) -> Monotonic {
        match &*self.0.read().expect("no holder of this lock panics") {
            Right::Unlimited => Monotonic::from_start(Duration::MAX),
            Right::None => Monotonic::from_start(Duration::ZERO),
            Right::Session(lease) => lease.deadline(),
        }
    }

    pub(crate) fn is_valid(&self, now: Monotonic) -> bool {
        match &*self.0.read().expect("no holder of this lock panics") {
            Right::Unlimited => true,
            Right::None => false,
            Right::Session(lease) => lease.is_valid(now),
        }
    }
}

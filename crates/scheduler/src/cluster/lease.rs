//! The right to own anything: until when what this member holds is its own.

use std::sync::RwLock;
use std::time::Duration;

use runtime::Monotonic;

/// Its own clock decides that it must stop, before anybody else may take over what it holds.
pub(crate) struct Lease(RwLock<Under>);

enum Under {
    /// A process that shares its store with no other.
    Nobody,
    /// Nothing is held.
    Nothing,
    Session(membership::Lease),
}

impl Lease {
    pub(crate) fn forever() -> Self {
        Lease(RwLock::new(Under::Nobody))
    }

    pub(crate) fn none() -> Self {
        Lease(RwLock::new(Under::Nothing))
    }

    /// What is gained from here on is held under `session`. What was held under another is let go of already.
    pub(crate) fn hold_under(&self, session: membership::Lease) {
        *self.0.write().expect("no holder of this lock panics") = Under::Session(session);
    }

    /// Not included.
    pub(crate) fn deadline(&self) -> Monotonic {
        match &*self.0.read().expect("no holder of this lock panics") {
            Under::Nobody => Monotonic::from_start(Duration::MAX),
            Under::Nothing => Monotonic::from_start(Duration::ZERO),
            Under::Session(lease) => lease.deadline(),
        }
    }

    pub(crate) fn is_valid(&self, now: Monotonic) -> bool {
        match &*self.0.read().expect("no holder of this lock panics") {
            Under::Nobody => true,
            Under::Nothing => false,
            Under::Session(lease) => lease.is_valid(now),
        }
    }
}

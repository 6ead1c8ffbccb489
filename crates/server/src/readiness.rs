//! Whether this server wants to be sent requests, apart from whether it can take them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle to it; all clones are of the same server.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on `/readyz` answers 503, so that whatever balances load looks elsewhere; requests are still answered.
    pub fn withdraw(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

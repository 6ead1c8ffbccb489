//! Readiness, which tells load balancers whether this server should receive requests. A server that is not ready can
//! still serve requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Handle to the readiness of one server. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Makes `/readyz` respond with 503, so that load balancers choose another server. The server continues to serve
    /// requests.
    pub fn withdraw(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

//! Resources of the client that one tenant uses. The tenant's share of each resource is bounded.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::Semaphore;

/// Largest number of host names that the client resolves for one tenant at a time.
pub(crate) const LOOKUPS_PER_TENANT: usize = 32;

/// Resources that one tenant uses.
#[derive(Debug)]
pub(crate) struct TenantShare {
    /// Number of the tenant's connections that the pool keeps for later callbacks.
    pub(crate) idle: Arc<AtomicUsize>,
    /// Permits for concurrent lookups of host names.
    pub(crate) lookups: Semaphore,
}

impl TenantShare {
    pub(crate) fn new() -> Self {
        TenantShare { idle: Arc::default(), lookups: Semaphore::new(LOOKUPS_PER_TENANT) }
    }
}

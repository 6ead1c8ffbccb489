//! Tenants, as this member last read them from the store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use domain::{ApiKey, PollerId, Tenant, TenantId};

#[derive(Default)]
pub(crate) struct KnownTenants {
    known: RwLock<Arc<Known>>,
    /// Epoch of the store in which this member read the tenants.
    epoch: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Known {
    by_id: BTreeMap<TenantId, Arc<Tenant>>,
    by_key: BTreeMap<String, (Arc<Tenant>, Arc<ApiKey>)>,
}

impl Known {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_id.values()
    }
}

impl KnownTenants {
    /// Replaces the known tenants with `tenants`, which this member read after it had learned of `epoch`. Returns false if
    /// the tenants did not change.
    pub(crate) fn replace(&self, tenants: Vec<Tenant>, epoch: u64) -> bool {
        let is_changed = self.set(tenants);
        self.epoch.store(epoch, Ordering::Release);
        is_changed
    }

    /// Returns the epoch of the store in which this member read the tenants.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn set(&self, tenants: Vec<Tenant>) -> bool {
        let known = self.known();
        if known.by_id.len() == tenants.len() && known.by_id.values().zip(&tenants).all(|(known, new)| **known == *new)
        {
            return false;
        }
        let mut new = Known::default();
        for tenant in tenants {
            let tenant = Arc::new(tenant);
            let keys = tenant.keys.iter().map(|key| (key.id.clone(), (tenant.clone(), Arc::new(key.clone()))));
            new.by_key.extend(keys);
            new.by_id.insert(tenant.id, tenant);
        }
        *self.known.write().expect("no holder of this lock panics") = Arc::new(new);
        true
    }

    pub(crate) fn get(&self, id: TenantId) -> Option<Arc<Tenant>> {
        self.known().by_id.get(&id).cloned()
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<Tenant>> {
        self.known().by_id.values().find(|tenant| tenant.name == name).cloned()
    }

    /// Returns the API key with this id, and its tenant.
    pub(crate) fn key(&self, key_id: &str) -> Option<(Arc<Tenant>, Arc<ApiKey>)> {
        self.known().by_key.get(key_id).cloned()
    }

    /// Returns the pollers of all generations of all tenants.
    pub(crate) fn pollers(&self) -> Vec<PollerId> {
        self.known().by_id.values().flat_map(|tenant| pollers_of(tenant)).collect()
    }

    /// Returns a pointer to the current set of tenants. After every change of the tenants, the returned pointer differs
    /// from the pointer before the change.
    pub(crate) fn known(&self) -> Arc<Known> {
        self.known.read().expect("no holder of this lock panics").clone()
    }
}

/// Returns the pollers of all generations of the tenant.
pub(crate) fn pollers_of(tenant: &Tenant) -> impl Iterator<Item = PollerId> + '_ {
    let id = tenant.id;
    (0..).zip(&tenant.generations).flat_map(move |(generation, pollers)| {
        (0..*pollers).map(move |number| PollerId { tenant: id, generation, number })
    })
}

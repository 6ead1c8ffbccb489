//! Service for tenants: their keys, settings, audit logs and numbers of active schedules.

use std::sync::Arc;

use domain::{ApiKey, Audit, PollerId, Tenant, TenantId};
use store::{Outdated, StoreError, Usage};

use crate::cluster::ownership::{new_pollers, send_gained};
use crate::firing::messages::Gained;
use crate::known_tenants::pollers_of;
use crate::metrics::count_store_error;
use crate::shared::Shared;

/// Cheaply cloneable handle to the tenants in a scheduler's store.
#[derive(Clone)]
pub struct Tenants {
    shared: Arc<Shared>,
}

impl Tenants {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Tenants { shared }
    }

    /// Returns the API key with this id and the key's tenant, as this member last read them from the store.
    #[must_use]
    pub fn key(&self, key_id: &str) -> Option<(Arc<Tenant>, Arc<ApiKey>)> {
        self.shared.tenants.key(key_id)
    }

    /// Returns the tenant with this name, as this member last read it from the store.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<Tenant>> {
        self.shared.tenants.named(name)
    }

    /// Returns the tenant with this id, as this member last read it from the store.
    #[must_use]
    pub fn get(&self, id: TenantId) -> Option<Arc<Tenant>> {
        self.shared.tenants.get(id)
    }

    /// Reads all tenants from the store.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn all(&self) -> Result<Vec<Tenant>, StoreError> {
        self.shared.store.tenants().await
    }

    /// Creates or changes a tenant, as [`store::Store::put_tenant`] does. This member uses the change at once. The
    /// other members use it some seconds later.
    ///
    /// # Errors
    /// Returns an error if the store fails. The change may or may not have taken effect.
    pub async fn put(&self, tenant: Tenant, entry: Audit) -> Result<Result<(), Outdated>, StoreError> {
        let put = self.shared.store.put_tenant(tenant, entry).await?;
        if put.is_ok()
            && let Err(error) = self.refresh().await
        {
            // The owner's supervisor soon reads the tenants again.
            count_store_error(&self.shared.metrics, "tenants", &error);
        }
        Ok(put)
    }

    /// Returns a tenant's audit log, as [`store::Store::audit`] does.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Result<Vec<Audit>, StoreError> {
        let _turn = self.shared.turns.take(tenant).await;
        self.shared.store.audit(tenant, after, limit).await
    }

    /// Returns the number of the tenant's stored schedules by status, and the size of the stored data in bytes.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn usage(&self, tenant: TenantId) -> Result<Usage, StoreError> {
        let usages = self.usages(vec![tenant]).await?;
        Ok(usages.into_iter().next().expect("the store returns one usage per tenant"))
    }

    /// Returns the number of stored schedules by status and the size of the stored data in bytes, for each of these
    /// tenants.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn usages(&self, tenants: Vec<TenantId>) -> Result<Vec<Usage>, StoreError> {
        self.shared.store.usage(tenants).await
    }

    /// Returns the number of stored schedules by status and the size of the stored data in bytes, as totals over all
    /// tenants that this member knows.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn usage_of_all(&self) -> Result<Usage, StoreError> {
        let tenants = self.shared.tenants.known().all().map(|tenant| tenant.id).collect();
        Ok(self.usages(tenants).await?.into_iter().sum())
    }

    /// Returns the pollers of all generations of the tenant. These pollers contain all due rows of the tenant.
    #[must_use]
    pub fn pollers(tenant: &Tenant) -> Vec<PollerId> {
        pollers_of(tenant).collect()
    }

    /// Reads the tenants, and sends new pollers of the owned shards to the owner.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let _moving = shared.moving.lock().await;
        let epoch = shared.store.epoch();
        let tenants = shared.store.tenants().await?;
        let before = shared.tenants.pollers().into_iter().collect();
        // This function reads the positions of the new pollers before it replaces the tenants. If the read fails, the
        // next refresh therefore finds the same new pollers.
        let pollers = new_pollers(shared, tenants.iter().flat_map(pollers_of), &before).await?;
        if shared.tenants.replace(tenants, epoch) {
            send_gained(shared, Gained { pollers, ..Gained::default() }).await;
        }
        Ok(())
    }
}

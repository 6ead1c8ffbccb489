//! Tenants, their keys, signing secrets and audit log: for admins, and operators.
//!
//! What makes a secret is never repeated after an attempt whose outcome is not known: it would make a second one.

use api::{
    AuditEntry, AuditPage, Key, KeyList, KeyMade, KeyRequest, QuotaSheet, Quotas, SigningSecret, SigningSecretList,
    SigningSecretMade, Tenant, TenantList, TenantMade, TenantPatch, TenantRequest,
};
use futures_util::stream::BoxStream;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::Call;
use crate::{Client, Error};

impl Client {
    /// All tenants, by name.
    ///
    /// # Errors
    /// `role_forbidden` for all but operators, and what [`Error`] lists.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        Ok(self.read::<TenantList>("/v1/tenants".to_owned()).await?.tenants)
    }

    /// Makes a tenant, with its first key and signing secret, which are told this once.
    ///
    /// # Errors
    /// `tenant_exists`, `invalid_request`, and what [`Error`] lists.
    pub async fn create_tenant(&self, request: &TenantRequest) -> Result<TenantMade, Error> {
        self.make("/v1/tenants".to_owned(), request).await
    }

    /// Reads a tenant.
    ///
    /// # Errors
    /// `tenant_not_found`, also for those of others, and what [`Error`] lists.
    pub async fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        self.read(of(name, "")).await
    }

    /// Sets a tenant's quotas and their ceilings, and answers the tenant; for operators.
    ///
    /// # Errors
    /// `tenant_not_found`, `invalid_request`, `quota_ceiling`, and what [`Error`] lists.
    pub async fn update_tenant(&self, name: &str, patch: &TenantPatch) -> Result<Tenant, Error> {
        self.patch(of(name, ""), patch).await
    }

    /// What the key's own tenant may use, and how high its admins may set that.
    ///
    /// # Errors
    /// What [`Error`] lists.
    pub async fn quotas(&self) -> Result<QuotaSheet, Error> {
        self.read("/v1/quotas".to_owned()).await
    }

    /// Sets quotas of the key's own tenant, up to the ceilings; those that are not named stay.
    ///
    /// # Errors
    /// `quota_ceiling`, `role_forbidden`, and what [`Error`] lists.
    pub async fn set_quotas(&self, quotas: &Quotas) -> Result<QuotaSheet, Error> {
        self.patch("/v1/quotas".to_owned(), quotas).await
    }

    /// A tenant's keys, the oldest first, without what is secret.
    ///
    /// # Errors
    /// `tenant_not_found`, and what [`Error`] lists.
    pub async fn keys(&self, tenant: &str) -> Result<Vec<Key>, Error> {
        Ok(self.read::<KeyList>(of(tenant, "/keys")).await?.keys)
    }

    /// Makes a key, whose secret is told this once.
    ///
    /// # Errors
    /// `tenant_not_found`, `too_many`, `invalid_request`, and what [`Error`] lists.
    pub async fn create_key(&self, tenant: &str, request: &KeyRequest) -> Result<KeyMade, Error> {
        self.make(of(tenant, "/keys"), request).await
    }

    /// Revokes a key, and answers what it was.
    ///
    /// # Errors
    /// `key_not_found`, `last_one`, and what [`Error`] lists.
    pub async fn revoke_key(&self, tenant: &str, id: &str) -> Result<Key, Error> {
        self.remove(format!("{}/{}", of(tenant, "/keys"), escape(id))).await
    }

    /// What a tenant's callbacks are signed with, the newest first, without what is secret.
    ///
    /// # Errors
    /// `tenant_not_found`, and what [`Error`] lists.
    pub async fn signing_secrets(&self, tenant: &str) -> Result<Vec<SigningSecret>, Error> {
        Ok(self.read::<SigningSecretList>(of(tenant, "/signing-secrets")).await?.signing_secrets)
    }

    /// Makes a second signing secret, told this once: from now on callbacks are signed with both.
    ///
    /// # Errors
    /// `tenant_not_found`, `too_many`, and what [`Error`] lists.
    pub async fn create_signing_secret(&self, tenant: &str) -> Result<SigningSecretMade, Error> {
        let path = of(tenant, "/signing-secrets");
        let call = Call { method: Method::POST, repeat: Repeat::IfUntouched, ..Call::get(path) };
        self.0.call(&call).await?.read()
    }

    /// Deletes a signing secret, and answers what it was.
    ///
    /// # Errors
    /// `key_not_found`, `last_one`, and what [`Error`] lists.
    pub async fn delete_signing_secret(&self, tenant: &str, id: &str) -> Result<SigningSecret, Error> {
        self.remove(format!("{}/{}", of(tenant, "/signing-secrets"), escape(id))).await
    }

    /// What was changed about a tenant, the oldest first, page by page.
    #[must_use]
    pub fn audit(&self, tenant: &str) -> BoxStream<'static, Result<AuditEntry, Error>> {
        self.pages::<AuditPage>(of(tenant, "/audit"))
    }

    async fn read<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.0.call(&Call::get(path)).await?.read()
    }

    async fn make<T: DeserializeOwned>(&self, path: String, request: &impl Serialize) -> Result<T, Error> {
        self.0.call(&Call::with_body(Method::POST, path, Repeat::IfUntouched, request)).await?.read()
    }

    async fn patch<T: DeserializeOwned>(&self, path: String, patch: &impl Serialize) -> Result<T, Error> {
        self.0.call(&Call::with_body(Method::PATCH, path, Repeat::Always, patch)).await?.read()
    }

    /// Not repeated if it may have been done: a second one would say that there is no such thing.
    async fn remove<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.0.call(&Call { repeat: Repeat::IfUntouched, ..Call::delete(path) }).await?.read()
    }
}

fn of(tenant: &str, rest: &str) -> String {
    format!("/v1/tenants/{}{rest}", escape(tenant))
}

//! Calls for tenants and their keys, signing secrets and audit logs. Only admins and operators may use these calls.
//!
//! If the outcome of an attempt is unknown, the client does not repeat a request that creates a secret, because the
//! second attempt could create a second secret.

use api::{
    Audit, AuditEntry, AuditPage, Key, KeyCreated, KeyList, KeyRequest, QuotaSheet, Quotas, SigningSecret,
    SigningSecretCreated, SigningSecretList, Tenant, TenantCreated, TenantList, TenantPatch, TenantRequest,
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
    /// Returns the result of the last audit of the store: the differences between the timings of schedules and the
    /// stored records. An operator receives the differences of all tenants, and an admin those of the admin's tenant.
    ///
    /// # Errors
    /// Returns an error with the code `role_forbidden` if the key belongs to neither an operator nor an admin. Returns
    /// another variant of [`Error`] if the call fails for another reason.
    pub async fn store_audit(&self) -> Result<Audit, Error> {
        self.0.call(&Call::get("/v1/audit".to_owned())).await?.read()
    }

    /// Lists all tenants, ordered by name.
    ///
    /// # Errors
    /// Returns an error with the code `role_forbidden` if the key does not belong to an operator. Returns another
    /// variant of [`Error`] if the call fails for another reason.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        Ok(self.read::<TenantList>("/v1/tenants".to_owned()).await?.tenants)
    }

    /// Creates a tenant with its first key and signing secret. The server sends the key and the signing secret only in
    /// the response to this call.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_exists` or `invalid_request`, or another variant of [`Error`].
    pub async fn create_tenant(&self, request: &TenantRequest) -> Result<TenantCreated, Error> {
        self.make("/v1/tenants".to_owned(), request).await
    }

    /// Reads a tenant.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found` if the tenant does not exist or the key gives no access to it.
    /// Returns another variant of [`Error`] if the call fails for another reason.
    pub async fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        self.read(of(name, "")).await
    }

    /// Changes a tenant's settings, and returns the tenant. An admin of the tenant may change only `excerpts`.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found`, `role_forbidden`, `invalid_request` or `quota_ceiling`, or
    /// another variant of [`Error`].
    pub async fn update_tenant(&self, name: &str, patch: &TenantPatch) -> Result<Tenant, Error> {
        self.patch(of(name, ""), patch).await
    }

    /// Returns the quotas of the tenant that owns the client's key, and the ceilings up to which the tenant's admins
    /// may raise the quotas.
    ///
    /// # Errors
    /// Returns an [`Error`] if the call fails.
    pub async fn quotas(&self) -> Result<QuotaSheet, Error> {
        self.read("/v1/quotas".to_owned()).await
    }

    /// Sets quotas of the tenant that owns the client's key, up to the tenant's ceilings. Quotas that the request does
    /// not name stay unchanged.
    ///
    /// # Errors
    /// Returns an error with the code `quota_ceiling` or `role_forbidden`, or another variant of [`Error`].
    pub async fn set_quotas(&self, quotas: &Quotas) -> Result<QuotaSheet, Error> {
        self.patch("/v1/quotas".to_owned(), quotas).await
    }

    /// Lists a tenant's keys, the oldest first. The list does not contain the secrets of the keys.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found`, or another variant of [`Error`].
    pub async fn keys(&self, tenant: &str) -> Result<Vec<Key>, Error> {
        Ok(self.read::<KeyList>(of(tenant, "/keys")).await?.keys)
    }

    /// Creates a key. The server sends the key's secret only in the response to this call.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found`, `too_many` or `invalid_request`, or another variant of
    /// [`Error`].
    pub async fn create_key(&self, tenant: &str, request: &KeyRequest) -> Result<KeyCreated, Error> {
        self.make(of(tenant, "/keys"), request).await
    }

    /// Revokes a key, and returns the revoked key.
    ///
    /// # Errors
    /// Returns an error with the code `key_not_found` or `last_one`, or another variant of [`Error`].
    pub async fn revoke_key(&self, tenant: &str, id: &str) -> Result<Key, Error> {
        self.remove(format!("{}/{}", of(tenant, "/keys"), escape(id))).await
    }

    /// Lists the metadata of a tenant's signing secrets, the newest first. The list does not contain the secrets
    /// themselves.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found`, or another variant of [`Error`].
    pub async fn signing_secrets(&self, tenant: &str) -> Result<Vec<SigningSecret>, Error> {
        Ok(self.read::<SigningSecretList>(of(tenant, "/signing-secrets")).await?.signing_secrets)
    }

    /// Creates a second signing secret. The server sends the secret only in the response to this call. The server then
    /// signs callbacks with both secrets.
    ///
    /// # Errors
    /// Returns an error with the code `tenant_not_found` or `too_many`, or another variant of [`Error`].
    pub async fn create_signing_secret(&self, tenant: &str) -> Result<SigningSecretCreated, Error> {
        let path = of(tenant, "/signing-secrets");
        let call = Call { method: Method::POST, repeat: Repeat::IfUntouched, ..Call::get(path) };
        self.0.call(&call).await?.read()
    }

    /// Deletes a signing secret, and returns its metadata.
    ///
    /// # Errors
    /// Returns an error with the code `key_not_found` or `last_one`, or another variant of [`Error`].
    pub async fn delete_signing_secret(&self, tenant: &str, id: &str) -> Result<SigningSecret, Error> {
        self.remove(format!("{}/{}", of(tenant, "/signing-secrets"), escape(id))).await
    }

    /// Streams the audit log of a tenant, the oldest entry first. The client fetches the entries page by page.
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

    /// Sends a request that removes a key or a secret. The client does not repeat the request after an unknown outcome,
    /// because a second attempt would return a not-found error.
    async fn remove<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.0.call(&Call { repeat: Repeat::IfUntouched, ..Call::delete(path) }).await?.read()
    }
}

fn of(tenant: &str, rest: &str) -> String {
    format!("/v1/tenants/{}{rest}", escape(tenant))
}

//! Tenants: the registered users of the service, their keys, and the audit log of changes to the tenants.
//!
//! The crate `stored` defines the stored form of a tenant. The crate `api` defines the JSON form.

use crate::{Egress, KeyId, Quota, Quotas, Secret, TenantId, Timestamp};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// Name of the tenant, with the syntax of a [`crate::ScheduleId`].
    pub name: String,
    /// Number of changes to the tenant. It is 0 for a tenant from an older release, which did not count changes.
    pub version: u64,
    /// Number of pollers of each generation, from the oldest generation to the newest. New schedules use the newest
    /// generation. Only [`Tenant::OPERATOR`] has an empty list.
    pub generations: Vec<u16>,
    /// Secrets that sign the tenant's callbacks, the newest first. A tenant has one secret, or two secrets while the
    /// newer secret replaces the older secret.
    pub signing_secrets: Vec<SigningSecret>,
    pub keys: Vec<ApiKey>,
    /// Current quotas. The tenant's admins may change them up to the ceilings.
    pub quotas: Quotas,
    /// Ceilings of the quotas. A ceiling is the highest value to which the tenant's admins may set a quota. Only
    /// operators may change the ceilings. No quota is above its ceiling.
    pub ceilings: Quotas,
    /// Policy that states which destinations the tenant's callbacks may reach.
    pub egress: Egress,
    /// True if the tenant's runs contain the first bytes of the bodies of responses. The tenant's admins may change
    /// this setting.
    pub excerpts: bool,
    /// Ids of all keys that ever encrypted a secret of the store, the oldest first. Only [`Tenant::OPERATOR`] uses this
    /// field.
    pub store_keys: Vec<KeyId>,
    /// Encrypted record which states whether every header of the store is bound to the origin of its target. `None` in a
    /// store of a build that did not bind headers. Only [`Tenant::OPERATOR`] uses this field.
    pub header_binding: Option<Secret>,
}

impl Tenant {
    /// Tenant that owns the keys of the operators. It has no schedules.
    pub const OPERATOR: TenantId = TenantId(0);

    /// Creates a tenant in its first version, without keys and quotas. Its callbacks may reach only public addresses.
    #[must_use]
    pub fn new(id: TenantId, name: &str, pollers: u16, secret: SigningSecret) -> Self {
        Tenant {
            id,
            name: name.to_owned(),
            version: 1,
            generations: vec![pollers],
            signing_secrets: vec![secret],
            keys: Vec::new(),
            quotas: Quotas::NONE,
            ceilings: Quotas::NONE,
            egress: Egress::default(),
            excerpts: false,
            store_keys: Vec::new(),
            header_binding: None,
        }
    }

    /// Returns the number of pollers that the tenant's quota of callbacks requires, or `unlimited` for a tenant without
    /// that quota.
    #[must_use]
    pub fn pollers_needed(&self, unlimited: u16) -> u16 {
        self.quotas.get(Quota::CallbacksPerMinute).map_or(unlimited, crate::quota::pollers)
    }

    /// Opens a new generation of pollers for future schedules if the newest generation has fewer pollers than the quota
    /// requires. Otherwise new schedules continue to use the newest generation. `unlimited` has the same meaning as in
    /// [`Tenant::pollers_needed`].
    pub fn grow_pollers(&mut self, unlimited: u16) {
        let needed = self.pollers_needed(unlimited);
        if self.generations.last().is_some_and(|present| *present < needed) {
            self.generations.push(needed);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SigningSecret {
    pub id: String,
    /// Secret of 24 to 64 bytes that signs callbacks.
    pub secret: Secret,
    pub created_at: Timestamp,
}

impl SigningSecret {
    /// Creates the first signing secret of a tenant.
    #[must_use]
    pub fn first(secret: Vec<u8>, created_at: Timestamp) -> Self {
        SigningSecret { id: "first".to_owned(), secret: secret.into(), created_at }
    }
}

/// Key of the HTTP API. Only the creator of the key ever receives its secret. The store contains only a hash of the
/// secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiKey {
    /// Id of the key: the part before the dot in `id.secret`.
    pub id: String,
    /// Name of the key for human readers. It may be empty.
    pub name: String,
    pub secret_sha256: [u8; 32],
    pub role: Role,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

impl ApiKey {
    /// Creates an admin key that has no name and never expires.
    #[must_use]
    pub fn admin(id: &str, secret_sha256: [u8; 32], created_at: Timestamp) -> Self {
        let (id, name) = (id.to_owned(), String::new());
        ApiKey { id, name, secret_sha256, role: Role::Admin, created_at, expires_at: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Role that may read the tenant's schedules and runs.
    Reader,
    /// Role that has the rights of a reader, and may also create and change schedules.
    Writer,
    /// Role that has the rights of a writer, and may also change the tenant's keys, secrets and quotas.
    Admin,
    /// Role that may create and change tenants, but may not use schedules.
    Operator,
}

/// Entry of the audit log. It states a change to a tenant and the actor of the change. It contains no secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// Version of the tenant after the change.
    pub version: u64,
    pub at: Timestamp,
    /// Id of the API key that requested the change, or the name of the command that made the change.
    pub actor: String,
    /// Action, such as `key.create`.
    pub action: String,
    /// Object of the change, for example the id of a key.
    pub subject: String,
}

impl Audit {
    /// Creates the entry for the change that led to the current version of `tenant`.
    #[must_use]
    pub fn of(tenant: &Tenant, at: Timestamp, actor: &str, action: &str, subject: &str) -> Self {
        let [actor, action, subject] = [actor, action, subject].map(str::to_owned);
        Audit { version: tenant.version, at, actor, action, subject }
    }
}

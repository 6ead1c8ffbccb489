//! Tenants: the registered users of the service, their keys, and the log of their changes.
//!
//! The bytes that a store keeps of them are those of the crate `stored`; their JSON in answers is that of `api`.

use crate::{Egress, KeyId, Quota, Quotas, Secret, TenantId, Timestamp};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// As [`crate::ScheduleId`]'s form.
    pub name: String,
    /// Counts the changes; 0 for one that was made before they were counted.
    pub version: u64,
    /// How many pollers each generation has, the oldest first; new schedules go to the last. Empty for
    /// [`Tenant::OPERATOR`] only.
    pub generations: Vec<u16>,
    /// What signs its callbacks, the newest first: one, or two while one takes over from the other.
    pub signing_secrets: Vec<SigningSecret>,
    pub keys: Vec<ApiKey>,
    /// What it may use; its admins change it.
    pub quotas: Quotas,
    /// How high they may set it; operators change that. No quota is above its ceiling.
    pub ceilings: Quotas,
    /// Where its callbacks may go.
    pub egress: Egress,
    /// The keys that ever sealed a secret of the store, the oldest first. Of [`Tenant::OPERATOR`] only.
    pub store_keys: Vec<KeyId>,
}

impl Tenant {
    /// Whose keys are those of the operators. It has no schedules.
    pub const OPERATOR: TenantId = TenantId(0);

    /// A tenant without keys and limits of its own, in its first version, that calls public addresses only.
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
            store_keys: Vec::new(),
        }
    }

    /// How many its quota asks for; `unlimited` is for a tenant without that quota.
    #[must_use]
    pub fn pollers_needed(&self, unlimited: u16) -> u16 {
        self.quotas.get(Quota::CallbacksPerMinute).map_or(unlimited, crate::quota::pollers)
    }

    /// Sees to it that it has as many pollers as its quota asks for: if not, a new generation, for the schedules that are
    /// made from now on. One that has more keeps them. `unlimited` as for
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
    /// 24 to 64 bytes.
    pub secret: Secret,
    pub created_at: Timestamp,
}

impl SigningSecret {
    /// The one that a tenant begins with.
    #[must_use]
    pub fn first(secret: Vec<u8>, created_at: Timestamp) -> Self {
        SigningSecret { id: "first".to_owned(), secret: secret.into(), created_at }
    }
}

/// A key of the HTTP API. The secret itself is shown once, to who made it, and is not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiKey {
    /// The part before the dot in `id.secret`.
    pub id: String,
    /// What a person calls it; may be empty.
    pub name: String,
    pub secret_sha256: [u8; 32],
    pub role: Role,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

impl ApiKey {
    /// An admin's, without a name and for ever.
    #[must_use]
    pub fn admin(id: &str, secret_sha256: [u8; 32], created_at: Timestamp) -> Self {
        let (id, name) = (id.to_owned(), String::new());
        ApiKey { id, name, secret_sha256, role: Role::Admin, created_at, expires_at: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Reads the tenant's schedules and runs.
    Reader,
    /// Makes and changes them, too.
    Writer,
    /// Changes the tenant's keys, secrets and quotas, too.
    Admin,
    /// Makes and changes tenants; has no schedules.
    Operator,
}

/// Who made a tenant's version, and what is different in it. Nothing of a secret is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// The tenant's version that the change made.
    pub version: u64,
    pub at: Timestamp,
    /// The id of the key that asked for it, or the command that made it.
    pub actor: String,
    /// As `key.create`.
    pub action: String,
    /// What it was about, as a key's id.
    pub subject: String,
}

impl Audit {
    /// What made `tenant` what it is now.
    #[must_use]
    pub fn of(tenant: &Tenant, at: Timestamp, actor: &str, action: &str, subject: &str) -> Self {
        let [actor, action, subject] = [actor, action, subject].map(str::to_owned);
        Audit { version: tenant.version, at, actor, action, subject }
    }
}

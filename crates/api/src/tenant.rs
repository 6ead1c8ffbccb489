//! Tenants, their keys and signing secrets, and the log of what was changed about them.

use serde::{Deserialize, Serialize};

use crate::Time;

/// What a key may do; each may do what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads schedules and runs.
    Reader,
    /// Makes and changes schedules.
    Writer,
    /// Changes the tenant's keys and secrets.
    Admin,
    /// Makes tenants. Of the tenant `operator` only, which has no schedules.
    Operator,
}

/// The body of `POST /v1/tenants`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// `[A-Za-z0-9_-]{1,128}`.
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tenant {
    pub name: String,
    /// Counts its changes.
    pub version: u64,
    /// How many keys it has.
    pub keys: usize,
}

/// The answer of `POST /v1/tenants`. What is secret in it is told once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TenantMade {
    pub tenant: Tenant,
    /// An admin's.
    pub key: KeyMade,
    pub signing_secret: SigningSecretMade,
}

/// The answer of `GET /v1/tenants`, by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TenantList {
    pub tenants: Vec<Tenant>,
}

/// The body of `POST /v1/tenants/{tenant}/keys`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    pub role: Role,
    /// What a person calls it; at most 128 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The part of the key before its dot.
    pub id: String,
    pub name: String,
    pub role: Role,
    pub created_at: Time,
    pub expires_at: Option<Time>,
}

/// A key with what goes after `Bearer`, which is told once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyMade {
    #[serde(flatten)]
    pub key: Key,
    pub secret: String,
}

/// The answer of `GET /v1/tenants/{tenant}/keys`, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyList {
    pub keys: Vec<Key>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SigningSecret {
    pub id: String,
    pub created_at: Time,
}

/// With the secret as receivers need it (`whsec_…`, Standard Webhooks), which is told once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SigningSecretMade {
    #[serde(flatten)]
    pub signing_secret: SigningSecret,
    pub secret: String,
}

/// The answer of `GET /v1/tenants/{tenant}/signing-secrets`, the newest first. Callbacks are signed with each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SigningSecretList {
    pub signing_secrets: Vec<SigningSecret>,
}

/// The answer of `GET /v1/tenants/{tenant}/audit`, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    /// Asks for the next page; `null` on the last one.
    pub next_page_token: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The tenant's version that the change made.
    pub version: u64,
    pub at: Time,
    /// The id of the key that asked for it, or a command.
    pub actor: String,
    /// `tenant.create`, `key.create`, `key.revoke`, `signing_secret.create`, `signing_secret.delete`, …
    pub action: String,
    /// What it was about: a key's id, say.
    pub subject: String,
}

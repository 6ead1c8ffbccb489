//! Tenants, their keys and signing secrets, and the log of what was changed about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Secret, Time};

/// What is limited for each tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// Attempts, retries among them; those above it are made late, and none is dropped.
    CallbacksPerMinute,
    /// Schedules made in a second.
    CreatesPerSecond,
    /// Schedules that have an occurrence to come.
    PendingMax,
    /// A payload's bytes.
    PayloadBytesMax,
    /// How many days ahead `at` may be, and the longest `every`.
    HorizonDays,
    /// Attempts in flight, over all targets.
    InFlightMax,
    /// Attempts in flight to one scheme, host and port.
    InFlightPerTargetMax,
    /// Attempts to one scheme, host and port in a second.
    CallbacksPerSecondPerTarget,
}

impl Quota {
    /// Each of them.
    pub const ALL: [Quota; 8] = [
        Quota::CallbacksPerMinute,
        Quota::CreatesPerSecond,
        Quota::PendingMax,
        Quota::PayloadBytesMax,
        Quota::HorizonDays,
        Quota::InFlightMax,
        Quota::InFlightPerTargetMax,
        Quota::CallbacksPerSecondPerTarget,
    ];
}

/// A number for each quota, inclusive; `None`: as much as the service takes from anybody.
///
/// In a request, what is not there stays as it is.
pub type Quotas = BTreeMap<Quota, Option<u32>>;

/// The answer of `GET` and `PATCH /v1/quotas`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaSheet {
    pub quotas: Quotas,
    /// How high the tenant's admins may set them.
    pub ceilings: Quotas,
}

/// The body of `PATCH /v1/tenants/{tenant}`, merged into what is there (RFC 7396): what is not in it stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantPatch {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: Quotas,
    /// A quota that is above its new ceiling is lowered to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: Quotas,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

/// What a key may do; each may do what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// `[A-Za-z0-9_-]{1,128}`.
    pub name: String,
    /// What is not there is as the service is set up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: Quotas,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: Quotas,
    #[serde(default)]
    pub egress: Egress,
}

/// Where a tenant's callbacks may go beside public addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// `loopback`, `private`, `link_local`, `shared`.
    pub allow: Vec<String>,
    /// As `10.1.0.0/16`; at most 32.
    pub allow_networks: Vec<String>,
    /// Only `https` is called.
    pub forbid_http: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tenant {
    pub name: String,
    /// Counts its changes.
    pub version: u64,
    /// How many keys it has.
    pub keys: usize,
    pub quotas: Quotas,
    /// How high the tenant's admins may set them.
    pub ceilings: Quotas,
    pub egress: Egress,
}

/// The answer of `POST /v1/tenants`. What is secret in it is told once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TenantMade {
    pub tenant: Tenant,
    /// An admin's.
    pub key: KeyMade,
    pub signing_secret: SigningSecretMade,
}

/// The answer of `GET /v1/tenants`, by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TenantList {
    pub tenants: Vec<Tenant>,
}

/// The body of `POST /v1/tenants/{tenant}/keys`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyMade {
    #[serde(flatten)]
    pub key: Key,
    pub secret: Secret,
}

/// The answer of `GET /v1/tenants/{tenant}/keys`, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyList {
    pub keys: Vec<Key>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SigningSecret {
    pub id: String,
    pub created_at: Time,
}

/// With the secret as receivers need it (`whsec_…`, Standard Webhooks), which is told once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SigningSecretMade {
    #[serde(flatten)]
    pub signing_secret: SigningSecret,
    pub secret: Secret,
}

/// The answer of `GET /v1/tenants/{tenant}/signing-secrets`, the newest first. Callbacks are signed with each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SigningSecretList {
    pub signing_secrets: Vec<SigningSecret>,
}

/// The answer of `GET /v1/tenants/{tenant}/audit`, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    /// Asks for the next page; `null` on the last one.
    pub next_page_token: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEntry {
    /// The tenant's version that the change made.
    pub version: u64,
    pub at: Time,
    /// The id of the key that asked for it, or a command.
    pub actor: String,
    /// `tenant.create`, `tenant.update`, `key.create`, `key.revoke`, `signing_secret.create`, `signing_secret.delete`, …
    pub action: String,
    /// What it was about: a key's id, say.
    pub subject: String,
}

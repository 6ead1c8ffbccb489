//! Tenants, their keys and signing secrets, and the audit log of their changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Secret, Time};

/// Limits of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub enum Quota {
    /// Attempts per minute, including retries. The server delays attempts above the limit and drops none.
    CallbacksPerMinute,
    /// Schedules created per second.
    CreatesPerSecond,
    /// Schedules that have a future occurrence.
    PendingMax,
    /// Number of bytes of a payload.
    PayloadBytesMax,
    /// Largest number of days from now to `at`; also the longest `every`, in days.
    HorizonDays,
    /// Attempts in flight to all targets together.
    InFlightMax,
    /// Attempts in flight to one scheme, host and port.
    InFlightPerTargetMax,
    /// Attempts per second to one scheme, host and port.
    CallbacksPerSecondPerTarget,
    /// Size of the schedules and of the retained runs in MiB.
    StoredMibMax,
    /// Attempts in flight to all HTTP targets together.
    HttpInFlightMax,
    /// Attempts per second to all HTTP targets together.
    HttpCallbacksPerSecond,
    /// Attempts in flight to all topics of the message bus together.
    BusInFlightMax,
    /// Attempts per second to all topics of the message bus together.
    BusCallbacksPerSecond,
    /// Days for which the service retains finished runs, and ended or cancelled schedules: 1, 7, 30 or 90.
    RetentionDays,
}

impl Quota {
    /// All quotas.
    pub const ALL: [Quota; 14] = [
        Quota::CallbacksPerMinute,
        Quota::CreatesPerSecond,
        Quota::PendingMax,
        Quota::PayloadBytesMax,
        Quota::HorizonDays,
        Quota::InFlightMax,
        Quota::InFlightPerTargetMax,
        Quota::CallbacksPerSecondPerTarget,
        Quota::StoredMibMax,
        Quota::HttpInFlightMax,
        Quota::HttpCallbacksPerSecond,
        Quota::BusInFlightMax,
        Quota::BusCallbacksPerSecond,
        Quota::RetentionDays,
    ];
}

/// Inclusive limit of each quota. `None` means that only the limits of the whole service apply.
///
/// A quota that is missing from a PATCH request keeps its value.
pub type Quotas = BTreeMap<Quota, Option<u32>>;

/// Reads the quotas of a response. Ignores quotas that only a later version of the server knows.
fn known_quotas<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Quotas, D::Error> {
    let quotas = BTreeMap::<String, Option<u32>>::deserialize(deserializer)?;
    let known = |(name, number)| Some((serde_json::from_value(serde_json::Value::String(name)).ok()?, number));
    Ok(quotas.into_iter().filter_map(known).collect())
}

/// Response of `GET` and `PATCH /v1/quotas`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct QuotaSheet {
    /// Current quotas.
    #[serde(deserialize_with = "known_quotas")]
    pub quotas: Quotas,
    /// Highest quotas that the tenant's admins may set.
    #[serde(deserialize_with = "known_quotas")]
    pub ceilings: Quotas,
    /// Data that the service stores for the tenant.
    #[serde(default)]
    pub usage: Usage,
}

/// Data that the service stores for a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Usage {
    /// Number of active schedules. The quota `pending_max` limits this number.
    pub active: u64,
    /// Number of ended schedules that the service still retains.
    pub ended: u64,
    /// Number of cancelled schedules that the service still retains.
    pub cancelled: u64,
    /// Size of all schedules and retained runs in bytes. The quota `stored_mib_max` limits this number.
    pub stored_bytes: u64,
}

/// Body of `PATCH /v1/tenants/{tenant}`. The server merges it into the tenant's settings (RFC 7396). Missing settings
/// keep their values.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantPatch {
    /// New quotas, each at most its ceiling. A missing quota keeps its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: Quotas,
    /// New ceilings. The server lowers a quota that is above its new ceiling to that ceiling.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: Quotas,
    /// Changes of the egress policy. A missing field keeps its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPatch>,
    /// True to record the first 1,024 bytes of the body of each response in the tenant's runs; false or `null` to
    /// record no further bodies. The tenant's admins may set this field; only operators may set the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpts: Option<bool>,
}

/// Permissions of a key. Each role includes the permissions of the roles before it in this list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub enum Role {
    /// Reads schedules and their runs.
    Reader,
    /// Creates and changes schedules.
    Writer,
    /// Changes the tenant's keys and secrets.
    Admin,
    /// Creates tenants. Only keys of the tenant `operator`, which has no schedules, have this role.
    Operator,
}

/// Body of `POST /v1/tenants`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// Name: `[A-Za-z0-9_-]{1,128}`.
    pub name: String,
    /// Quotas of the new tenant. A missing quota gets the service's default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: Quotas,
    /// Highest quotas that the tenant's admins may set. A missing ceiling gets the service's default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: Quotas,
    /// Egress policy. By default, callbacks reach public addresses only.
    #[serde(default)]
    pub egress: Egress,
}

/// Destinations that a tenant's callbacks may reach in addition to public addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Address classes: `loopback`, `private`, `link_local`, `shared`.
    pub allow: Vec<String>,
    /// Networks that callbacks may reach, such as `10.1.0.0/16`; at most 32.
    pub allow_networks: Vec<String>,
    /// Topics of the server's message bus that callbacks may reach; at most 32. An entry is the name of a topic, or the
    /// beginning of names with `*` at the end, such as `orders-*`. Topics that belong to the bus or to a consumer group are
    /// always forbidden.
    pub allow_topics: Vec<String>,
    /// Restricts callbacks to `https`.
    pub forbid_http: bool,
}

/// Changes of a tenant's [`Egress`] policy. A field that is `None` keeps its value.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct EgressPatch {
    /// New list of address classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// New list of networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_networks: Option<Vec<String>>,
    /// New list of topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_topics: Option<Vec<String>>,
    /// True to restrict callbacks to `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forbid_http: Option<bool>,
}

/// Replaces the whole policy.
impl From<Egress> for EgressPatch {
    fn from(egress: Egress) -> Self {
        let Egress { allow, allow_networks, forbid_http, allow_topics } = egress;
        EgressPatch {
            allow: Some(allow),
            allow_networks: Some(allow_networks),
            forbid_http: Some(forbid_http),
            allow_topics: Some(allow_topics),
        }
    }
}

/// Tenant with its settings, without its keys and secrets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Tenant {
    /// Name of the tenant.
    pub name: String,
    /// Number of changes to the tenant.
    pub version: u64,
    /// Number of the tenant's keys.
    pub keys: usize,
    /// Current quotas.
    #[serde(deserialize_with = "known_quotas")]
    pub quotas: Quotas,
    /// Highest quotas that the tenant's admins may set.
    #[serde(deserialize_with = "known_quotas")]
    pub ceilings: Quotas,
    /// Egress policy.
    pub egress: Egress,
    /// True if the tenant's runs contain excerpts of the bodies of responses.
    #[serde(default)]
    pub excerpts: bool,
    /// Data that the service stores for the tenant.
    #[serde(default)]
    pub usage: Usage,
}

/// Response of `POST /v1/tenants`. No other response contains the key's secret or the signing secret's value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct TenantCreated {
    /// New tenant.
    pub tenant: Tenant,
    /// Key with the role `admin`.
    pub key: KeyCreated,
    /// First signing secret of the tenant, with its value.
    pub signing_secret: SigningSecretCreated,
}

/// Response of `GET /v1/tenants`, sorted by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct TenantList {
    /// All tenants.
    pub tenants: Vec<Tenant>,
}

/// Body of `POST /v1/tenants/{tenant}/keys`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// Role of the key. Keys of the tenant `operator` have the role `operator`, and no other key can have it.
    pub role: Role,
    /// Human-readable name of the key; at most 128 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// First instant at which the key is no longer valid. The instant must be in the future. A key without this field
    /// never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// Key of a tenant, without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Key {
    /// Id of the key: the text before the dot in the key's secret.
    pub id: String,
    /// Human-readable name of the key; empty if the request contained no name.
    pub name: String,
    /// Role of the key.
    pub role: Role,
    /// Instant of the key's creation.
    pub created_at: Time,
    /// First instant at which the key is no longer valid; `null` if the key never expires.
    pub expires_at: Option<Time>,
}

/// New key with its secret, which clients send after `Bearer`. No other response contains the secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct KeyCreated {
    /// Key without its secret.
    #[serde(flatten)]
    pub key: Key,
    /// Text that the client sends after `Bearer`: the key's id, a dot and the secret part.
    pub secret: Secret,
}

/// Response of `GET /v1/tenants/{tenant}/keys`, oldest key first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct KeyList {
    /// All keys of the tenant.
    pub keys: Vec<Key>,
}

/// Signing secret of a tenant, without its value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct SigningSecret {
    /// Id of the signing secret. The id is not part of the secret's value.
    pub id: String,
    /// Instant of the signing secret's creation.
    pub created_at: Time,
}

/// New signing secret with the text that receivers need (`whsec_…`, Standard Webhooks). No other response contains it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct SigningSecretCreated {
    /// Signing secret without its value.
    #[serde(flatten)]
    pub signing_secret: SigningSecret,
    /// Value of the signing secret: `whsec_` followed by base64.
    pub secret: Secret,
}

/// Response of `GET /v1/tenants/{tenant}/signing-secrets`, newest secret first. The server signs each callback with
/// every secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct SigningSecretList {
    /// Signing secrets of the tenant: one or two.
    pub signing_secrets: Vec<SigningSecret>,
}

/// Response of `GET /v1/tenants/{tenant}/audit`, oldest entry first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct AuditPage {
    /// Entries of this page, at most `limit`.
    pub entries: Vec<AuditEntry>,
    /// Token of the next page; `null` on the last page.
    pub next_page_token: Option<String>,
}

/// Change of a tenant, with the instant of the change and the key that authenticated the change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct AuditEntry {
    /// Version of the tenant after the change.
    pub version: u64,
    /// Instant of the change.
    pub at: Time,
    /// Id of the key that authenticated the change, or the name of the command that made the change.
    pub actor: String,
    /// `tenant.create`, `tenant.update`, `key.create`, `key.revoke`, `signing_secret.create`, `signing_secret.delete`, …
    pub action: String,
    /// Object of the change, such as a key's id.
    pub subject: String,
}

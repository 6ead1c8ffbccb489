//! Encoding of tenants and of the entries of their audit logs, as JSON.

use std::collections::BTreeMap;

use domain::{
    ApiKey, Audit, Egress, KeyId, Quota, Quotas, Role, Secret, SigningSecret, Tenant, TenantId, Timestamp, TopicPattern,
};
use serde::{Deserialize, Serialize};

use crate::{Malformed, Take};

/// First byte of the binary form of a tenant, which builds without tenant versions wrote. Later builds write JSON,
/// which never starts with this byte.
pub const FIRST_VERSION: u8 = 1;
const FIRST_KEY_LEN_MIN: usize = 4 + 32 + 1;

/// Stored form of a [`Tenant`] without its id, as JSON. A later build may add fields, but never removes or changes one.
#[derive(Serialize, Deserialize)]
struct Stored {
    name: String,
    version: u64,
    generations: Vec<u16>,
    signing_secrets: Vec<StoredSecret>,
    keys: Vec<StoredKey>,
    /// Quotas by name. The map has no entry for a quota without a value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    quotas: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ceilings: BTreeMap<String, u32>,
    /// Egress policy. Builds without egress policies wrote rows without this field. If a tenant's row does not have the
    /// field, the tenant's callbacks may call only public addresses.
    #[serde(default, skip_serializing_if = "StoredEgress::is_default")]
    egress: StoredEgress,
    /// Builds without excerpts ignore this field, and remove it if they change the tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    excerpts: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    store_keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_base64")]
    header_binding: Option<Vec<u8>>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct StoredEgress {
    allow: Vec<String>,
    allow_networks: Vec<String>,
    forbid_http: bool,
    /// Topic patterns. Builds without bus targets ignore this field, and remove it if they change the tenant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_topics: Vec<String>,
}

impl StoredEgress {
    fn of(egress: &Egress) -> Self {
        StoredEgress {
            allow: egress.allow.iter().map(|class| class.name().to_owned()).collect(),
            allow_networks: egress.allow_networks.iter().map(ToString::to_string).collect(),
            forbid_http: egress.forbid_http,
            allow_topics: egress.allow_topics.iter().map(ToString::to_string).collect(),
        }
    }

    fn is_default(&self) -> bool {
        self.allow.is_empty() && self.allow_networks.is_empty() && !self.forbid_http && self.allow_topics.is_empty()
    }

    /// Returns the egress policy, or `None` if the row contains an address class, a network or a topic pattern that this build
    /// cannot parse. A policy without this entry would differ from the stored policy.
    fn take(&self) -> Option<Egress> {
        Some(Egress {
            allow: self.allow.iter().map(|class| class.parse().ok()).collect::<Option<_>>()?,
            allow_networks: self.allow_networks.iter().map(|network| network.parse().ok()).collect::<Option<_>>()?,
            forbid_http: self.forbid_http,
            allow_topics: self
                .allow_topics
                .iter()
                .map(|text| TopicPattern::from_stored(text))
                .collect::<Option<_>>()?,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct StoredSecret {
    id: String,
    #[serde(flatten)]
    secret: StoredValue,
    #[serde(with = "millis")]
    created_at: Timestamp,
}

#[derive(Serialize, Deserialize)]
enum StoredValue {
    /// Secret in plaintext. A member that does not encrypt secrets wrote it.
    #[serde(rename = "secret", with = "base64_bytes")]
    Plain(Vec<u8>),
    #[serde(rename = "sealed", with = "base64_bytes")]
    Encrypted(Vec<u8>),
}

impl StoredValue {
    fn of(secret: &Secret) -> Self {
        match secret {
            Secret::Plain(bytes) => StoredValue::Plain(bytes.to_vec()),
            Secret::Encrypted(bytes) => StoredValue::Encrypted(bytes.to_vec()),
        }
    }

    fn take(self) -> Secret {
        match self {
            StoredValue::Plain(bytes) => Secret::Plain(bytes.into()),
            StoredValue::Encrypted(bytes) => Secret::Encrypted(bytes.into()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    id: String,
    name: String,
    #[serde(with = "base64_bytes")]
    secret_sha256: Vec<u8>,
    role: StoredRole,
    #[serde(with = "millis")]
    created_at: Timestamp,
    expires_at: Option<i64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredRole {
    Reader,
    Writer,
    Admin,
    Operator,
}

impl StoredRole {
    fn of(role: Role) -> Self {
        match role {
            Role::Reader => StoredRole::Reader,
            Role::Writer => StoredRole::Writer,
            Role::Admin => StoredRole::Admin,
            Role::Operator => StoredRole::Operator,
        }
    }

    fn take(self) -> Role {
        match self {
            StoredRole::Reader => Role::Reader,
            StoredRole::Writer => Role::Writer,
            StoredRole::Admin => Role::Admin,
            StoredRole::Operator => Role::Operator,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredAudit {
    version: u64,
    #[serde(with = "millis")]
    at: Timestamp,
    actor: String,
    action: String,
    subject: String,
}

/// Returns the encoded tenant without its id.
#[must_use]
pub fn encode(tenant: &Tenant) -> Vec<u8> {
    let secret = |it: &SigningSecret| StoredSecret {
        id: it.id.clone(),
        secret: StoredValue::of(&it.secret),
        created_at: it.created_at,
    };
    let key = |it: &ApiKey| StoredKey {
        id: it.id.clone(),
        name: it.name.clone(),
        secret_sha256: it.secret_sha256.to_vec(),
        role: StoredRole::of(it.role),
        created_at: it.created_at,
        expires_at: it.expires_at.map(Timestamp::as_millis),
    };
    let stored = Stored {
        name: tenant.name.clone(),
        version: tenant.version,
        generations: tenant.generations.clone(),
        signing_secrets: tenant.signing_secrets.iter().map(secret).collect(),
        keys: tenant.keys.iter().map(key).collect(),
        quotas: numbers(&tenant.quotas),
        ceilings: numbers(&tenant.ceilings),
        egress: StoredEgress::of(&tenant.egress),
        excerpts: tenant.excerpts,
        store_keys: tenant.store_keys.iter().map(ToString::to_string).collect(),
        header_binding: tenant.header_binding.as_ref().map(header_binding),
    };
    serde_json::to_vec(&stored).expect("serialization of text, numbers and lists to JSON never fails")
}

fn header_binding(secret: &Secret) -> Vec<u8> {
    match secret {
        Secret::Encrypted(bytes) => bytes.to_vec(),
        Secret::Plain(_) => panic!("the record of the header binding is encrypted"),
    }
}

/// Decodes the tenant that [`encode`] encoded. `id` is the tenant's id.
///
/// # Errors
/// Returns an error if `stored` is not a tenant. The error text names the fault and contains no part of a secret.
pub fn decode(id: TenantId, stored: &[u8]) -> Result<Tenant, String> {
    // The parser's error text may quote a secret, so the error of `decode` contains only the position of the fault.
    let malformed =
        |error: serde_json::Error| format!("tenant {}: the row is malformed at byte {}", id.0, error.column());
    let stored: Stored = serde_json::from_slice(stored).map_err(malformed)?;
    let key = |it: StoredKey| {
        let secret_sha256 = it
            .secret_sha256
            .try_into()
            .map_err(|_| format!("tenant {}: an API key has a malformed secret hash", id.0))?;
        let StoredKey { id, name, role, created_at, .. } = it;
        let expires_at = it.expires_at.map(Timestamp::from_millis);
        Ok(ApiKey { id, name, secret_sha256, role: role.take(), created_at, expires_at })
    };
    let store_keys = stored.store_keys.iter().map(|id| KeyId::parse(id)).collect::<Option<_>>();
    let secret = |it: StoredSecret| SigningSecret { id: it.id, secret: it.secret.take(), created_at: it.created_at };
    Ok(Tenant {
        id,
        name: stored.name,
        version: stored.version,
        generations: stored.generations,
        signing_secrets: stored.signing_secrets.into_iter().map(secret).collect(),
        keys: stored.keys.into_iter().map(key).collect::<Result<_, String>>()?,
        quotas: quotas(&stored.quotas),
        ceilings: quotas(&stored.ceilings),
        egress: stored.egress.take().ok_or_else(|| {
            let faults = "an unknown address class, a malformed network or a malformed topic pattern";
            format!("tenant {}: the egress policy has {faults}", id.0)
        })?,
        excerpts: stored.excerpts,
        store_keys: store_keys.ok_or_else(|| format!("tenant {}: a store key has a malformed id", id.0))?,
        header_binding: stored.header_binding.map(|bytes| Secret::Encrypted(bytes.into())),
    })
}

/// Decodes the binary form of a tenant, which builds without tenant versions wrote. The caller has already taken the
/// first byte, [`FIRST_VERSION`], from `take`.
///
/// # Errors
/// Returns an error if the bytes are not the binary form of a tenant.
pub fn take_first(id: TenantId, mut take: Take<'_>) -> Result<Tenant, Malformed> {
    let name = take.text()?.to_owned();
    let count = take.count(2)?;
    let mut generations = Vec::with_capacity(count);
    for _ in 0..count {
        generations.push(take.u16()?);
    }
    let secret = SigningSecret::first(take.blob()?.to_vec(), Timestamp::MIN);
    let count = take.count(FIRST_KEY_LEN_MIN)?;
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let id = take.text()?.to_owned();
        let secret_sha256 = take.array()?;
        take.version(0)?; // This byte is the key's role. Builds without tenant versions wrote only the role admin.
        keys.push(ApiKey::admin(&id, secret_sha256, Timestamp::MIN));
    }
    take.end()?;
    Ok(Tenant { version: 0, generations, keys, ..Tenant::new(id, &name, 0, secret) })
}

fn numbers(quotas: &Quotas) -> BTreeMap<String, u32> {
    quotas.iter().filter_map(|(quota, number)| Some((quota.name().to_owned(), number?))).collect()
}

fn quotas(numbers: &BTreeMap<String, u32>) -> Quotas {
    let mut quotas = Quotas::NONE;
    for quota in Quota::ALL {
        quotas.set(quota, numbers.get(quota.name()).copied());
    }
    quotas
}

/// Returns the encoded entry of an audit log.
#[must_use]
pub fn encode_audit(entry: &Audit) -> Vec<u8> {
    let Audit { version, at, actor, action, subject } = entry.clone();
    serde_json::to_vec(&StoredAudit { version, at, actor, action, subject })
        .expect("serialization of text and numbers to JSON never fails")
}

/// Decodes the audit entry that [`encode_audit`] encoded.
///
/// # Errors
/// Returns an error if `stored` is not an audit entry. The error text names the fault.
pub fn decode_audit(stored: &[u8]) -> Result<Audit, String> {
    let stored = serde_json::from_slice(stored).map_err(|error| format!("malformed audit entry: {error}"))?;
    let StoredAudit { version, at, actor, action, subject } = stored;
    Ok(Audit { version, at, actor, action, subject })
}

mod millis {
    use domain::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(at.as_millis())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        Ok(Timestamp::from_millis(i64::deserialize(from)?))
    }
}

mod base64_bytes {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map_err(|_| D::Error::custom("not base64"))
    }
}

mod optional_base64 {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Bytes(#[serde(with = "super::base64_bytes")] Vec<u8>);

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => super::base64_bytes::serialize(bytes, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Bytes>::deserialize(from)?.map(|Bytes(bytes)| bytes))
    }
}

#[cfg(test)]
mod tests;

//! Who may use the service, as the store keeps it.

use std::collections::BTreeMap;

use domain::{Egress, Quota, Quotas, Secret, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::seal::KeyId;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// As [`domain::ScheduleId`]'s form.
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
        self.quotas.get(Quota::CallbacksPerMinute).map_or(unlimited, domain::quota::pollers)
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// Bytes that must not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// Who made a tenant's version, and what is different in it. Nothing of a secret is in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Audit {
    /// The tenant's version that the change made.
    pub version: u64,
    #[serde(with = "millis")]
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

/// What a caller owes [`crate::Store::put_tenant`]; engines look.
///
/// # Panics
/// If the caller broke that.
pub fn check_put(tenant: &Tenant, entry: &Audit) {
    let is_operators = tenant.id == Tenant::OPERATOR;
    assert_eq!(tenant.generations.is_empty(), is_operators, "a tenant has pollers, and the operators have none");
    assert_eq!(tenant.version, entry.version, "a change is told with its version");
    assert!(is_operators || tenant.store_keys.is_empty(), "the store's keys are the operators'");
    assert_eq!(tenant.quotas.first_above(&tenant.ceilings), None, "no quota is above its ceiling");
}

/// The stored form of a [`Tenant`], all but its id: JSON, whose fields are only ever added.
#[derive(Serialize, Deserialize)]
struct Stored {
    name: String,
    version: u64,
    generations: Vec<u16>,
    signing_secrets: Vec<StoredSecret>,
    keys: Vec<StoredKey>,
    /// By name; what has no number is not there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    quotas: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ceilings: BTreeMap<String, u32>,
    /// Not there in rows of builds that knew no policies: such a tenant calls public addresses only.
    #[serde(default, skip_serializing_if = "StoredEgress::is_default")]
    egress: StoredEgress,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    store_keys: Vec<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct StoredEgress {
    allow: Vec<String>,
    allow_networks: Vec<String>,
    forbid_http: bool,
}

impl StoredEgress {
    fn of(egress: &Egress) -> Self {
        StoredEgress {
            allow: egress.allow.iter().map(|class| class.name().to_owned()).collect(),
            allow_networks: egress.allow_networks.iter().map(ToString::to_string).collect(),
            forbid_http: egress.forbid_http,
        }
    }

    fn is_default(&self) -> bool {
        self.allow.is_empty() && self.allow_networks.is_empty() && !self.forbid_http
    }

    /// `None` if it names what this build does not know: what was meant must not be guessed.
    fn take(&self) -> Option<Egress> {
        Some(Egress {
            allow: self.allow.iter().map(|class| class.parse().ok()).collect::<Option<_>>()?,
            allow_networks: self.allow_networks.iter().map(|network| network.parse().ok()).collect::<Option<_>>()?,
            forbid_http: self.forbid_http,
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
    /// Of builds that did not seal.
    #[serde(rename = "secret", with = "base64_bytes")]
    Plain(Vec<u8>),
    #[serde(rename = "sealed", with = "base64_bytes")]
    Sealed(Vec<u8>),
}

impl StoredValue {
    fn of(secret: &Secret) -> Self {
        match secret {
            Secret::Plain(bytes) => StoredValue::Plain(bytes.to_vec()),
            Secret::Sealed(bytes) => StoredValue::Sealed(bytes.to_vec()),
        }
    }

    fn take(self) -> Secret {
        match self {
            StoredValue::Plain(bytes) => Secret::Plain(bytes.into()),
            StoredValue::Sealed(bytes) => Secret::Sealed(bytes.into()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    id: String,
    name: String,
    #[serde(with = "base64_bytes")]
    secret_sha256: Vec<u8>,
    role: Role,
    #[serde(with = "millis")]
    created_at: Timestamp,
    expires_at: Option<i64>,
}

/// For engines: what they keep of a tenant.
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
        role: it.role,
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
        store_keys: tenant.store_keys.iter().map(ToString::to_string).collect(),
    };
    serde_json::to_vec(&stored).expect("text, numbers and lists are always JSON")
}

/// For engines: what [`encode`] made of the tenant `id`.
///
/// # Errors
/// What is wrong with it. Nothing of a secret is in the text.
pub fn decode(id: TenantId, stored: &[u8]) -> Result<Tenant, String> {
    // The parser's own text may quote what it found.
    let malformed = |error: serde_json::Error| format!("tenant {}: at byte {} of its row", id.0, error.column());
    let stored: Stored = serde_json::from_slice(stored).map_err(malformed)?;
    let key = |it: StoredKey| {
        let secret_sha256 = it.secret_sha256.try_into().map_err(|_| format!("tenant {}: a key's hash", id.0))?;
        let StoredKey { id, name, role, created_at, .. } = it;
        let expires_at = it.expires_at.map(Timestamp::from_millis);
        Ok(ApiKey { id, name, secret_sha256, role, created_at, expires_at })
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
        egress: stored.egress.take().ok_or_else(|| format!("tenant {}: its egress", id.0))?,
        store_keys: store_keys.ok_or_else(|| format!("tenant {}: its store keys", id.0))?,
    })
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

/// For engines: the stored form of an audit entry, JSON as well.
#[must_use]
pub fn encode_audit(entry: &Audit) -> Vec<u8> {
    serde_json::to_vec(entry).expect("text and numbers are always JSON")
}

/// For engines: what [`encode_audit`] made.
///
/// # Errors
/// What is wrong with it.
pub fn decode_audit(stored: &[u8]) -> Result<Audit, String> {
    serde_json::from_slice(stored).map_err(|error| format!("an audit entry: {error}"))
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

#[cfg(test)]
mod tests;

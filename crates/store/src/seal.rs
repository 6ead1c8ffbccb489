//! Sealing secrets under a key that is not in the store: who has the store's bytes, a backup, or the disk, has none of them.
//!
//! A sealed value is one byte for its form, the key's id (8 bytes), 24 random bytes, and AES-256-GCM's ciphertext and
//! tag. As in XAES-256-GCM (C2SP), the first half of the random bytes makes a key for this one value (here by HMAC-SHA256)
//! and the second is its nonce: so many values can be sealed under one key that nobody needs to count them. What a value
//! is, whose, and of what name goes into the tag: one that was put in another's place does not open.
//!
//! It does not say where keys come from; see `SealKey::parse` for how a file holds them. It hides neither how long a value
//! is nor that there is one.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::{KeyId, Schedule, ScheduleId, Secret, Target, Tenant, TenantId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use runtime::Runtime;

const FORM: u8 = 1;
const KEY_LEN: usize = 32;
const KEY_ID_LEN: usize = KeyId::LEN;
const SALT_LEN: usize = 12;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
const HEAD_LEN: usize = 1 + KEY_ID_LEN + SALT_LEN + NONCE_LEN;
const _: () = assert!(HEAD_LEN + TAG_LEN == Secret::SEALED_OVERHEAD, "limits count what a value holds");

/// Before a key in a file, so that those who look for leaked secrets know it.
const KEY_PREFIX: &str = "rvsk_";

/// Whose secret it is, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place<'a> {
    /// A header of a schedule's target; `name` in lower case.
    Header { tenant: TenantId, schedule: &'a ScheduleId, name: &'a str },
    /// What signs a tenant's callbacks.
    SigningSecret { tenant: TenantId, id: &'a str },
}

impl Place<'_> {
    /// No two places have the same bytes.
    fn bytes(&self) -> Vec<u8> {
        let (kind, tenant, texts) = match self {
            Place::Header { tenant, schedule, name } => (1, tenant, [schedule.as_str(), name]),
            Place::SigningSecret { tenant, id } => (2, tenant, [*id, ""]),
        };
        let mut bytes = Vec::with_capacity(64);
        bytes.push(kind);
        bytes.extend(tenant.0.to_be_bytes());
        for text in texts {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }
}

/// One key; the cipher's own are made from it, one for each value.
#[derive(Clone)]
pub struct SealKey {
    id: KeyId,
    root: hmac::Key,
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKey({})", self.id)
    }
}

/// A line of a key file is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a store's key is rvsk_ and the base64 of 32 bytes")]
pub struct NoKey;

impl SealKey {
    /// A new key, and the text that [`SealKey::parse`] reads.
    #[must_use]
    pub fn generate(runtime: &Runtime) -> (Self, String) {
        let bytes: [u8; KEY_LEN] = random(runtime);
        (SealKey::new(&bytes), format!("{KEY_PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// # Errors
    /// If `text` is no key.
    pub fn parse(text: &str) -> Result<Self, NoKey> {
        let bytes = STANDARD.decode(text.strip_prefix(KEY_PREFIX).ok_or(NoKey)?).map_err(|_| NoKey)?;
        Ok(SealKey::new(&bytes.try_into().map_err(|_| NoKey)?))
    }

    fn new(bytes: &[u8; KEY_LEN]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let digest = hmac::sign(&root, b"reveille key id");
        let id = digest.as_ref().first_chunk().expect("a SHA-256 is longer than an id");
        SealKey { id: KeyId(*id), root }
    }

    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The cipher for the values of this salt.
    fn cipher(&self, salt: &[u8; SALT_LEN]) -> LessSafeKey {
        let mut context = hmac::Context::with_key(&self.root);
        context.update(b"reveille sealed 1");
        context.update(salt);
        let key = UnboundKey::new(&AES_256_GCM, context.sign().as_ref()).expect("an HMAC-SHA256 is 32 bytes long");
        LessSafeKey::new(key)
    }
}

/// Why a secret is not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("it is sealed under the key {0}, which is not in this member's key file")]
    UnknownKey(KeyId),
    /// It is damaged, or was put where it does not belong.
    #[error("what is stored of it is not what was sealed here")]
    Forged,
}

/// Whether a value of its headers is not sealed.
#[must_use]
pub fn has_plain_header(schedule: &Schedule) -> bool {
    let Target::Http(http) = &schedule.spec.target;
    http.headers.iter().any(|(_, value)| !value.is_sealed())
}

/// Whether something that it signs with is not sealed.
#[must_use]
pub fn has_plain_secret(tenant: &Tenant) -> bool {
    tenant.signing_secrets.iter().any(|secret| !secret.secret.is_sealed())
}

/// The keys of a store: the first seals, each opens what it sealed.
#[derive(Clone, Debug, Default)]
pub struct Seal {
    keys: Vec<SealKey>,
}

impl Seal {
    /// One that opens only what is in plain: for whoever keeps no secrets.
    pub const NONE: Seal = Seal { keys: Vec::new() };

    /// # Panics
    /// If there is no key.
    #[must_use]
    pub fn new(keys: Vec<SealKey>) -> Self {
        assert!(!keys.is_empty(), "there is a key to seal with");
        Seal { keys }
    }

    /// The first is the one that seals.
    pub fn key_ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys.iter().map(SealKey::id)
    }

    /// `secret`, sealed; as it is if it was sealed before.
    ///
    /// # Panics
    /// If this is [`Seal::NONE`].
    #[must_use]
    pub fn seal(&self, runtime: &Runtime, place: Place<'_>, secret: &Secret) -> Secret {
        let Secret::Plain(plain) = secret else { return secret.clone() };
        let key = self.keys.first().expect("who keeps secrets has a key");
        let (salt, nonce) = (random(runtime), random(runtime));
        let mut sealed = Vec::with_capacity(plain.len() + Secret::SEALED_OVERHEAD);
        sealed.push(FORM);
        sealed.extend(key.id.0);
        sealed.extend(salt);
        sealed.extend(nonce);
        let mut text = plain.to_vec();
        let (nonce, place) = (Nonce::assume_unique_for_key(nonce), Aad::from(place.bytes()));
        let tag = key.cipher(&salt).seal_in_place_separate_tag(nonce, place, &mut text);
        let tag = tag.expect("no secret is longer than 64 GiB");
        sealed.extend(&text);
        sealed.extend(tag.as_ref());
        Secret::Sealed(sealed.into())
    }

    /// The values of a schedule's headers.
    pub fn seal_schedule(&self, runtime: &Runtime, schedule: &mut Arc<Schedule>) {
        if !has_plain_header(schedule) {
            return; // The most have none, and pay nothing.
        }
        let schedule = Arc::make_mut(schedule);
        let Target::Http(http) = &mut schedule.spec.target;
        for (name, value) in &mut http.headers {
            let place = Place::Header { tenant: schedule.tenant, schedule: &schedule.id, name };
            *value = self.seal(runtime, place, value);
        }
    }

    /// What a tenant signs with.
    pub fn seal_tenant(&self, runtime: &Runtime, tenant: &mut Tenant) {
        for secret in &mut tenant.signing_secrets {
            let place = Place::SigningSecret { tenant: tenant.id, id: &secret.id };
            secret.secret = self.seal(runtime, place, &secret.secret);
        }
    }

    /// What `secret` holds.
    ///
    /// # Errors
    /// If it is sealed, and its key is not here, or it is not of this place.
    pub fn open(&self, place: Place<'_>, secret: &Secret) -> Result<Bytes, OpenError> {
        let sealed = match secret {
            Secret::Plain(plain) => return Ok(plain.clone()),
            Secret::Sealed(sealed) => sealed,
        };
        let parts = sealed.split_first().and_then(|(form, rest)| {
            let (key, rest) = rest.split_first_chunk::<KEY_ID_LEN>()?;
            let (salt, rest) = rest.split_first_chunk::<SALT_LEN>()?;
            let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
            (*form == FORM).then_some((KeyId(*key), salt, *nonce, text))
        });
        let (id, salt, nonce, text) = parts.ok_or(OpenError::Forged)?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or(OpenError::UnknownKey(id))?;
        let mut text = text.to_vec();
        let (nonce, place) = (Nonce::assume_unique_for_key(nonce), Aad::from(place.bytes()));
        let opened = key.cipher(salt).open_in_place(nonce, place, &mut text).map_err(|_| OpenError::Forged)?;
        let len = opened.len();
        text.truncate(len);
        Ok(text.into())
    }
}

fn random<const LENGTH: usize>(runtime: &Runtime) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&runtime.random().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests;

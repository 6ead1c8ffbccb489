//! Encryption of secrets with a key that is not in the store. A person who can read the store, a backup or the disk
//! therefore learns no secret.
//!
//! An encrypted value consists of one byte that identifies its form, the key's id (8 bytes), 24 random bytes, and the
//! ciphertext and tag of AES-256-GCM. As in XAES-256-GCM (C2SP), this module derives a separate key for each value from
//! the master key and the first half of the random bytes. The derivation uses HMAC-SHA256. The second half of the
//! random bytes is the nonce. One master key can safely encrypt so many values that the module does not count them. The
//! authenticated data contains the kind and the name of the value, its tenant and, for a header, its schedule and the
//! origin of the schedule's target; for an excerpt of a response, its run and the number of its attempt. If an attacker
//! moves a value to another place, or changes the target to another origin, the decryption of the value therefore
//! fails.
//!
//! Earlier builds encrypted headers in a form without the origin. The module decrypts such a value only to encrypt it
//! again with the origin ([`Keyring::bind_schedule`]). A header with an origin is *bound*.
//!
//! The module does not define where operators store keys. `StoreKey::parse` parses a line of a key file. Encryption
//! does not hide the length or the existence of a value.
//!
//! docs/decisions/0033-encrypt-secrets-above-the-engines.md gives the reasons for the design.
//! docs/decisions/0211-bind-encrypted-headers-to-the-targets-origin.md gives the reasons for bound headers.
//! docs/decisions/0242-record-excerpts-of-responses.md gives the reasons for encrypted excerpts.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::occurrence::Run;
use domain::{KeyId, RunId, Schedule, ScheduleId, Secret, Tenant, TenantId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use runtime::Runtime;

/// Form of signing secrets, and of the headers that earlier builds encrypted without the origin.
const FORM_1: u8 = 1;
/// Form of bound headers, of the record of header binding, of the keys of authorities, and of excerpts.
const FORM_2: u8 = 2;
const KEY_LEN: usize = 32;
const KEY_ID_LEN: usize = KeyId::LEN;
const SALT_LEN: usize = 12;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
const HEAD_LEN: usize = 1 + KEY_ID_LEN + SALT_LEN + NONCE_LEN;
const _: () = assert!(
    HEAD_LEN + TAG_LEN == Secret::ENCRYPTION_OVERHEAD,
    "the size limits use the same encryption overhead as this module"
);

/// Prefix of a key in a key file. Secret scanners recognise a leaked key by this prefix.
const KEY_PREFIX: &str = "rvsk_";

/// Place of a secret: the tenant or schedule that it belongs to, and its name. The encryption authenticates the place
/// together with the ciphertext.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place<'a> {
    /// Header of a schedule's target. `name` is in lower case. `origin` is the target's [`domain::Target::origin`]. The
    /// callback connects to exactly this origin.
    Header { tenant: TenantId, schedule: &'a ScheduleId, name: &'a str, origin: &'a str },
    /// Secret that signs a tenant's callbacks.
    SigningSecret { tenant: TenantId, id: &'a str },
    /// Key of the cluster's certificate authority with this number.
    AuthorityKey { number: u32 },
    /// Record in the operator tenant that states whether every header of the store is bound.
    HeaderBinding,
    /// Excerpt of the response to an attempt.
    Excerpt { tenant: TenantId, run: &'a RunId, attempt: u16 },
}

impl Place<'_> {
    /// Returns the encoding of the place. Different places have different encodings.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Place::SigningSecret { tenant, id } => place_bytes(2, *tenant, &[id, ""]),
            Place::Header { tenant, schedule, name, origin } => {
                place_bytes(3, *tenant, &[schedule.as_str(), name, origin])
            }
            Place::HeaderBinding => place_bytes(4, Tenant::OPERATOR, &[]),
            Place::AuthorityKey { number } => place_bytes(5, Tenant::OPERATOR, &[&number.to_string()]),
            Place::Excerpt { tenant, run, attempt } => place_bytes(6, *tenant, &[run.as_str(), &attempt.to_string()]),
        }
    }

    fn form(&self) -> u8 {
        match self {
            Place::SigningSecret { .. } => FORM_1,
            Place::Header { .. } | Place::HeaderBinding | Place::AuthorityKey { .. } | Place::Excerpt { .. } => FORM_2,
        }
    }
}

/// Returns the place of a header in the form that earlier builds encrypted.
fn unbound_place(tenant: TenantId, schedule: &ScheduleId, name: &str) -> Vec<u8> {
    place_bytes(1, tenant, &[schedule.as_str(), name])
}

fn place_bytes(kind: u8, tenant: TenantId, texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.push(kind);
    bytes.extend(tenant.0.to_be_bytes());
    for text in texts {
        bytes.extend((text.len() as u64).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Master key of a store. The module derives a cipher key from it for each value.
#[derive(Clone)]
pub struct StoreKey {
    id: KeyId,
    root: hmac::Key,
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({})", self.id)
    }
}

/// Error that reports an invalid key in a line of a key file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid store key: expected rvsk_ followed by the base64 of 32 bytes")]
pub struct NoKey;

impl StoreKey {
    /// Returns a new key, and its text form, which [`StoreKey::parse`] reads.
    #[must_use]
    pub fn generate(runtime: &Runtime) -> (Self, String) {
        let bytes: [u8; KEY_LEN] = random(runtime);
        (StoreKey::new(&bytes), format!("{KEY_PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// # Errors
    /// Returns an error if `text` is not a key.
    pub fn parse(text: &str) -> Result<Self, NoKey> {
        let bytes = STANDARD.decode(text.strip_prefix(KEY_PREFIX).ok_or(NoKey)?).map_err(|_| NoKey)?;
        Ok(StoreKey::new(&bytes.try_into().map_err(|_| NoKey)?))
    }

    fn new(bytes: &[u8; KEY_LEN]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let digest = hmac::sign(&root, b"reveille key id");
        let id = digest.as_ref().first_chunk().expect("a SHA-256 digest has at least as many bytes as a key id");
        StoreKey { id: KeyId(*id), root }
    }

    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns the cipher for one value. The function derives the cipher's key from the master key, the value's form and
    /// the value's `salt`.
    fn cipher(&self, form: u8, salt: &[u8; SALT_LEN]) -> LessSafeKey {
        let mut context = hmac::Context::with_key(&self.root);
        context.update(match form {
            FORM_1 => b"reveille sealed 1",
            _ => b"reveille sealed 2",
        });
        context.update(salt);
        let key = UnboundKey::new(&AES_256_GCM, context.sign().as_ref())
            .expect("an HMAC-SHA256 tag and an AES-256 key both have 32 bytes");
        LessSafeKey::new(key)
    }
}

/// Reason why a member cannot decrypt a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the secret is encrypted with the key {0}, which is not in this member's key file; add the key to the file"
    )]
    UnknownKey(KeyId),
    /// The encrypted secret is damaged, or belongs to another [`Place`].
    #[error(
        "the encrypted secret is damaged, or belongs to another tenant, schedule, name or target; if the target's scheme, \
         host or port was changed without the API, send the target and its headers again"
    )]
    Forged,
    /// The header has the form of earlier builds. The migration of the store bound every header that it could decrypt, so
    /// this header was written to the store later, or was damaged before.
    #[error("the encrypted header is not bound to a target; send the schedule's headers again")]
    NotBound,
}

/// Returns whether the schedule has a header whose value is not encrypted.
#[must_use]
pub fn has_plain_header(schedule: &Schedule) -> bool {
    schedule.spec.target.headers().iter().any(|(_, value)| !value.is_encrypted())
}

/// Returns whether the schedule has a header that is not bound: a header in plain text, or in the form of earlier builds.
#[must_use]
pub fn has_unbound_header(schedule: &Schedule) -> bool {
    schedule.spec.target.headers().iter().any(|(_, value)| !is_bound(value))
}

/// Returns whether the schedule has a bound header.
#[must_use]
pub fn has_bound_header(schedule: &Schedule) -> bool {
    schedule.spec.target.headers().iter().any(|(_, value)| is_bound(value))
}

fn is_bound(value: &Secret) -> bool {
    matches!(value, Secret::Encrypted(bytes) if bytes.first() == Some(&FORM_2))
}

/// Returns whether the tenant has a signing secret that is not encrypted.
#[must_use]
pub fn has_plain_secret(tenant: &Tenant) -> bool {
    tenant.signing_secrets.iter().any(|secret| !secret.secret.is_encrypted())
}

/// Keys of a store. The first key encrypts new values. Every key decrypts the values that it has encrypted.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    keys: Vec<StoreKey>,
}

impl Keyring {
    /// Keyring without keys, for a store without encryption. It returns plaintext secrets unchanged and cannot decrypt
    /// encrypted secrets.
    pub const NONE: Keyring = Keyring { keys: Vec::new() };

    /// # Panics
    /// Panics if `keys` is empty.
    #[must_use]
    pub fn new(keys: Vec<StoreKey>) -> Self {
        assert!(!keys.is_empty(), "encryption requires at least one key");
        Keyring { keys }
    }

    /// Returns true if the first key encrypted `secret`.
    #[must_use]
    pub fn is_current(&self, secret: &Secret) -> bool {
        let Secret::Encrypted(encrypted) = secret else { return false };
        let id = encrypted.get(1..=KEY_ID_LEN);
        self.keys.first().is_some_and(|key| id == Some(&key.id.0))
    }

    /// Returns the ids of the keys. The first id belongs to the key that encrypts new values.
    pub fn key_ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys.iter().map(StoreKey::id)
    }

    /// Encrypts `secret`. Returns `secret` unchanged if it is already encrypted.
    ///
    /// # Panics
    /// Panics if the keyring is [`Keyring::NONE`] and `secret` is plaintext.
    #[must_use]
    pub fn encrypt(&self, runtime: &Runtime, place: Place<'_>, secret: &Secret) -> Secret {
        let Secret::Plain(plain) = secret else { return secret.clone() };
        let key = self.keys.first().expect("encryption requires at least one configured key");
        let (salt, nonce) = (random(runtime), random(runtime));
        let mut encrypted = Vec::with_capacity(plain.len() + Secret::ENCRYPTION_OVERHEAD);
        let form = place.form();
        encrypted.push(form);
        encrypted.extend(key.id.0);
        encrypted.extend(salt);
        encrypted.extend(nonce);
        let mut text = plain.to_vec();
        let (nonce, place) = (Nonce::assume_unique_for_key(nonce), Aad::from(place.bytes()));
        let tag = key.cipher(form, &salt).seal_in_place_separate_tag(nonce, place, &mut text);
        let tag = tag.expect("the length of a secret is below the AES-GCM limit of 64 GiB");
        encrypted.extend(&text);
        encrypted.extend(tag.as_ref());
        Secret::Encrypted(encrypted.into())
    }

    /// Encrypts the plaintext header values of a schedule.
    pub fn encrypt_schedule(&self, runtime: &Runtime, schedule: &mut Arc<Schedule>) {
        if !has_plain_header(schedule) {
            return; // Most schedules have no plaintext header. The early return avoids a copy of the schedule.
        }
        let schedule = Arc::make_mut(schedule);
        let origin = schedule.spec.target.origin();
        for (name, value) in schedule.spec.target.headers_mut() {
            let place = Place::Header { tenant: schedule.tenant, schedule: &schedule.id, name, origin: &origin };
            *value = self.encrypt(runtime, place, value);
        }
    }

    /// Binds the headers of a schedule that are not bound to the present origin of its target. Leaves a header unchanged
    /// if the keyring cannot decrypt it.
    ///
    /// # Errors
    /// Returns the first error of a header that the keyring cannot decrypt. The other headers are bound.
    pub fn bind_schedule(&self, runtime: &Runtime, schedule: &mut Arc<Schedule>) -> Result<(), OpenError> {
        if !has_unbound_header(schedule) {
            return Ok(());
        }
        let Schedule { tenant, id, spec, .. } = Arc::make_mut(schedule);
        let (tenant, origin, mut first_error) = (*tenant, spec.target.origin(), None);
        for (name, value) in spec.target.headers_mut().iter_mut().filter(|(_, value)| !is_bound(value)) {
            let opened = match &*value {
                Secret::Plain(plain) => Ok(plain.clone()),
                Secret::Encrypted(encrypted) => self.decrypt(FORM_1, &unbound_place(tenant, id, name), encrypted),
            };
            let place = Place::Header { tenant, schedule: id, name, origin: &origin };
            match opened {
                Ok(plain) => *value = self.encrypt(runtime, place, &Secret::Plain(plain)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Encrypts the plaintext excerpts of a run. An excerpt that an earlier write of the run encrypted stays as it is.
    pub fn encrypt_run(&self, runtime: &Runtime, run: &mut Run) {
        let is_plain = |excerpt: &Secret| !excerpt.is_encrypted();
        if !run.attempts.iter().filter_map(|attempt| attempt.excerpt.as_ref()).any(is_plain) {
            return; // Most runs have no excerpts. The early return avoids the text of the id.
        }
        let (tenant, id) = (run.tenant, run.occurrence.run_id());
        for attempt in &mut run.attempts {
            let place = Place::Excerpt { tenant, run: &id, attempt: attempt.number };
            attempt.excerpt = attempt.excerpt.as_ref().map(|excerpt| self.encrypt(runtime, place, excerpt));
        }
    }

    /// Encrypts the plaintext signing secrets of a tenant.
    pub fn encrypt_tenant(&self, runtime: &Runtime, tenant: &mut Tenant) {
        for secret in &mut tenant.signing_secrets {
            let place = Place::SigningSecret { tenant: tenant.id, id: &secret.id };
            secret.secret = self.encrypt(runtime, place, &secret.secret);
        }
    }

    /// Returns the plaintext of `secret`.
    ///
    /// # Errors
    /// Returns an error if the keyring does not contain the key that encrypted `secret`. Also returns an error if
    /// `secret` is damaged, belongs to a place other than `place`, or is a header that is not bound.
    pub fn open(&self, place: Place<'_>, secret: &Secret) -> Result<Bytes, OpenError> {
        match secret {
            Secret::Plain(plain) => Ok(plain.clone()),
            Secret::Encrypted(encrypted)
                if matches!(place, Place::Header { .. }) && encrypted.first() == Some(&FORM_1) =>
            {
                Err(OpenError::NotBound)
            }
            Secret::Encrypted(encrypted) => self.decrypt(place.form(), &place.bytes(), encrypted),
        }
    }

    fn decrypt(&self, expected_form: u8, place: &[u8], encrypted: &Bytes) -> Result<Bytes, OpenError> {
        let parts = encrypted.split_first().and_then(|(form, rest)| {
            let (key, rest) = rest.split_first_chunk::<KEY_ID_LEN>()?;
            let (salt, rest) = rest.split_first_chunk::<SALT_LEN>()?;
            let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
            (*form == expected_form).then_some((KeyId(*key), salt, *nonce, text))
        });
        let (id, salt, nonce, text) = parts.ok_or(OpenError::Forged)?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or(OpenError::UnknownKey(id))?;
        let mut text = text.to_vec();
        let cipher = key.cipher(expected_form, salt);
        let opened = cipher.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut text);
        let len = opened.map_err(|_| OpenError::Forged)?.len();
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

//! What callbacks are signed with.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A signing secret, as `data/signing.secret` has it and `reveille secret create` prints it: `whsec_` and base64.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// Why a text is no [`Secret`]. It does not tell the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It is something else: a key, perhaps.
    #[error("a signing secret begins with `whsec_`; the one of a first start is in `data/signing.secret`")]
    Prefix,
    /// What follows the prefix was cut, or changed.
    #[error("what follows `whsec_` is not base64; copy all of it")]
    Base64,
    /// Standard Webhooks wants 24 to 64 bytes.
    #[error("a signing secret has 24 to 64 bytes, and this one has {bytes}")]
    Length {
        /// How many it has.
        bytes: usize,
    },
}

impl FromStr for Secret {
    type Err = SecretError;

    /// White space around it, as a file has, is not of it.
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let digits = text.trim().strip_prefix("whsec_").ok_or(SecretError::Prefix)?;
        let key = STANDARD.decode(digits).map_err(|_| SecretError::Base64)?;
        if !(24..=64).contains(&key.len()) {
            return Err(SecretError::Length { bytes: key.len() });
        }
        Ok(Secret(Hmac::new_from_slice(&key).expect("HMAC takes keys of every length")))
    }
}

impl Secret {
    /// What is signed is `id.timestamp.body` (Standard Webhooks 1.0.0, "Signature scheme").
    pub(crate) fn sign(&self, id: &str, timestamp: &str, body: &Bytes) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

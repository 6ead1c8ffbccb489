//! Secrets with which Reveille signs callbacks.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Signing secret. Its text consists of `whsec_` and base64, as in `data/signing.secret` and in the output of `reveille
/// secret create`.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// Reason why a text is not a [`Secret`]. The error does not contain the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The text does not have the prefix `whsec_`. It may be an API key.
    #[error("invalid signing secret: expected the prefix `whsec_`; copy it from a file such as `data/signing.secret`")]
    Prefix,
    /// The part after the prefix `whsec_` is not base64. The text may be truncated or changed.
    #[error("invalid signing secret: the part after `whsec_` is not base64; copy the whole secret")]
    Base64,
    /// The decoded secret has fewer than 24 or more than 64 bytes. Standard Webhooks requires 24 to 64 bytes.
    #[error("invalid signing secret: expected 24 to 64 bytes after decoding, found {bytes}; copy the whole secret")]
    Length {
        /// Number of bytes of the decoded secret.
        bytes: usize,
    },
}

impl FromStr for Secret {
    type Err = SecretError;

    /// Parses a secret. The function ignores white space around the text, for example a line end in a file.
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let digits = text.trim().strip_prefix("whsec_").ok_or(SecretError::Prefix)?;
        let key = STANDARD.decode(digits).map_err(|_| SecretError::Base64)?;
        if !(24..=64).contains(&key.len()) {
            return Err(SecretError::Length { bytes: key.len() });
        }
        Ok(Secret(Hmac::new_from_slice(&key).expect("HMAC accepts keys of every length")))
    }
}

impl Secret {
    /// Signs the text `id.timestamp.body` (Standard Webhooks 1.0.0, "Signature scheme").
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

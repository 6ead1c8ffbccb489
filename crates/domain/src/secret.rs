//! Secret values: the header values of targets, the secrets that sign callbacks, and excerpts of responses.
//!
//! Invariant: the `Debug` form of [`Secret`] contains no part of the value, and `Secret` has no `Display` form. The
//! code of the store encrypts and decrypts values. In this crate, an encrypted value consists of opaque bytes.

use std::fmt;

use bytes::Bytes;

/// Prefix of the error text of an attempt that fails because the member cannot decrypt a secret of the schedule or of
/// its tenant.
pub const NOT_DECRYPTED: &str = "secret_not_opened";

/// Secret value. It is encrypted in storage. The value is plain text on the way from a user's request to the store, and
/// in the code that sends a callback.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Secret {
    /// Plain text from a user, or from an older version that stored secrets without encryption.
    Plain(Bytes),
    /// Ciphertext, which only a key of the store can decrypt.
    Encrypted(Bytes),
}

impl Secret {
    /// Placeholder that responses show for a secret. Validation rejects the placeholder as a header value.
    pub const REDACTED: &'static str = "[redacted]";

    /// Number of bytes by which a ciphertext is longer than its plain text.
    pub const ENCRYPTION_OVERHEAD: usize = 1 + 8 + 24 + 16;

    /// Returns the plain text, or `None` if the value is encrypted.
    #[must_use]
    pub fn plain(&self) -> Option<&Bytes> {
        match self {
            Secret::Plain(bytes) => Some(bytes),
            Secret::Encrypted(_) => None,
        }
    }

    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Secret::Encrypted(_))
    }

    /// Returns the length in bytes of the value as it is: plain or encrypted.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        match self {
            Secret::Plain(bytes) | Secret::Encrypted(bytes) => bytes.len(),
        }
    }

    /// Returns the length of the plain text in bytes, also for an encrypted value.
    #[must_use]
    pub fn plain_len(&self) -> usize {
        match self {
            Secret::Plain(bytes) => bytes.len(),
            Secret::Encrypted(bytes) => bytes.len().saturating_sub(Self::ENCRYPTION_OVERHEAD),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Secret::Plain(_) => "Plain(…)",
            Secret::Encrypted(_) => "Encrypted(…)",
        })
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret::Plain(text.into())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret::Plain(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Secret::Plain(bytes.into())
    }
}

/// Id of an encryption key. It reveals nothing about the key, and two keys have different ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; KeyId::LEN]);

impl KeyId {
    /// Length of a key id in bytes.
    pub const LEN: usize = 8;

    /// Parses the text that `Display` writes: 16 hexadecimal digits. Returns `None` if the text is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 2 * Self::LEN || !text.bytes().all(is_digit) {
            return None;
        }
        let number = u64::from_str_radix(text, 16).ok()?;
        Some(KeyId(number.to_be_bytes()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_id_parser_accepts_only_the_text_that_display_writes() {
        let id = KeyId([0, 1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd]);
        assert_eq!(KeyId::parse(&id.to_string()), Some(id));
        for text in ["", "0001234567", "0001234567 9abcd", "+f0123456789abcd", "000123456789ABCD", "000123456789abcdef"]
        {
            assert_eq!(KeyId::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn debug_text_contains_no_part_of_a_secret() {
        for secret in [Secret::from("hunter2"), Secret::Encrypted(Bytes::from_static(b"hunter2"))] {
            let shown = format!("{secret:?} {:?}", vec![("authorization", secret.clone())]);
            assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
        }
    }
}

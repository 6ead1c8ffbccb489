//! What only who gave it and who it is for should see: the values of a target's headers, the secrets that sign callbacks.
//!
//! Always true here: nothing of a value is in its `Debug` form, and there is no `Display`. Sealing and opening are the
//! store's side's; here a sealed value is bytes that say nothing.

use std::fmt;

use bytes::Bytes;

/// What the reason of an attempt begins with whose secrets this member has no key for.
pub const NOT_OPENED: &str = "secret_not_opened";

/// Sealed wherever it is kept; in plain from a request to the store's door, and from there to a callback.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Secret {
    /// As it was given, and as builds stored it that did not seal.
    Plain(Bytes),
    /// Readable with the store's key only.
    Sealed(Bytes),
}

impl Secret {
    /// What answers show in a secret's place, and what nobody can mean as one.
    pub const REDACTED: &'static str = "[redacted]";

    /// By how much a sealed value is longer than what it holds.
    pub const SEALED_OVERHEAD: usize = 1 + 8 + 24 + 16;

    /// `None` if it is sealed.
    #[must_use]
    pub fn plain(&self) -> Option<&Bytes> {
        match self {
            Secret::Plain(bytes) => Some(bytes),
            Secret::Sealed(_) => None,
        }
    }

    #[must_use]
    pub fn is_sealed(&self) -> bool {
        matches!(self, Secret::Sealed(_))
    }

    /// The length of what it holds, in bytes, be it sealed or not.
    #[must_use]
    pub fn plain_len(&self) -> usize {
        match self {
            Secret::Plain(bytes) => bytes.len(),
            Secret::Sealed(bytes) => bytes.len().saturating_sub(Self::SEALED_OVERHEAD),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Secret::Plain(_) => "Plain(…)",
            Secret::Sealed(_) => "Sealed(…)",
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

/// Names a key, and tells nothing of it: two keys have two ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; KeyId::LEN]);

impl KeyId {
    /// The length of an id, in bytes.
    pub const LEN: usize = 8;

    /// What `Display` wrote, read; `None` if it did not.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Option<_>>()?;
        bytes.try_into().ok().map(KeyId)
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
    fn nothing_of_a_secret_is_in_its_debug_form() {
        for secret in [Secret::from("hunter2"), Secret::Sealed(Bytes::from_static(b"hunter2"))] {
            let shown = format!("{secret:?} {:?}", vec![("authorization", secret.clone())]);
            assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
        }
    }
}

//! Secret that all members of a cluster share.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Key of HMAC-SHA256. The `Debug` text does not contain the key, and this value does not retain the original bytes of
/// the key.
#[derive(Clone)]
pub struct ClusterSecret(Hmac<Sha256>);

/// SHA-256 hash, or a MAC that uses SHA-256.
pub(crate) type Hash = [u8; 32];

impl ClusterSecret {
    pub const LEN: usize = 32;

    #[must_use]
    pub fn new(secret: &[u8; Self::LEN]) -> Self {
        ClusterSecret(Hmac::new_from_slice(secret).expect("HMAC accepts keys of every length"))
    }

    pub(crate) fn mac(&self, text: &str) -> Hash {
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// Verifies a MAC in constant time.
    pub(crate) fn is_mac(&self, text: &str, unverified: &Hash) -> bool {
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        mac.verify_slice(unverified).is_ok()
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(..)")
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses a hash of 64 lower-case hexadecimal digits, which is the format of [`hex`].
pub(crate) fn parse_hash(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_does_not_contain_the_cluster_secret() {
        assert_eq!(format!("{:?}", ClusterSecret::new(&[0xab; 32])), "ClusterSecret(..)");
    }

    /// RFC 4231 has no example with a key of 32 bytes, so the expected value comes from `openssl dgst -sha256 -mac
    /// HMAC`.
    #[test]
    fn mac_is_hmac_sha256_of_the_text() {
        let secret = ClusterSecret::new(b"0123456789abcdef0123456789abcdef");
        let mac = secret.mac("what is asked");
        assert_eq!(hex(&mac), "2d1a46c8f988c12bd3980d978ce948d37b3180c49fe1b8ff12764b5996f0d29d");
        assert!(secret.is_mac("what is asked", &mac) && !secret.is_mac("what is asket", &mac));
        assert!(!ClusterSecret::new(&[0; 32]).is_mac("what is asked", &mac));
    }

    #[test]
    fn hash_parser_accepts_only_lower_case_hexadecimal_text() {
        let hash = sha256(b"a");
        assert_eq!(parse_hash(&hex(&hash)), Some(hash));
        for other in ["", &hex(&hash)[1..], &hex(&hash).to_uppercase(), &"g".repeat(64), &"+1".repeat(32)] {
            assert_eq!(parse_hash(other), None, "{other}");
        }
    }
}

//! Signatures of Standard Webhooks 1.0.0: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of a signature, in bytes: `v1,` and the 44 base64 digits of an HMAC of 32 bytes.
pub const SIGNATURE_LEN: usize = 47;

/// Signing secret with its precomputed key schedule. HMAC derives two blocks from the key. [`Signer::new`] hashes them
/// once, so that [`Signer::sign`] need not hash them for each signature.
#[derive(Clone)]
pub struct Signer(Hmac<Sha256>);

impl Signer {
    /// Creates a signer from the raw key. A tenant's settings contain the key as `whsec_` plus base64.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Signer(Hmac::new_from_slice(secret).expect("HMAC takes keys of every length"))
    }

    /// Returns the value of `webhook-signature`. `timestamp_s` counts seconds since 1970, as in
    /// `webhook-timestamp`.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> [u8; SIGNATURE_LEN] {
        let mut mac = self.0.clone();
        mac.update(id.as_bytes());
        mac.update(b".");
        mac.update(itoa::Buffer::new().format(timestamp_s).as_bytes());
        mac.update(b".");
        mac.update(body);
        let mut signature = [0; SIGNATURE_LEN];
        signature[..3].copy_from_slice(b"v1,");
        STANDARD
            .encode_slice(mac.finalize().into_bytes(), &mut signature[3..])
            .expect("the base64 text of 32 bytes has 44 characters");
        signature
    }
}

/// Returns the signature that [`Signer::sign`] computes. A caller that signs or checks many messages should reuse a
/// [`Signer`] instead.
#[must_use]
pub fn sign(secret: &[u8], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    Signer::new(secret).sign(id, timestamp_s, body).iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests;

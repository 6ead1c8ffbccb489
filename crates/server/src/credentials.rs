//! Creation of API keys and signing secrets.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use domain::{ApiKey, Role, Secret, SigningSecret, Timestamp};
use runtime::Runtime;
use sha2::{Digest, Sha256};

/// Creates a key, and returns it with the text that clients send after `Bearer`.
pub fn new_key(runtime: &Runtime, role: Role, name: &str, expires_at: Option<Timestamp>) -> (ApiKey, String) {
    let id = new_id(runtime, "k");
    let secret = URL_SAFE_NO_PAD.encode(random::<32>(runtime));
    let secret_sha256 = Sha256::digest(secret.as_bytes()).into();
    let bearer = format!("{id}.{secret}");
    let (name, created_at) = (name.to_owned(), runtime.now());
    (ApiKey { id, name, secret_sha256, role, created_at, expires_at }, bearer)
}

/// Creates a secret for signing callbacks, and returns it with its text form for receivers (Standard Webhooks 1.0.0).
pub fn new_signing_secret(runtime: &Runtime) -> (SigningSecret, String) {
    let secret = random::<32>(runtime);
    let text = format!("whsec_{}", STANDARD.encode(secret));
    let secret = Secret::from(secret.to_vec());
    (SigningSecret { id: new_id(runtime, "s"), secret, created_at: runtime.now() }, text)
}

/// Returns a letter followed by 72 random bits, encoded as letters and digits.
fn new_id(runtime: &Runtime, letter: &str) -> String {
    format!("{letter}{}", URL_SAFE_NO_PAD.encode(random::<9>(runtime)).replace(['-', '_'], "0"))
}

fn random<const LENGTH: usize>(runtime: &Runtime) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&runtime.random().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

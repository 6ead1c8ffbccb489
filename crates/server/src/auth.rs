//! Who sends a request: `Authorization: Bearer KEY_ID.SECRET`.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use store::Tenant;
use subtle::ConstantTimeEq;

use crate::refusal::{Kind, Refused, refuse};
use crate::shared::Shared;

/// The tenant whose key this request carries.
pub(crate) fn authenticate(shared: &Shared, headers: &HeaderMap) -> Result<Arc<Tenant>, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing());
    };
    let (key_id, secret) = value.to_str().ok().and_then(bearer).ok_or_else(missing)?;
    // The digests have one length and are compared in constant time; a key's id is no secret.
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    match shared.scheduler.key(key_id) {
        Some((tenant, key)) if bool::from(digest.ct_eq(&key.secret_sha256)) => Ok(tenant),
        _ => Err(refuse(Kind::InvalidCredentials, "the key is wrong, or was revoked")),
    }
}

/// The two parts of a key in a header of the form `Bearer ID.SECRET`.
fn bearer(value: &str) -> Option<(&str, &str)> {
    let (scheme, key) = value.split_once(' ')?;
    let (id, secret) = key.trim().split_once('.')?;
    (scheme.eq_ignore_ascii_case("bearer") && !id.is_empty() && !secret.is_empty()).then_some((id, secret))
}

fn missing() -> Refused {
    refuse(Kind::MissingCredentials, "send one header of the form `Authorization: Bearer KEY_ID.SECRET`")
}

//! Who sends a request: `Authorization: Bearer KEY_ID.SECRET`.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use domain::{ApiKey, Role, Tenant};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::refusal::{Kind, Refused, refuse};
use crate::shared::Shared;

/// Whose key a request carries.
pub(crate) struct Caller {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: Arc<ApiKey>,
}

/// Who sends this request, with the key of a tenant that may do there what `needs` may.
pub(crate) fn authenticate(shared: &Shared, headers: &HeaderMap, needs: Role) -> Result<Caller, Refused> {
    let caller = caller(shared, headers)?;
    if caller.key.role == Role::Operator {
        return Err(refuse(Kind::RoleForbidden, "an operator has no schedules; use a key of the tenant that has"));
    }
    check_role(&caller.key, needs)?;
    Ok(caller)
}

pub(crate) fn check_role(key: &ApiKey, needs: Role) -> Result<(), Refused> {
    if key.role >= needs {
        return Ok(());
    }
    let (has, needs) = (role_name(key.role), role_name(needs));
    Err(refuse(Kind::RoleForbidden, format!("this is a {has}'s key; the request needs a {needs}'s")))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Writer => "writer",
        Role::Admin => "tenant admin",
        Role::Operator => "service operator",
    }
}

/// Whoever sends this request.
pub(crate) fn caller(shared: &Shared, headers: &HeaderMap) -> Result<Caller, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing());
    };
    let key = value.to_str().ok().and_then(bearer).ok_or_else(missing)?;
    let Some((key_id, secret)) = key.split_once('.') else {
        return Err(refuse(Kind::InvalidCredentials, "what was sent is no key: one has the form KEY_ID.SECRET"));
    };
    // The digests have one length and are compared in constant time; a key's id is no secret.
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    match shared.tenants.key(key_id) {
        Some((tenant, key)) if bool::from(digest.ct_eq(&key.secret_sha256)) => {
            unexpired(shared, Caller { tenant, key })
        }
        _ => Err(wrong()),
    }
}

/// Whose key it is by now, for a request that goes on for long: a key may be revoked or expire under it, and what its tenant
/// may do changes.
pub(crate) fn again(shared: &Shared, key: &ApiKey) -> Result<Caller, Refused> {
    let (tenant, key) = shared.tenants.key(&key.id).ok_or_else(wrong)?;
    unexpired(shared, Caller { tenant, key })
}

fn unexpired(shared: &Shared, caller: Caller) -> Result<Caller, Refused> {
    if caller.key.expires_at.is_some_and(|end| end <= shared.runtime.now()) {
        let detail = "the key has expired; have the tenant's admin make another";
        return Err(refuse(Kind::InvalidCredentials, detail));
    }
    Ok(caller)
}

fn wrong() -> Refused {
    refuse(Kind::InvalidCredentials, "the key is wrong, or was revoked")
}

/// The key in a header of the form `Bearer KEY`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn missing() -> Refused {
    refuse(Kind::MissingCredentials, "send one header of the form `Authorization: Bearer KEY_ID.SECRET`")
}

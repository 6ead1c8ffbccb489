//! Authentication of requests: `Authorization: Bearer KEY_ID.SECRET`.
//!
//! docs/decisions/0063-check-keys-with-one-sha-256.md gives the reasons for the design.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use domain::{ApiKey, Role, Tenant};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::rejection::{Code, Rejected, reject};
use crate::route::Needs;
use crate::state::AppState;

/// Key of a request, and the tenant whose data the request reads or changes.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: Arc<ApiKey>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.remove().expect("the router has checked the key before it calls the handler"))
    }
}

pub(crate) fn tenant_not_found() -> Rejected {
    reject(Code::TenantNotFound, "no tenant with this name is visible to this API key; check the name in the path")
}

/// Returns the caller, if its key permits the request. `named` is the name of the tenant in the path. A caller of
/// another tenant receives the same rejection whether or not the named tenant exists, unless the caller is an operator.
pub(crate) fn authorize(app: &AppState, headers: &HeaderMap, needs: Needs, named: &str) -> Result<Caller, Rejected> {
    let caller = caller(app, headers)?;
    let is_operator = caller.key.role == Role::Operator;
    let (role, caller) = match needs {
        Needs::Nothing => return Ok(caller),
        Needs::Operator => (Role::Operator, caller),
        Needs::AdminOf if is_operator => {
            let tenant = app.tenants.named(named).ok_or_else(tenant_not_found)?;
            (Role::Admin, Caller { tenant, ..caller })
        }
        Needs::AdminOf if caller.tenant.name != named => return Err(tenant_not_found()),
        Needs::AdminOf => (Role::Admin, caller),
        Needs::Reader | Needs::Writer | Needs::Admin if is_operator => {
            return Err(reject(
                Code::RoleForbidden,
                "this route does not accept an operator's key; use a key of the tenant that owns the schedules",
            ));
        }
        Needs::Reader => (Role::Reader, caller),
        Needs::Writer => (Role::Writer, caller),
        Needs::Admin | Needs::AdminOrOperator => (Role::Admin, caller),
    };
    check_role(&caller.key, role)?;
    Ok(caller)
}

fn check_role(key: &ApiKey, needs: Role) -> Result<(), Rejected> {
    if key.role >= needs {
        return Ok(());
    }
    let (has, needs) = (role_name(key.role), role_name(needs));
    let detail = format!("the key has the role {has}; use a key with the role {needs} or a higher one");
    Err(reject(Code::RoleForbidden, detail))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Writer => "writer",
        Role::Admin => "tenant admin",
        Role::Operator => "service operator",
    }
}

/// Returns the caller that the key in the headers identifies.
fn caller(app: &AppState, headers: &HeaderMap) -> Result<Caller, Rejected> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing_key());
    };
    let key = value.to_str().ok().and_then(bearer).ok_or_else(missing_key)?;
    let Some((key_id, secret)) = key.split_once('.') else {
        return Err(reject(
            Code::InvalidCredentials,
            "the bearer token is not an API key; a key has the form KEY_ID.SECRET",
        ));
    };
    // The comparison takes constant time, because both digests have the same length. The lookup of the key's id
    // may take a variable time, because the id is not secret.
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    match app.tenants.key(key_id) {
        Some((tenant, key)) if bool::from(digest.ct_eq(&key.secret_sha256)) => unexpired(app, Caller { tenant, key }),
        _ => Err(invalid_key()),
    }
}

/// Reads the caller's key again during a long request. An admin may have revoked the key or changed the tenant, or the
/// key may have expired.
pub(crate) fn recheck(app: &AppState, key: &ApiKey) -> Result<Caller, Rejected> {
    let (tenant, key) = app.tenants.key(&key.id).ok_or_else(invalid_key)?;
    unexpired(app, Caller { tenant, key })
}

fn unexpired(app: &AppState, caller: Caller) -> Result<Caller, Rejected> {
    if caller.key.expires_at.is_some_and(|end| end <= app.runtime.now()) {
        let detail = "the API key has expired; ask the tenant's admin for a new key";
        return Err(reject(Code::InvalidCredentials, detail));
    }
    Ok(caller)
}

fn invalid_key() -> Rejected {
    reject(Code::InvalidCredentials, "the API key is wrong or revoked; ask the tenant's admin for a valid key")
}

/// Extracts the key from a header of the form `Bearer KEY`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn missing_key() -> Rejected {
    reject(Code::MissingCredentials, "send one header of the form `Authorization: Bearer KEY_ID.SECRET`")
}

//! Who sends a request: `Authorization: Bearer KEY_ID.SECRET`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use domain::{ApiKey, Role, Tenant};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::extract::path_parameter;
use crate::refusal::{Code, Refused, refuse};
use crate::route::Needs;
use crate::state::AppState;

/// The key that a request carries, and the tenant that the request is about.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: Arc<ApiKey>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.remove().expect("the route's operation needs a key, which was checked"))
    }
}

/// The tenant that an operator names in the path.
pub(crate) struct NamedTenant(pub(crate) Arc<Tenant>);

impl FromRequestParts<Arc<AppState>> for NamedTenant {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, Refused> {
        let name = path_parameter(parts, "tenant").await;
        app.tenants.named(&name).map(NamedTenant).ok_or_else(tenant_not_found)
    }
}

pub(crate) fn tenant_not_found() -> Refused {
    refuse(Code::TenantNotFound, "there is no tenant of this name that the key may see")
}

/// The caller, if its key may send such a request. `named` is the tenant in the path; a key of another tenant that is no
/// operator's learns nothing of it.
pub(crate) fn authorize(app: &AppState, headers: &HeaderMap, needs: Needs, named: &str) -> Result<Caller, Refused> {
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
            return Err(refuse(Code::RoleForbidden, "an operator has no schedules; use a key of the tenant that has"));
        }
        Needs::Reader => (Role::Reader, caller),
        Needs::Writer => (Role::Writer, caller),
        Needs::Admin => (Role::Admin, caller),
    };
    check_role(&caller.key, role)?;
    Ok(caller)
}

fn check_role(key: &ApiKey, needs: Role) -> Result<(), Refused> {
    if key.role >= needs {
        return Ok(());
    }
    let (has, needs) = (role_name(key.role), role_name(needs));
    Err(refuse(Code::RoleForbidden, format!("this is a {has}'s key; the request needs a {needs}'s")))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Writer => "writer",
        Role::Admin => "tenant admin",
        Role::Operator => "service operator",
    }
}

/// The owner of the key in the headers.
fn caller(app: &AppState, headers: &HeaderMap) -> Result<Caller, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing());
    };
    let key = value.to_str().ok().and_then(bearer).ok_or_else(missing)?;
    let Some((key_id, secret)) = key.split_once('.') else {
        return Err(refuse(Code::InvalidCredentials, "what was sent is no key: one has the form KEY_ID.SECRET"));
    };
    // The digests have one length and are compared in constant time; a key's id is no secret.
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    match app.tenants.key(key_id) {
        Some((tenant, key)) if bool::from(digest.ct_eq(&key.secret_sha256)) => unexpired(app, Caller { tenant, key }),
        _ => Err(wrong()),
    }
}

/// Whose key it is by now, for a request that goes on for long: a key may be revoked or expire under it, and what its tenant
/// may do changes.
pub(crate) fn again(app: &AppState, key: &ApiKey) -> Result<Caller, Refused> {
    let (tenant, key) = app.tenants.key(&key.id).ok_or_else(wrong)?;
    unexpired(app, Caller { tenant, key })
}

fn unexpired(app: &AppState, caller: Caller) -> Result<Caller, Refused> {
    if caller.key.expires_at.is_some_and(|end| end <= app.runtime.now()) {
        let detail = "the key has expired; have the tenant's admin make another";
        return Err(refuse(Code::InvalidCredentials, detail));
    }
    Ok(caller)
}

fn wrong() -> Refused {
    refuse(Code::InvalidCredentials, "the key is wrong, or was revoked")
}

/// The key in a header of the form `Bearer KEY`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn missing() -> Refused {
    refuse(Code::MissingCredentials, "send one header of the form `Authorization: Bearer KEY_ID.SECRET`")
}

//! Tenants, their keys and their signing secrets: for operators, and for each tenant's admins.
//!
//! Every change is made to the tenant as it is now, under its next version, and told in its audit log.

pub(super) mod settings;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Response, StatusCode};
use domain::{ApiKey, Audit, Role, ScheduleId, SigningSecret, Tenant, TenantId, Timestamp};
use serde::de::DeserializeOwned;

use super::check_content_type;
use super::quotas::{set_ceilings, set_quotas, sheet_of};
use super::runs::Page;
use crate::answer;
use crate::auth::{caller, check_role};
use crate::body::collect::collect;
use crate::credentials::{new_key, new_signing_secret};
use crate::refusal::{Kind, Refused, refuse};
use crate::shared::Shared;

/// The name of [`Tenant::OPERATOR`].
const OPERATOR: &str = "operator";
const KEYS_MAX: usize = 1_000;
const KEY_NAME_BYTES_MAX: usize = 128;
/// One that signs, and one that takes over from it.
const SIGNING_SECRETS_MAX: usize = 2;
/// How often a change is tried that meets another of the same tenant.
const TRIES: usize = 10;

/// Who asked for what.
struct Act<'a> {
    actor: &'a str,
    action: &'static str,
    subject: String,
}

/// All tenants as they are in the store, for one whose key is still among theirs: this member may not know yet that it was
/// revoked.
async fn fresh(shared: &Shared, actor: &str) -> Result<Vec<Tenant>, Refused> {
    let tenants = shared.tenants.all().await?;
    if tenants.iter().flat_map(|tenant| &tenant.keys).any(|key| key.id == actor) {
        return Ok(tenants);
    }
    Err(refuse(Kind::InvalidCredentials, "the key was revoked"))
}

/// Changes the tenant as it is in the store.
pub(super) async fn change<T>(
    shared: &Shared,
    id: TenantId,
    actor: &str,
    action: &'static str,
    mut edit: impl FnMut(&mut Tenant) -> Result<(String, T), Refused>,
) -> Result<T, Refused> {
    for _ in 0..TRIES {
        let tenants = fresh(shared, actor).await?;
        let mut tenant = tenants.into_iter().find(|tenant| tenant.id == id).ok_or_else(not_found)?;
        let (subject, made) = edit(&mut tenant)?;
        tenant.version += 1;
        if put(shared, tenant, &Act { actor, action, subject }).await? {
            return Ok(made);
        }
    }
    Err(refuse(Kind::StoreUnavailable, "others keep changing the tenant; nothing was done, send it again"))
}

/// Whether nobody else was faster.
async fn put(shared: &Shared, tenant: Tenant, act: &Act<'_>) -> Result<bool, Refused> {
    let entry = Audit::of(&tenant, shared.runtime.now(), act.actor, act.action, &act.subject);
    Ok(shared.tenants.put(tenant, entry).await?.is_ok())
}

/// The tenant of this name, for its admins and for operators; to others there is none.
fn administered(shared: &Shared, name: &str, headers: &HeaderMap) -> Result<(Arc<Tenant>, Arc<ApiKey>), Refused> {
    let caller = caller(shared, headers)?;
    let tenant = match caller.key.role {
        Role::Operator => shared.tenants.named(name).ok_or_else(not_found)?,
        _ if caller.tenant.name == name => caller.tenant,
        _ => return Err(not_found()),
    };
    check_role(&caller.key, Role::Admin)?;
    Ok((tenant, caller.key))
}

fn operator(shared: &Shared, headers: &HeaderMap) -> Result<Arc<ApiKey>, Refused> {
    let key = caller(shared, headers)?.key;
    check_role(&key, Role::Operator)?;
    Ok(key)
}

fn not_found() -> Refused {
    refuse(Kind::TenantNotFound, "there is no tenant of this name that the key may see")
}

pub(super) async fn create(shared: &Shared, request: Request) -> Result<Response<Body>, Refused> {
    let (head, body) = request.into_parts();
    let operator = operator(shared, &head.headers)?;
    let api::TenantRequest { name, quotas, ceilings, egress } = read(shared, &head.headers, body).await?;
    let egress = settings::egress_from(&egress)?;
    if ScheduleId::new(&name).is_err() {
        return Err(refuse(Kind::InvalidRequest, "a tenant's name is 1 to 128 of A-Z, a-z, 0-9, _ and -"));
    }
    for _ in 0..TRIES {
        let tenants = fresh(shared, &operator.id).await?;
        if name == OPERATOR || tenants.iter().any(|tenant| tenant.name == name) {
            return Err(refuse(Kind::TenantExists, "choose another name"));
        }
        let id = TenantId(tenants.iter().map(|tenant| tenant.id.0).max().unwrap_or(0) + 1);
        let (secret, text) = new_signing_secret(&shared.runtime);
        let (key, bearer) = new_key(&shared.runtime, Role::Admin, "", None);
        let mut tenant = Tenant {
            keys: vec![key.clone()],
            quotas: shared.options.tenant_quotas,
            ceilings: shared.options.tenant_ceilings,
            egress: egress.clone(),
            ..Tenant::new(id, &name, 1, secret.clone())
        };
        set_ceilings(&mut tenant, &ceilings);
        set_quotas(&mut tenant, &quotas)?;
        tenant.generations.clear();
        tenant.generations.push(tenant.pollers_needed(shared.options.tenant_pollers));
        let made = api::TenantMade {
            tenant: tenant_of(&tenant),
            key: api::KeyMade { key: key_of(&key), secret: api::Secret(bearer) },
            signing_secret: secret_made(&secret, text),
        };
        let act = Act { actor: &operator.id, action: "tenant.create", subject: name.clone() };
        if put(shared, tenant, &act).await? {
            return Ok(answer::json(StatusCode::CREATED, &made));
        }
    }
    Err(refuse(Kind::StoreUnavailable, "others keep making tenants; nothing was done, send it again"))
}

pub(super) async fn list(shared: &Shared, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    operator(shared, headers)?;
    let mut tenants: Vec<api::Tenant> = shared.tenants.all().await?.iter().map(tenant_of).collect();
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(answer::json(StatusCode::OK, &api::TenantList { tenants }))
}

pub(super) async fn get(shared: &Shared, name: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let (tenant, _) = administered(shared, name, headers)?;
    Ok(answer::json(StatusCode::OK, &tenant_of(&tenant)))
}

/// By an operator: what the tenant may use, how high it may set that, and where its callbacks may go.
pub(super) async fn patch(shared: &Shared, name: &str, request: Request) -> Result<Response<Body>, Refused> {
    let (head, body) = request.into_parts();
    let operator = operator(shared, &head.headers)?;
    let tenant = shared.tenants.named(name).ok_or_else(not_found)?;
    check_content_type(&head.headers, &["application/merge-patch+json", "application/json"])?;
    let settings::Patch { quotas, ceilings, egress } = parse(&collect(shared, &head.headers, body).await?)?;
    let changed = settings::change_settings(shared, &tenant, &operator, "tenant.update", |tenant| {
        settings::merge_egress(tenant, &egress)?;
        set_ceilings(tenant, &ceilings);
        set_quotas(tenant, &quotas)
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &tenant_of(&changed)))
}

pub(super) async fn create_key(shared: &Shared, name: &str, request: Request) -> Result<Response<Body>, Refused> {
    let (head, body) = request.into_parts();
    let (tenant, actor) = administered(shared, name, &head.headers)?;
    let asked: api::KeyRequest = read(shared, &head.headers, body).await?;
    let role = role_from(asked.role);
    if (role == Role::Operator) != (tenant.id == Tenant::OPERATOR) {
        let detail = "the role `operator` is for keys of the tenant `operator`, which have no other";
        return Err(refuse(Kind::InvalidRequest, detail));
    }
    if asked.name.len() > KEY_NAME_BYTES_MAX {
        return Err(refuse(Kind::InvalidRequest, format!("a key's name has at most {KEY_NAME_BYTES_MAX} bytes")));
    }
    let expires_at = asked.expires_at.map(|end| Timestamp::from_millis(end.0));
    if expires_at.is_some_and(|end| end <= shared.runtime.now()) {
        return Err(refuse(Kind::InvalidRequest, "`expires_at` is in the past"));
    }
    let (key, bearer) = new_key(&shared.runtime, role, &asked.name, expires_at);
    let made = api::KeyMade { key: key_of(&key), secret: api::Secret(bearer) };
    change(shared, tenant.id, &actor.id, "key.create", |tenant| {
        if tenant.keys.len() >= KEYS_MAX {
            return Err(refuse(Kind::TooMany, format!("a tenant has at most {KEYS_MAX} keys; revoke one first")));
        }
        tenant.keys.push(key.clone());
        Ok((key.id.clone(), ()))
    })
    .await?;
    Ok(answer::json(StatusCode::CREATED, &made))
}

pub(super) async fn keys(shared: &Shared, name: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let (tenant, _) = administered(shared, name, headers)?;
    let keys = tenant.keys.iter().map(key_of).collect();
    Ok(answer::json(StatusCode::OK, &api::KeyList { keys }))
}

pub(super) async fn revoke_key(
    shared: &Shared,
    name: &str,
    key_id: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refused> {
    let (tenant, actor) = administered(shared, name, headers)?;
    let revoked = change(shared, tenant.id, &actor.id, "key.revoke", |tenant| {
        let known = tenant.keys.iter().position(|key| key.id == key_id);
        let at = known.ok_or_else(|| refuse(Kind::KeyNotFound, "the tenant has no key of this id"))?;
        let key = tenant.keys.remove(at);
        if tenant.id == Tenant::OPERATOR && tenant.keys.iter().all(|key| key.expires_at.is_some()) {
            let detail = "nobody could make another one day; make one that does not expire before you revoke this";
            return Err(refuse(Kind::LastOne, detail));
        }
        Ok((key.id.clone(), key))
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &key_of(&revoked)))
}

pub(super) async fn create_secret(shared: &Shared, name: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let (tenant, actor) = administered(shared, name, headers)?;
    if tenant.id == Tenant::OPERATOR {
        return Err(refuse(Kind::InvalidRequest, "operators have no callbacks to sign"));
    }
    let (secret, text) = new_signing_secret(&shared.runtime);
    change(shared, tenant.id, &actor.id, "signing_secret.create", |tenant| {
        if tenant.signing_secrets.len() >= SIGNING_SECRETS_MAX {
            return Err(refuse(
                Kind::TooMany,
                format!("{SIGNING_SECRETS_MAX} are live; delete the one that no receiver checks any more"),
            ));
        }
        tenant.signing_secrets.insert(0, secret.clone());
        Ok((secret.id.clone(), ()))
    })
    .await?;
    Ok(answer::json(StatusCode::CREATED, &secret_made(&secret, text)))
}

pub(super) async fn secrets(shared: &Shared, name: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let (tenant, _) = administered(shared, name, headers)?;
    let signing_secrets = tenant.signing_secrets.iter().map(secret_of).collect();
    Ok(answer::json(StatusCode::OK, &api::SigningSecretList { signing_secrets }))
}

pub(super) async fn delete_secret(
    shared: &Shared,
    name: &str,
    secret_id: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refused> {
    let (tenant, actor) = administered(shared, name, headers)?;
    let deleted = change(shared, tenant.id, &actor.id, "signing_secret.delete", |tenant| {
        let known = tenant.signing_secrets.iter().position(|secret| secret.id == secret_id);
        let at = known.ok_or_else(|| refuse(Kind::KeyNotFound, "the tenant has no signing secret of this id"))?;
        if tenant.signing_secrets.len() == 1 {
            return Err(refuse(Kind::LastOne, "callbacks are always signed; make another before you delete this"));
        }
        let secret = tenant.signing_secrets.remove(at);
        Ok((secret.id.clone(), secret))
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &secret_of(&deleted)))
}

pub(super) async fn audit(
    shared: &Shared,
    name: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refused> {
    let (tenant, _) = administered(shared, name, headers)?;
    let page = Page::parse(query, false, |token| token.parse::<u64>().ok())?;
    let found = shared.tenants.audit(tenant.id, page.after.unwrap_or(0), page.limit + 1).await?;
    let entries: Vec<api::AuditEntry> = found.iter().take(page.limit).map(entry_of).collect();
    let last = entries.last().filter(|_| found.len() > page.limit);
    let next_page_token = last.map(|entry| entry.version.to_string());
    Ok(answer::json(StatusCode::OK, &api::AuditPage { entries, next_page_token }))
}

/// A small body.
pub(super) async fn read<T: DeserializeOwned>(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<T, Refused> {
    check_content_type(headers, &["application/json"])?;
    parse(&collect(shared, headers, body).await?)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    // Fields by their places would be taken, too.
    if bytes.trim_ascii_start().first().is_some_and(|first| b"[\"-0123456789tfn".contains(first)) {
        return Err(refuse(Kind::InvalidRequest, "the body is to be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => refuse(Kind::InvalidRequest, error.to_string()),
        _ => refuse(Kind::MalformedJson, format!("{error}; send one JSON object in UTF-8")),
    })
}

fn tenant_of(tenant: &Tenant) -> api::Tenant {
    let (api::QuotaSheet { quotas, ceilings }, egress) = (sheet_of(tenant), settings::egress_of(tenant));
    let (name, version, keys) = (tenant.name.clone(), tenant.version, tenant.keys.len());
    api::Tenant { name, version, keys, quotas, ceilings, egress }
}

fn key_of(key: &ApiKey) -> api::Key {
    api::Key {
        id: key.id.clone(),
        name: key.name.clone(),
        role: match key.role {
            Role::Reader => api::Role::Reader,
            Role::Writer => api::Role::Writer,
            Role::Admin => api::Role::Admin,
            Role::Operator => api::Role::Operator,
        },
        created_at: answer::time(key.created_at),
        expires_at: key.expires_at.map(answer::time),
    }
}

fn role_from(role: api::Role) -> Role {
    match role {
        api::Role::Reader => Role::Reader,
        api::Role::Writer => Role::Writer,
        api::Role::Admin => Role::Admin,
        api::Role::Operator => Role::Operator,
    }
}

fn secret_of(secret: &SigningSecret) -> api::SigningSecret {
    api::SigningSecret { id: secret.id.clone(), created_at: answer::time(secret.created_at) }
}

fn secret_made(secret: &SigningSecret, text: String) -> api::SigningSecretMade {
    api::SigningSecretMade { signing_secret: secret_of(secret), secret: api::Secret(text) }
}

fn entry_of(entry: &Audit) -> api::AuditEntry {
    let Audit { version, at, actor, action, subject } = entry.clone();
    api::AuditEntry { version, at: answer::time(at), actor, action, subject }
}

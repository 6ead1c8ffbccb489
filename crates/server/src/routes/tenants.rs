//! Tenants, their keys and their signing secrets: for operators, and for each tenant's admins.
//!
//! Every change is made to the tenant as it is now, under its next version, and told in its audit log.

pub(super) mod settings;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use domain::{ApiKey, Audit, Role, ScheduleId, SigningSecret, Tenant, TenantId, Timestamp};

use super::quotas::{set_ceilings, set_quotas, sheet_of};
use crate::answer;
use crate::auth::{Caller, NamedTenant, tenant_not_found};
use crate::credentials::{new_key, new_signing_secret};
use crate::extract::{Id, JsonBody};
use crate::query::Page;
use crate::refusal::{Answered, Code, Refused, refuse};
use crate::state::{App, AppState};

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
async fn fresh(app: &AppState, actor: &str) -> Result<Vec<Tenant>, Refused> {
    let tenants = app.tenants.all().await?;
    if tenants.iter().flat_map(|tenant| &tenant.keys).any(|key| key.id == actor) {
        return Ok(tenants);
    }
    Err(refuse(Code::InvalidCredentials, "the key was revoked"))
}

/// Changes the tenant as it is in the store.
pub(super) async fn change<T>(
    app: &AppState,
    id: TenantId,
    actor: &str,
    action: &'static str,
    mut edit: impl FnMut(&mut Tenant) -> Result<(String, T), Refused>,
) -> Result<T, Refused> {
    for _ in 0..TRIES {
        let tenants = fresh(app, actor).await?;
        let mut tenant = tenants.into_iter().find(|tenant| tenant.id == id).ok_or_else(tenant_not_found)?;
        let (subject, made) = edit(&mut tenant)?;
        tenant.version += 1;
        if put(app, tenant, &Act { actor, action, subject }).await? {
            return Ok(made);
        }
    }
    Err(refuse(Code::StoreUnavailable, "others keep changing the tenant; nothing was done, send it again"))
}

/// Whether nobody else was faster.
async fn put(app: &AppState, tenant: Tenant, act: &Act<'_>) -> Result<bool, Refused> {
    let entry = Audit::of(&tenant, app.runtime.now(), act.actor, act.action, &act.subject);
    Ok(app.tenants.put(tenant, entry).await?.is_ok())
}

pub(super) async fn create(
    State(app): App,
    Caller { key: operator, .. }: Caller,
    JsonBody(asked): JsonBody<api::TenantRequest>,
) -> Answered {
    let api::TenantRequest { name, quotas, ceilings, egress } = asked;
    let egress = settings::egress_from(&egress)?;
    if ScheduleId::new(&name).is_err() {
        return Err(refuse(Code::InvalidRequest, "a tenant's name is 1 to 128 of A-Z, a-z, 0-9, _ and -"));
    }
    for _ in 0..TRIES {
        let tenants = fresh(&app, &operator.id).await?;
        if name == OPERATOR || tenants.iter().any(|tenant| tenant.name == name) {
            return Err(refuse(Code::TenantExists, "choose another name"));
        }
        let id = TenantId(tenants.iter().map(|tenant| tenant.id.0).max().unwrap_or(0) + 1);
        let (secret, text) = new_signing_secret(&app.runtime);
        let (key, bearer) = new_key(&app.runtime, Role::Admin, "", None);
        let mut tenant = Tenant {
            keys: vec![key.clone()],
            quotas: app.options.tenant_quotas,
            ceilings: app.options.tenant_ceilings,
            egress: egress.clone(),
            ..Tenant::new(id, &name, 1, secret.clone())
        };
        set_ceilings(&mut tenant, &ceilings);
        set_quotas(&mut tenant, &quotas)?;
        tenant.generations.clear();
        tenant.generations.push(tenant.pollers_needed(app.options.tenant_pollers));
        let made = api::TenantMade {
            tenant: tenant_of(&tenant),
            key: api::KeyMade { key: key_of(&key), secret: api::Secret(bearer) },
            signing_secret: secret_made(&secret, text),
        };
        let act = Act { actor: &operator.id, action: "tenant.create", subject: name.clone() };
        if put(&app, tenant, &act).await? {
            return Ok(answer::json(StatusCode::CREATED, &made));
        }
    }
    Err(refuse(Code::StoreUnavailable, "others keep making tenants; nothing was done, send it again"))
}

pub(super) async fn list(State(app): App) -> Answered {
    let mut tenants: Vec<api::Tenant> = app.tenants.all().await?.iter().map(tenant_of).collect();
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(answer::json(StatusCode::OK, &api::TenantList { tenants }))
}

pub(super) async fn get(Caller { tenant, .. }: Caller) -> Response<Body> {
    answer::json(StatusCode::OK, &tenant_of(&tenant))
}

/// By an operator: what the tenant may use, how high it may set that, and where its callbacks may go.
pub(super) async fn patch(
    State(app): App,
    Caller { key: operator, .. }: Caller,
    NamedTenant(tenant): NamedTenant,
    JsonBody(patch): JsonBody<settings::Patch>,
) -> Answered {
    let settings::Patch { quotas, ceilings, egress } = patch;
    let changed = settings::change_settings(&app, &tenant, &operator, "tenant.update", |tenant| {
        settings::merge_egress(tenant, &egress)?;
        set_ceilings(tenant, &ceilings);
        set_quotas(tenant, &quotas)
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &tenant_of(&changed)))
}

pub(super) async fn create_key(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    JsonBody(asked): JsonBody<api::KeyRequest>,
) -> Answered {
    let role = role_from(asked.role);
    if (role == Role::Operator) != (tenant.id == Tenant::OPERATOR) {
        let detail = "the role `operator` is for keys of the tenant `operator`, which have no other";
        return Err(refuse(Code::InvalidRequest, detail));
    }
    if asked.name.len() > KEY_NAME_BYTES_MAX {
        return Err(refuse(Code::InvalidRequest, format!("a key's name has at most {KEY_NAME_BYTES_MAX} bytes")));
    }
    let expires_at = asked.expires_at.map(|end| Timestamp::from_millis(end.0));
    if expires_at.is_some_and(|end| end <= app.runtime.now()) {
        return Err(refuse(Code::InvalidRequest, "`expires_at` is in the past"));
    }
    let (key, bearer) = new_key(&app.runtime, role, &asked.name, expires_at);
    let made = api::KeyMade { key: key_of(&key), secret: api::Secret(bearer) };
    change(&app, tenant.id, &actor.id, "key.create", |tenant| {
        if tenant.keys.len() >= KEYS_MAX {
            return Err(refuse(Code::TooMany, format!("a tenant has at most {KEYS_MAX} keys; revoke one first")));
        }
        tenant.keys.push(key.clone());
        Ok((key.id.clone(), ()))
    })
    .await?;
    Ok(answer::json(StatusCode::CREATED, &made))
}

pub(super) async fn keys(Caller { tenant, .. }: Caller) -> Response<Body> {
    let keys = tenant.keys.iter().map(key_of).collect();
    answer::json(StatusCode::OK, &api::KeyList { keys })
}

pub(super) async fn revoke_key(State(app): App, Caller { tenant, key: actor }: Caller, Id(key_id): Id) -> Answered {
    let revoked = change(&app, tenant.id, &actor.id, "key.revoke", |tenant| {
        let known = tenant.keys.iter().position(|key| key.id == key_id);
        let at = known.ok_or_else(|| refuse(Code::KeyNotFound, "the tenant has no key of this id"))?;
        let key = tenant.keys.remove(at);
        if tenant.id == Tenant::OPERATOR && tenant.keys.iter().all(|key| key.expires_at.is_some()) {
            let detail = "nobody could make another one day; make one that does not expire before you revoke this";
            return Err(refuse(Code::LastOne, detail));
        }
        Ok((key.id.clone(), key))
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &key_of(&revoked)))
}

pub(super) async fn create_secret(State(app): App, Caller { tenant, key: actor }: Caller) -> Answered {
    if tenant.id == Tenant::OPERATOR {
        return Err(refuse(Code::InvalidRequest, "operators have no callbacks to sign"));
    }
    let (secret, text) = new_signing_secret(&app.runtime);
    change(&app, tenant.id, &actor.id, "signing_secret.create", |tenant| {
        if tenant.signing_secrets.len() >= SIGNING_SECRETS_MAX {
            return Err(refuse(
                Code::TooMany,
                format!("{SIGNING_SECRETS_MAX} are live; delete the one that no receiver checks any more"),
            ));
        }
        tenant.signing_secrets.insert(0, secret.clone());
        Ok((secret.id.clone(), ()))
    })
    .await?;
    Ok(answer::json(StatusCode::CREATED, &secret_made(&secret, text)))
}

pub(super) async fn secrets(Caller { tenant, .. }: Caller) -> Response<Body> {
    let signing_secrets = tenant.signing_secrets.iter().map(secret_of).collect();
    answer::json(StatusCode::OK, &api::SigningSecretList { signing_secrets })
}

pub(super) async fn delete_secret(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    Id(secret_id): Id,
) -> Answered {
    let deleted = change(&app, tenant.id, &actor.id, "signing_secret.delete", |tenant| {
        let known = tenant.signing_secrets.iter().position(|secret| secret.id == secret_id);
        let at = known.ok_or_else(|| refuse(Code::KeyNotFound, "the tenant has no signing secret of this id"))?;
        if tenant.signing_secrets.len() == 1 {
            return Err(refuse(Code::LastOne, "callbacks are always signed; make another before you delete this"));
        }
        let secret = tenant.signing_secrets.remove(at);
        Ok((secret.id.clone(), secret))
    })
    .await?;
    Ok(answer::json(StatusCode::OK, &secret_of(&deleted)))
}

pub(super) async fn audit(State(app): App, Caller { tenant, .. }: Caller, RawQuery(query): RawQuery) -> Answered {
    let page = Page::parse(query.as_deref(), false, |token| token.parse::<u64>().ok())?;
    let found = app.tenants.audit(tenant.id, page.after.unwrap_or(0), page.limit + 1).await?;
    let entries: Vec<api::AuditEntry> = found.iter().take(page.limit).map(entry_of).collect();
    let last = entries.last().filter(|_| found.len() > page.limit);
    let next_page_token = last.map(|entry| entry.version.to_string());
    Ok(answer::json(StatusCode::OK, &api::AuditPage { entries, next_page_token }))
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

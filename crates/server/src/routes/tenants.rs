//! Routes about tenants, their keys and their signing secrets, for operators and for each tenant's admins.
//!
//! Every change applies to the current state of the tenant, increments its version, and adds an entry to its audit log.
//!
//! docs/decisions/0064-change-tenants-by-version.md gives the reasons for the design.

pub(super) mod settings;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use domain::{ApiKey, Audit, Role, ScheduleId, SigningSecret, Tenant, TenantId, Timestamp};
use store::Usage;

use super::quotas::{set_ceilings, set_quotas, sheet_of};
use crate::auth::{Caller, tenant_not_found};
use crate::credentials::{new_key, new_signing_secret};
use crate::extract::{Id, JsonBody};
use crate::query::Page;
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::state::{App, AppState};
use crate::wire;

/// Name of [`Tenant::OPERATOR`].
const OPERATOR: &str = "operator";
const KEYS_MAX: usize = 1_000;
const KEY_NAME_BYTES_MAX: usize = 128;
/// Maximum number of a tenant's signing secrets: the current secret, and the secret that replaces it.
const SIGNING_SECRETS_MAX: usize = 2;
/// Maximum number of times that the server tries a change of a tenant if concurrent changes of this tenant conflict.
const TRIES: usize = 10;

/// Action for the audit log, with its actor and the object that the action changes.
struct AuditedAction<'a> {
    actor: &'a str,
    action: &'static str,
    subject: String,
}

/// Reads all tenants from the store, and checks that the actor's key still exists. An admin may have revoked the key
/// through another member.
async fn stored_tenants(app: &AppState, actor: &str) -> Result<Vec<Tenant>, Rejected> {
    let tenants = app.tenants.all().await?;
    if tenants.iter().flat_map(|tenant| &tenant.keys).any(|key| key.id == actor) {
        return Ok(tenants);
    }
    Err(reject(Code::InvalidCredentials, "the API key was revoked; send the request with a valid key"))
}

/// Changes the stored state of the tenant.
pub(super) async fn change<T>(
    app: &AppState,
    id: TenantId,
    actor: &str,
    action: &'static str,
    mut edit: impl FnMut(&mut Tenant) -> Result<(String, T), Rejected>,
) -> Result<T, Rejected> {
    for _ in 0..TRIES {
        let tenants = stored_tenants(app, actor).await?;
        let mut tenant = tenants.into_iter().find(|tenant| tenant.id == id).ok_or_else(tenant_not_found)?;
        let (subject, created) = edit(&mut tenant)?;
        tenant.version += 1;
        if put(app, tenant, &AuditedAction { actor, action, subject }).await? {
            return Ok(created);
        }
    }
    Err(reject(Code::StoreUnavailable, "other requests changed the tenant; this request had no effect; send it again"))
}

/// Writes the changed tenant to the store. Returns false, and writes nothing, if another request has changed the tenant
/// since the caller read it.
async fn put(app: &AppState, tenant: Tenant, audited: &AuditedAction<'_>) -> Result<bool, Rejected> {
    let entry = Audit::of(&tenant, app.runtime.now(), audited.actor, audited.action, &audited.subject);
    Ok(app.tenants.put(tenant, entry).await?.is_ok())
}

pub(super) async fn create(
    State(app): App,
    Caller { key: operator, .. }: Caller,
    JsonBody(request): JsonBody<api::TenantRequest>,
) -> HandlerResult {
    let api::TenantRequest { name, quotas, ceilings, egress } = request;
    let egress = settings::egress_from(&egress)?;
    if ScheduleId::new(&name).is_err() {
        return Err(reject(
            Code::InvalidRequest,
            "a tenant's name must have 1 to 128 characters out of A-Z, a-z, 0-9, _ and -",
        ));
    }
    for _ in 0..TRIES {
        let tenants = stored_tenants(&app, &operator.id).await?;
        if name == OPERATOR || tenants.iter().any(|tenant| tenant.name == name) {
            return Err(reject(Code::TenantExists, "choose another name"));
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
        set_ceilings(&mut tenant, &ceilings)?;
        set_quotas(&mut tenant, &quotas)?;
        tenant.generations.clear();
        tenant.generations.push(tenant.pollers_needed(app.options.tenant_pollers));
        let created = api::TenantCreated {
            tenant: tenant_of(&tenant, &Usage::default()),
            key: api::KeyCreated { key: key_of(&key), secret: api::Secret(bearer) },
            signing_secret: created_secret(&secret, text),
        };
        let audited = AuditedAction { actor: &operator.id, action: "tenant.create", subject: name.clone() };
        if put(&app, tenant, &audited).await? {
            return Ok(wire::json(StatusCode::CREATED, &created));
        }
    }
    Err(reject(Code::StoreUnavailable, "other requests changed the tenants; this request had no effect; send it again"))
}

pub(super) async fn list(State(app): App) -> HandlerResult {
    let tenants = app.tenants.all().await?;
    let usages = app.tenants.usages(tenants.iter().map(|tenant| tenant.id).collect()).await?;
    let mut tenants: Vec<_> = tenants.iter().zip(&usages).map(|(tenant, usage)| tenant_of(tenant, usage)).collect();
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(wire::json(StatusCode::OK, &api::TenantList { tenants }))
}

pub(super) async fn get(State(app): App, Caller { tenant, .. }: Caller) -> HandlerResult {
    let usage = app.tenants.usage(tenant.id).await?;
    Ok(wire::json(StatusCode::OK, &tenant_of(&tenant, &usage)))
}

/// Changes the tenant's quotas, ceilings and egress policy at the request of an operator, or the setting `excerpts` at
/// the request of an operator or of an admin of the tenant.
pub(super) async fn patch(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    JsonBody(patch): JsonBody<settings::Patch>,
) -> HandlerResult {
    patch.authorize(&actor)?;
    let settings::Patch { quotas, ceilings, egress, excerpts } = patch;
    // If the usage is not readable, the request fails before it changes anything.
    let usage = app.tenants.usage(tenant.id).await?;
    let changed = settings::change_settings(&app, &tenant, &actor, "tenant.update", |tenant| {
        settings::merge_egress(tenant, &egress)?;
        tenant.excerpts = excerpts.unwrap_or(tenant.excerpts);
        set_ceilings(tenant, &ceilings)?;
        set_quotas(tenant, &quotas)
    })
    .await?;
    Ok(wire::json(StatusCode::OK, &tenant_of(&changed, &usage)))
}

pub(super) async fn create_key(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    JsonBody(request): JsonBody<api::KeyRequest>,
) -> HandlerResult {
    let role = role_from(request.role);
    if (role == Role::Operator) != (tenant.id == Tenant::OPERATOR) {
        let detail = "keys of the tenant `operator` must have the role `operator`, and keys of other tenants must not";
        return Err(reject(Code::InvalidRequest, detail));
    }
    if request.name.len() > KEY_NAME_BYTES_MAX {
        return Err(reject(
            Code::InvalidRequest,
            format!("the key's name exceeds the limit of {KEY_NAME_BYTES_MAX} bytes"),
        ));
    }
    let expires_at = request.expires_at.map(|end| Timestamp::from_millis(end.0));
    if expires_at.is_some_and(|end| end <= app.runtime.now()) {
        return Err(reject(Code::InvalidRequest, "`expires_at` must be in the future"));
    }
    let (key, bearer) = new_key(&app.runtime, role, &request.name, expires_at);
    let created = api::KeyCreated { key: key_of(&key), secret: api::Secret(bearer) };
    change(&app, tenant.id, &actor.id, "key.create", |tenant| {
        if tenant.keys.len() >= KEYS_MAX {
            return Err(reject(Code::TooMany, format!("the tenant already has {KEYS_MAX} keys; revoke a key first")));
        }
        tenant.keys.push(key.clone());
        Ok((key.id.clone(), ()))
    })
    .await?;
    Ok(wire::json(StatusCode::CREATED, &created))
}

pub(super) async fn keys(Caller { tenant, .. }: Caller) -> Response<Body> {
    let keys = tenant.keys.iter().map(key_of).collect();
    wire::json(StatusCode::OK, &api::KeyList { keys })
}

pub(super) async fn revoke_key(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    Id(key_id): Id,
) -> HandlerResult {
    let revoked = change(&app, tenant.id, &actor.id, "key.revoke", |tenant| {
        let known = tenant.keys.iter().position(|key| key.id == key_id);
        let at = known.ok_or_else(|| reject(Code::KeyNotFound, "the tenant has no key with this id"))?;
        let key = tenant.keys.remove(at);
        if tenant.id == Tenant::OPERATOR && tenant.keys.iter().all(|key| key.expires_at.is_some()) {
            let detail = "this is the last operator key without an expiry; create another such key first";
            return Err(reject(Code::LastOne, detail));
        }
        Ok((key.id.clone(), key))
    })
    .await?;
    Ok(wire::json(StatusCode::OK, &key_of(&revoked)))
}

pub(super) async fn create_secret(State(app): App, Caller { tenant, key: actor }: Caller) -> HandlerResult {
    if tenant.id == Tenant::OPERATOR {
        return Err(reject(
            Code::InvalidRequest,
            "the tenant `operator` sends no callbacks, and therefore has no signing secrets",
        ));
    }
    let (secret, text) = new_signing_secret(&app.runtime);
    change(&app, tenant.id, &actor.id, "signing_secret.create", |tenant| {
        if tenant.signing_secrets.len() >= SIGNING_SECRETS_MAX {
            return Err(reject(
                Code::TooMany,
                format!(
                    "the tenant already has {SIGNING_SECRETS_MAX} signing secrets; delete the secret that is not in use"
                ),
            ));
        }
        tenant.signing_secrets.insert(0, secret.clone());
        Ok((secret.id.clone(), ()))
    })
    .await?;
    Ok(wire::json(StatusCode::CREATED, &created_secret(&secret, text)))
}

pub(super) async fn secrets(Caller { tenant, .. }: Caller) -> Response<Body> {
    let signing_secrets = tenant.signing_secrets.iter().map(secret_of).collect();
    wire::json(StatusCode::OK, &api::SigningSecretList { signing_secrets })
}

pub(super) async fn delete_secret(
    State(app): App,
    Caller { tenant, key: actor }: Caller,
    Id(secret_id): Id,
) -> HandlerResult {
    let deleted = change(&app, tenant.id, &actor.id, "signing_secret.delete", |tenant| {
        let known = tenant.signing_secrets.iter().position(|secret| secret.id == secret_id);
        let at = known.ok_or_else(|| reject(Code::KeyNotFound, "the tenant has no signing secret with this id"))?;
        if tenant.signing_secrets.len() == 1 {
            return Err(reject(
                Code::LastOne,
                "this is the tenant's last signing secret; create another secret before you delete it",
            ));
        }
        let secret = tenant.signing_secrets.remove(at);
        Ok((secret.id.clone(), secret))
    })
    .await?;
    Ok(wire::json(StatusCode::OK, &secret_of(&deleted)))
}

pub(super) async fn audit(State(app): App, Caller { tenant, .. }: Caller, RawQuery(query): RawQuery) -> HandlerResult {
    let page = Page::parse(query.as_deref(), false, |token| token.parse::<u64>().ok())?;
    let found = app.tenants.audit(tenant.id, page.after.unwrap_or(0), page.limit + 1).await?;
    let entries: Vec<api::AuditEntry> = found.iter().take(page.limit).map(entry_of).collect();
    let last = entries.last().filter(|_| found.len() > page.limit);
    let next_page_token = last.map(|entry| entry.version.to_string());
    Ok(wire::json(StatusCode::OK, &api::AuditPage { entries, next_page_token }))
}

fn tenant_of(tenant: &Tenant, usage: &Usage) -> api::Tenant {
    let api::QuotaSheet { quotas, ceilings, usage } = sheet_of(tenant, usage);
    let egress = settings::egress_of(tenant);
    let (name, version, keys) = (tenant.name.clone(), tenant.version, tenant.keys.len());
    api::Tenant { name, version, keys, quotas, ceilings, egress, excerpts: tenant.excerpts, usage }
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
        created_at: wire::time(key.created_at),
        expires_at: key.expires_at.map(wire::time),
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
    api::SigningSecret { id: secret.id.clone(), created_at: wire::time(secret.created_at) }
}

fn created_secret(secret: &SigningSecret, text: String) -> api::SigningSecretCreated {
    api::SigningSecretCreated { signing_secret: secret_of(secret), secret: api::Secret(text) }
}

fn entry_of(entry: &Audit) -> api::AuditEntry {
    let Audit { version, at, actor, action, subject } = entry.clone();
    api::AuditEntry { version, at: wire::time(at), actor, action, subject }
}

//! The table of routes. What each does is in the modules below; what is true of all of them is here.

mod batch;
mod changes;
mod dry_run;
mod listing;
mod once;
mod openapi;
mod operations;
mod quotas;
mod runs;
mod schedules;
mod tenants;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Response};
use axum::routing::{any, delete, get, post};

use crate::metrics::Route;
use crate::refusal::{Kind, Refused, refuse};
use crate::shared::Shared;

pub(crate) use once::PATTERN as IDEMPOTENCY_KEY;
pub(crate) use runs::PAGE_LIMIT_MAX;

type App = State<Arc<Shared>>;
type Id = Result<Path<String>, PathRejection>;
/// A tenant's name, and the id of something of it.
type IdOfTenant = Result<Path<(String, String)>, PathRejection>;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let router = match shared.options.answers_users {
        true => for_users(),
        false => Router::new().route("/v1/{*rest}", any(not_for_users)),
    };
    router
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .with_state(shared)
}

fn for_users() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/schedules", get(list).post(create))
        .route("/v1/schedules:batch", post(batch))
        .route("/v1/schedules/{id}", get(read).put(put).patch(patch).delete(cancel))
        .route("/v1/schedules/{id}/runs", get(schedule_runs))
        .route("/v1/runs", get(runs))
        .route("/v1/runs/{id}/redrive", post(redrive))
        .route("/v1/quotas", get(quotas).patch(patch_quotas))
        .route("/v1/tenants", get(tenants).post(create_tenant))
        .route("/v1/tenants/{tenant}", get(tenant).patch(patch_tenant))
        .route("/v1/tenants/{tenant}/keys", get(keys).post(create_key))
        .route("/v1/tenants/{tenant}/keys/{id}", delete(revoke_key))
        .route("/v1/tenants/{tenant}/signing-secrets", get(secrets).post(create_secret))
        .route("/v1/tenants/{tenant}/signing-secrets/{id}", delete(delete_secret))
        .route("/v1/tenants/{tenant}/audit", get(audit))
        .route("/openapi.json", get(document))
        .route("/docs", get(page))
        .route("/docs/{part}", get(page_part))
}

async fn create_tenant(State(shared): App, request: Request) -> Response<Body> {
    shared.answer(Route::CreateTenant, tenants::create(&shared, request)).await
}

async fn tenants(State(shared): App, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Tenants, tenants::list(&shared, &headers)).await
}

async fn tenant(State(shared): App, name: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Tenant, tenants::get(&shared, id_text(&name), &headers)).await
}

async fn patch_tenant(State(shared): App, name: Id, request: Request) -> Response<Body> {
    shared.answer(Route::PatchTenant, tenants::patch(&shared, id_text(&name), request)).await
}

async fn quotas(State(shared): App, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Quotas, async { quotas::get(&shared, &headers) }).await
}

async fn patch_quotas(State(shared): App, request: Request) -> Response<Body> {
    shared.answer(Route::PatchQuotas, quotas::patch(&shared, request)).await
}

async fn create_key(State(shared): App, name: Id, request: Request) -> Response<Body> {
    shared.answer(Route::CreateKey, tenants::create_key(&shared, id_text(&name), request)).await
}

async fn keys(State(shared): App, name: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Keys, tenants::keys(&shared, id_text(&name), &headers)).await
}

async fn revoke_key(State(shared): App, of: IdOfTenant, headers: HeaderMap) -> Response<Body> {
    let (name, id) = id_of_tenant(&of);
    shared.answer(Route::RevokeKey, tenants::revoke_key(&shared, name, id, &headers)).await
}

async fn create_secret(State(shared): App, name: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::CreateSecret, tenants::create_secret(&shared, id_text(&name), &headers)).await
}

async fn secrets(State(shared): App, name: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Secrets, tenants::secrets(&shared, id_text(&name), &headers)).await
}

async fn delete_secret(State(shared): App, of: IdOfTenant, headers: HeaderMap) -> Response<Body> {
    let (name, id) = id_of_tenant(&of);
    shared.answer(Route::DeleteSecret, tenants::delete_secret(&shared, name, id, &headers)).await
}

async fn audit(State(shared): App, name: Id, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Audit, tenants::audit(&shared, id_text(&name), query.as_deref(), &headers)).await
}

async fn create(State(shared): App, request: Request) -> Response<Body> {
    shared.answer(Route::Create, schedules::create(&shared, request)).await
}

async fn list(State(shared): App, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::List, listing::list(&shared, query.as_deref(), &headers)).await
}

async fn batch(State(shared): App, request: Request) -> Response<Body> {
    shared.answer(Route::Batch, batch::batch(shared.clone(), request)).await
}

async fn read(State(shared): App, id: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Get, schedules::get(&shared, id_text(&id), &headers)).await
}

async fn put(State(shared): App, id: Id, request: Request) -> Response<Body> {
    shared.answer(Route::Put, changes::put(&shared, id_text(&id), request)).await
}

async fn patch(State(shared): App, id: Id, request: Request) -> Response<Body> {
    shared.answer(Route::Patch, changes::patch(&shared, id_text(&id), request)).await
}

async fn cancel(State(shared): App, id: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Cancel, changes::cancel(&shared, id_text(&id), &headers)).await
}

async fn schedule_runs(State(shared): App, id: Id, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::ScheduleRuns, runs::of_schedule(&shared, id_text(&id), query.as_deref(), &headers)).await
}

async fn runs(State(shared): App, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Runs, runs::dead_letters(&shared, query.as_deref(), &headers)).await
}

async fn redrive(State(shared): App, id: Id, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Redrive, runs::redrive(&shared, id_text(&id), &headers)).await
}

async fn document(State(shared): App) -> Response<Body> {
    shared.answer(Route::Document, async { Ok(openapi::document(&shared)) }).await
}

async fn page(State(shared): App) -> Response<Body> {
    shared.answer(Route::Page, async { Ok(openapi::page()) }).await
}

async fn page_part(State(shared): App, part: Id) -> Response<Body> {
    shared.answer(Route::Page, async { openapi::asset(id_text(&part)) }).await
}

async fn health(State(shared): App) -> Response<Body> {
    shared.answer(Route::Health, async { Ok(operations::health()) }).await
}

async fn ready(State(shared): App) -> Response<Body> {
    shared.answer(Route::Ready, async { operations::ready(&shared) }).await
}

async fn metrics(State(shared): App) -> Response<Body> {
    shared.answer(Route::Metrics, async { Ok(operations::metrics(&shared)) }).await
}

async fn not_for_users(State(shared): App) -> Response<Body> {
    let refused = refuse(Kind::RouteNotFound, "this member answers no users; send requests to one with the role `api`");
    shared.answer(Route::Unknown, async { Err(refused) }).await
}

async fn unknown_route(State(shared): App, request: Request) -> Response<Body> {
    let path: String = request.uri().path().chars().take(128).collect();
    let refused = refuse(Kind::RouteNotFound, format!("{path:?} is no path of this API; docs/http-api.md lists them"));
    shared.answer(Route::Unknown, async { Err(refused) }).await
}

async fn unknown_method(State(shared): App, request: Request) -> Response<Body> {
    let method: String = request.method().as_str().chars().take(32).collect();
    let refused = refuse(Kind::MethodNotAllowed, format!("{method} is not taken here; the Allow header says what is"));
    shared.answer(Route::Unknown, async { Err(refused) }).await
}

/// A path's id. One that is not even text is nobody's, as the empty one.
fn id_text(id: &Id) -> &str {
    id.as_ref().map_or("", |Path(id)| id)
}

fn id_of_tenant(of: &IdOfTenant) -> (&str, &str) {
    of.as_ref().map_or(("", ""), |Path((name, id))| (name, id))
}

/// Refuses a body that says that it is something else; one that says nothing is taken at its word.
fn check_content_type(headers: &HeaderMap, taken: &[&str]) -> Result<(), Refused> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if taken.iter().any(|taken| essence.eq_ignore_ascii_case(taken)) {
        return Ok(());
    }
    let found: String = essence.chars().take(64).collect();
    let detail = format!("the body is said to be {found:?}; send `Content-Type: {}`", taken.join("` or `"));
    Err(refuse(Kind::UnsupportedMediaType, detail))
}

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

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, RawQuery, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response};
use axum::routing::{any, delete, get, post};

use crate::metrics::Route;
use crate::refusal::{Kind, Refused, refuse, refuse_fields};
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

async fn create_tenant(State(shared): App, plain: Plain, request: Request) -> Response<Body> {
    shared
        .answer(Route::CreateTenant, async {
            plain.0?;
            tenants::create(&shared, request).await
        })
        .await
}

async fn tenants(State(shared): App, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Tenants, async {
            plain.0?;
            tenants::list(&shared, &headers).await
        })
        .await
}

async fn tenant(State(shared): App, name: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Tenant, async {
            plain.0?;
            tenants::get(&shared, id_text(&name), &headers).await
        })
        .await
}

async fn patch_tenant(State(shared): App, name: Id, plain: Plain, request: Request) -> Response<Body> {
    shared
        .answer(Route::PatchTenant, async {
            plain.0?;
            tenants::patch(&shared, id_text(&name), request).await
        })
        .await
}

async fn quotas(State(shared): App, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Quotas, async { plain.0.and_then(|()| quotas::get(&shared, &headers)) }).await
}

async fn patch_quotas(State(shared): App, plain: Plain, request: Request) -> Response<Body> {
    shared
        .answer(Route::PatchQuotas, async {
            plain.0?;
            quotas::patch(&shared, request).await
        })
        .await
}

async fn create_key(State(shared): App, name: Id, plain: Plain, request: Request) -> Response<Body> {
    shared
        .answer(Route::CreateKey, async {
            plain.0?;
            tenants::create_key(&shared, id_text(&name), request).await
        })
        .await
}

async fn keys(State(shared): App, name: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Keys, async {
            plain.0?;
            tenants::keys(&shared, id_text(&name), &headers).await
        })
        .await
}

async fn revoke_key(State(shared): App, of: IdOfTenant, plain: Plain, headers: HeaderMap) -> Response<Body> {
    let (name, id) = id_of_tenant(&of);
    shared
        .answer(Route::RevokeKey, async {
            plain.0?;
            tenants::revoke_key(&shared, name, id, &headers).await
        })
        .await
}

async fn create_secret(State(shared): App, name: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::CreateSecret, async {
            plain.0?;
            tenants::create_secret(&shared, id_text(&name), &headers).await
        })
        .await
}

async fn secrets(State(shared): App, name: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Secrets, async {
            plain.0?;
            tenants::secrets(&shared, id_text(&name), &headers).await
        })
        .await
}

async fn delete_secret(State(shared): App, of: IdOfTenant, plain: Plain, headers: HeaderMap) -> Response<Body> {
    let (name, id) = id_of_tenant(&of);
    shared
        .answer(Route::DeleteSecret, async {
            plain.0?;
            tenants::delete_secret(&shared, name, id, &headers).await
        })
        .await
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

async fn batch(State(shared): App, plain: Plain, request: Request) -> Response<Body> {
    shared
        .answer(Route::Batch, async {
            plain.0?;
            batch::batch(shared.clone(), request).await
        })
        .await
}

async fn read(State(shared): App, id: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Get, async {
            plain.0?;
            schedules::get(&shared, id_text(&id), &headers).await
        })
        .await
}

async fn put(State(shared): App, id: Id, request: Request) -> Response<Body> {
    shared.answer(Route::Put, changes::put(&shared, id_text(&id), request)).await
}

async fn patch(State(shared): App, id: Id, request: Request) -> Response<Body> {
    shared.answer(Route::Patch, changes::patch(&shared, id_text(&id), request)).await
}

async fn cancel(State(shared): App, id: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Cancel, async {
            plain.0?;
            changes::cancel(&shared, id_text(&id), &headers).await
        })
        .await
}

async fn schedule_runs(State(shared): App, id: Id, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::ScheduleRuns, runs::of_schedule(&shared, id_text(&id), query.as_deref(), &headers)).await
}

async fn runs(State(shared): App, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    shared.answer(Route::Runs, runs::dead_letters(&shared, query.as_deref(), &headers)).await
}

async fn redrive(State(shared): App, id: Id, plain: Plain, headers: HeaderMap) -> Response<Body> {
    shared
        .answer(Route::Redrive, async {
            plain.0?;
            runs::redrive(&shared, id_text(&id), &headers).await
        })
        .await
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
    let refused =
        refuse(Kind::RouteNotFound, format!("{path:?} is no path of this API; /docs and /openapi.json list them"));
    shared.answer(Route::Unknown, async { Err(refused) }).await
}

async fn unknown_method(State(shared): App, request: Request) -> Response<Body> {
    let method: String = request.method().as_str().chars().take(32).collect();
    let refused = refuse(Kind::MethodNotAllowed, format!("{method} is not taken here; the Allow header says what is"));
    shared.answer(Route::Unknown, async { Err(refused) }).await
}

/// Of a route that takes no parameters: whether there are none. One that is not known must not be passed over, as somebody means
/// something by it.
struct Plain(Result<(), Refused>);

impl<S: Sync> FromRequestParts<S> for Plain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let Some(query) = parts.uri.query().filter(|query| !query.is_empty()) else { return Ok(Plain(Ok(()))) };
        let name: String = query.split(['=', '&']).next().unwrap_or_default().chars().take(64).collect();
        let error = runs::bad("query", "unknown_parameter", format!("{name:?} is no parameter here; there are none"));
        Ok(Plain(Err(refuse_fields(Kind::InvalidParameter, "the query cannot be used; see errors", vec![error]))))
    }
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

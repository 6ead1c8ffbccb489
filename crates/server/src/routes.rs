//! The table of routes: each entry has the method and path, the handler and the description of one route.
//!
//! The entry decides the label in metrics and spans, the keys that may send the request and the entry in the OpenAPI document.
//! Invariant: a handler of a route that needs a key runs only after the key was checked.

mod batch;
mod changes;
mod created;
mod dry_run;
mod listing;
mod once;
mod operations;
mod page;
mod quotas;
mod runs;
mod schedules;
mod tenants;

use std::future::ready;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{Method, Response};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{MethodRouter, any, on};
use bytes::Bytes;

use crate::auth;
use crate::extract::path_parameter;
use crate::openapi;
use crate::query;
use crate::refusal::{Code, Refused, refuse};
use crate::route::{
    Answer, Content, Needs, Parameter, Route, batch_lines, made, of, ok, operation, quota_numbers, schedule_patch,
    schedules as schedules_route, status, summary, summary_or_dry_run, tenants as tenants_route,
};
use crate::spans;
use crate::state::{App, AppState};
use Needs::{Admin, AdminOf, Operator, Reader, Writer};
use Parameter::{DeadLetter, DryRun, DueFrom, DueUntil, IdempotencyKey, IfMatch, IfNoneMatch, Label, Limit, PageToken};

const PAGE: &[Parameter] = &[Limit, PageToken];
/// Whatever can be done if the schedule is as it was read.
const CONDITIONS: &[Parameter] = &[IfMatch, IfNoneMatch];
const CHANGING: &[Parameter] = &[IfMatch, IfNoneMatch, DryRun];
const TAG: &[&str] = &["ETag"];
const PLACE: &[&str] = &["ETag", "Location"];

/// Of a schedule that is made or replaced.
const MAKING: &[Code] = &[
    Code::IdempotencyKeyReused,
    Code::InvalidSchedule,
    Code::NotUtf8,
    Code::QuotaExceeded,
    Code::RateExceeded,
    Code::ScheduleExists,
    Code::StorageFull,
];
/// Of a tenant's settings.
const SETTING: &[Code] = &[Code::InvalidRequest, Code::QuotaCeiling, Code::StorageFull];

pub(crate) fn router(app: Arc<AppState>) -> Router {
    let routes = Routes { app: app.clone(), router: Router::new(), documented: Vec::new() };
    let routes = of_operation(routes);
    let router = match app.options.answers_users {
        true => with_pages(of_tenants(of_schedules(routes))).router,
        false => routes.router.route("/v1/{*rest}", any(not_for_users)),
    };
    router.fallback(unknown_route).method_not_allowed_fallback(unknown_method).with_state(app)
}

fn of_schedules(routes: Routes) -> Routes {
    routes
        .add(
            schedules_route(
                "GET /v1/schedules",
                "List",
                Reader,
                "List schedules: all, or those of one state, of one label, or due within 24 hours",
                ok("A page, which may be short and yet not the last", of::<api::SchedulePage>),
            )
            .with(&[Parameter::State, Label, DueFrom, DueUntil, Limit, PageToken]),
            listing::list,
        )
        .add(
            schedules_route(
                "POST /v1/schedules",
                "Create",
                Writer,
                "Make a schedule",
                Answer { headers: PLACE, ..made("It is made", summary) },
            )
            .or(ok("What a dry run would make", of::<api::DryRun>))
            .with(&[DryRun, IdempotencyKey])
            .taking(of::<api::ScheduleRequest>)
            .refusing(MAKING),
            schedules::create,
        )
        .add(
            schedules_route(
                "POST /v1/schedules:batch",
                "Batch",
                Writer,
                "Make many schedules: one a line in, one result (`BatchLine`) a line out, in order",
                Answer { content: Content::Lines, ..ok("A result for each line", batch_lines) },
            )
            .taking_lines()
            .refusing(&[Code::BatchTooLong]),
            batch::batch,
        )
        .add(
            schedules_route(
                "GET /v1/schedules/{id}",
                "Get",
                Reader,
                "Read a schedule",
                Answer { headers: TAG, ..ok("The schedule", of::<api::Schedule>) },
            )
            .or(Answer { status: 304, what: "It is as it was read", content: Content::Nothing, headers: TAG })
            .with(CONDITIONS)
            .refusing(&[Code::ScheduleNotFound]),
            schedules::get,
        )
        .add(
            schedules_route(
                "PUT /v1/schedules/{id}",
                "Put",
                Writer,
                "Make the schedule of this id, or replace it",
                ok("It is replaced; or what a dry run would make", summary_or_dry_run),
            )
            .or(Answer { headers: PLACE, ..made("It is made", summary) })
            .with(CHANGING)
            .taking(of::<api::ScheduleRequest>)
            .refusing(MAKING),
            changes::put,
        )
        .add(
            schedules_route(
                "PATCH /v1/schedules/{id}",
                "Patch",
                Writer,
                "Change what the body names of a schedule (RFC 7396)",
                ok("It is changed; or what a dry run would make of it", summary_or_dry_run),
            )
            .with(CHANGING)
            .merging(schedule_patch)
            .refusing(&[
                Code::InvalidSchedule,
                Code::NotUtf8,
                Code::QuotaExceeded,
                Code::RateExceeded,
                Code::ScheduleNotFound,
                Code::ScheduleOver,
                Code::StorageFull,
            ]),
            changes::patch,
        )
        .add(
            schedules_route(
                "DELETE /v1/schedules/{id}",
                "Cancel",
                Writer,
                "Cancel a schedule",
                ok("`cancelled`, or `too_late` for an attempt that is in flight", of::<api::Cancelled>),
            )
            .or(Answer { status: 202, ..ok("`pending`: it is cancelled by `decided_by`", of::<api::Cancelled>) })
            .with(CONDITIONS)
            .refusing(&[Code::ScheduleNotFound, Code::StorageFull]),
            changes::cancel,
        )
        .add(
            schedules_route(
                "GET /v1/schedules/{id}/runs",
                "ScheduleRuns",
                Reader,
                "List a schedule's runs",
                ok("A page", of::<api::RunPage>),
            )
            .with(PAGE)
            .refusing(&[Code::ScheduleNotFound]),
            runs::of_schedule,
        )
        .add(
            schedules_route("GET /v1/runs", "Runs", Reader, "List dead letters", ok("A page", of::<api::RunPage>))
                .with(&[DeadLetter, Limit, PageToken]),
            runs::dead_letters,
        )
        .add(
            schedules_route(
                "POST /v1/runs/{id}/redrive",
                "Redrive",
                Writer,
                "Run a dead letter again, at once",
                ok("It is run again", of::<api::Redriven>),
            )
            .refusing(&[Code::RunNotFound, Code::NotDeadLetter, Code::StorageFull]),
            runs::redrive,
        )
}

fn of_tenants(routes: Routes) -> Routes {
    routes
        .add(
            tenants_route(
                "GET /v1/quotas",
                "Quotas",
                Reader,
                "What the tenant may use",
                ok("As it is", of::<api::QuotaSheet>),
            ),
            quotas::get,
        )
        .add(
            tenants_route(
                "PATCH /v1/quotas",
                "PatchQuotas",
                Admin,
                "Set quotas, up to their ceilings",
                ok("As it is now", of::<api::QuotaSheet>),
            )
            .taking(quota_numbers)
            .refusing(SETTING),
            quotas::patch,
        )
        .add(
            tenants_route("GET /v1/tenants", "Tenants", Operator, "List tenants", ok("All", of::<api::TenantList>)),
            tenants::list,
        )
        .add(
            tenants_route(
                "POST /v1/tenants",
                "CreateTenant",
                Operator,
                "Make a tenant",
                made("With its first key and signing secret, which are told once", of::<api::TenantMade>),
            )
            .taking(of::<api::TenantRequest>)
            .refusing(&[Code::InvalidRequest, Code::QuotaCeiling, Code::StorageFull, Code::TenantExists]),
            tenants::create,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}",
                "Tenant",
                AdminOf,
                "Read a tenant",
                ok("The tenant", of::<api::Tenant>),
            ),
            tenants::get,
        )
        .add(
            tenants_route(
                "PATCH /v1/tenants/{tenant}",
                "PatchTenant",
                Operator,
                "Change a tenant's quotas, ceilings and egress (RFC 7396)",
                ok("As it is now", of::<api::Tenant>),
            )
            .merging(of::<api::TenantPatch>)
            .refusing(&[Code::InvalidRequest, Code::QuotaCeiling, Code::StorageFull, Code::TenantNotFound]),
            tenants::patch,
        )
        .add(
            tenants_route("GET /v1/tenants/{tenant}/keys", "Keys", AdminOf, "List keys", ok("All", of::<api::KeyList>)),
            tenants::keys,
        )
        .add(
            tenants_route(
                "POST /v1/tenants/{tenant}/keys",
                "CreateKey",
                AdminOf,
                "Make a key",
                made("With its secret, which is told once", of::<api::KeyMade>),
            )
            .taking(of::<api::KeyRequest>)
            .refusing(&[Code::InvalidRequest, Code::StorageFull, Code::TooMany]),
            tenants::create_key,
        )
        .add(
            tenants_route(
                "DELETE /v1/tenants/{tenant}/keys/{id}",
                "RevokeKey",
                AdminOf,
                "Revoke a key",
                ok("What it was", of::<api::Key>),
            )
            .refusing(&[Code::KeyNotFound, Code::LastOne, Code::StorageFull]),
            tenants::revoke_key,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}/signing-secrets",
                "Secrets",
                AdminOf,
                "List signing secrets",
                ok("All", of::<api::SigningSecretList>),
            ),
            tenants::secrets,
        )
        .add(
            tenants_route(
                "POST /v1/tenants/{tenant}/signing-secrets",
                "CreateSecret",
                AdminOf,
                "Make a signing secret",
                made("With the secret, which is told once", of::<api::SigningSecretMade>),
            )
            .refusing(&[Code::InvalidRequest, Code::StorageFull, Code::TooMany]),
            tenants::create_secret,
        )
        .add(
            tenants_route(
                "DELETE /v1/tenants/{tenant}/signing-secrets/{id}",
                "DeleteSecret",
                AdminOf,
                "Delete a signing secret",
                ok("What it was", of::<api::SigningSecret>),
            )
            .refusing(&[Code::KeyNotFound, Code::LastOne, Code::StorageFull]),
            tenants::delete_secret,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}/audit",
                "Audit",
                AdminOf,
                "What was changed about a tenant",
                ok("A page", of::<api::AuditPage>),
            )
            .with(PAGE),
            tenants::audit,
        )
}

fn of_operation(routes: Routes) -> Routes {
    routes
        .add(operation("GET /healthz", "Health", "The process answers", ok("It does", status)), operations::health)
        .add(
            operation("GET /readyz", "Ready", "Requests are taken", ok("They are", status))
                .refusing(&[Code::StoreUnavailable, Code::Stopping]),
            operations::ready,
        )
        .add(
            operation(
                "GET /metrics",
                "Metrics",
                "What is counted, as OpenMetrics text",
                Answer { content: Content::Text("application/openmetrics-text"), ..ok("All of it", status) },
            ),
            operations::metrics,
        )
}

/// The OpenAPI document of the routes so far, made when it is first asked for, and the page that shows it.
fn with_pages(routes: Routes) -> Routes {
    let document = Arc::new((routes.documented.clone(), OnceLock::new()));
    let document = move |State(app): App| {
        let (routes, made) = &*document;
        ready(page::document(made.get_or_init(|| Bytes::from(openapi::document(routes, &app.options))).clone()))
    };
    let of_page = || Route::undocumented("GET /docs", "Page");
    routes.add(Route::undocumented("GET /openapi.json", "Document"), document).add(of_page(), page::page).add_at(
        "/docs/{part}",
        of_page(),
        page::asset,
    )
}

/// The routes that were registered so far.
struct Routes {
    app: Arc<AppState>,
    router: Router<Arc<AppState>>,
    documented: Vec<Arc<Route>>,
}

impl Routes {
    fn add<T: 'static>(self, route: Route, handler: impl Handler<T, Arc<AppState>>) -> Self {
        self.add_at(route.method_and_path().1, route, handler)
    }

    /// At another path than the one that the route is named by.
    fn add_at<T: 'static>(mut self, path: &str, route: Route, handler: impl Handler<T, Arc<AppState>>) -> Self {
        let method = Method::from_bytes(route.method_and_path().0.as_bytes()).ok();
        let filter = method.and_then(|method| method.try_into().ok()).expect("a route begins with a method");
        let handler: MethodRouter<Arc<AppState>> = on(filter, handler);
        let route = Arc::new(route);
        if !route.answers.is_empty() {
            self.documented.push(route.clone());
        }
        let layer = from_fn_with_state((self.app.clone(), route), serve);
        Routes { router: self.router.route(path, handler.route_layer(layer)), ..self }
    }
}

type Entry = (Arc<AppState>, Arc<Route>);

async fn serve(State((app, route)): State<Entry>, request: Request, next: Next) -> Response<Body> {
    let work = async { Ok(next.run(admit(&app, &route, request).await?).await) };
    app.respond(&route, work).await
}

/// Checks the query and the key, and leaves for the handler who the caller is and which body the route takes.
async fn admit(app: &AppState, route: &Route, request: Request) -> Result<Request, Refused> {
    let (mut head, body) = request.into_parts();
    if route.changes_schedule() {
        spans::caller(&head.headers);
    }
    if route.needs != Needs::Nothing {
        if !route.takes_query() {
            query::check_empty(head.uri.query())?;
        }
        let tenant = path_parameter(&mut head, "tenant").await;
        let caller = auth::authorize(app, &head.headers, route.needs, &tenant)?;
        head.extensions.insert(caller);
    }
    if let Some(body) = route.body {
        head.extensions.insert(body);
    }
    Ok(Request::from_parts(head, body))
}

async fn not_for_users(State(app): App) -> Response<Body> {
    unknown(&app, refuse(Code::RouteNotFound, "this member answers no users; send requests to one with the role `api`"))
        .await
}

async fn unknown_route(State(app): App, request: Request) -> Response<Body> {
    let path: String = request.uri().path().chars().take(128).collect();
    let detail = format!("{path:?} is no path of this API; /docs and /openapi.json list them");
    unknown(&app, refuse(Code::RouteNotFound, detail)).await
}

async fn unknown_method(State(app): App, request: Request) -> Response<Body> {
    let method: String = request.method().as_str().chars().take(32).collect();
    let detail = format!("{method} is not taken here; the Allow header says what is");
    unknown(&app, refuse(Code::MethodNotAllowed, detail)).await
}

async fn unknown(app: &AppState, refused: Refused) -> Response<Body> {
    app.respond(&Route::UNKNOWN, ready(Err(refused))).await
}

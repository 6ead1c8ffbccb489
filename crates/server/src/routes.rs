//! The table of routes: each entry has the method and path, the handler and the description of one route.
//!
//! The entry determines the label in metrics and spans, the API keys that the route accepts, and the route's part of
//! the OpenAPI document. Invariant: if a route needs a key, its handler runs only after the server has checked the key.
//!
//! docs/decisions/0175-describe-routes-in-one-table.md gives the reasons for the design.

mod audit;
mod batch;
mod changes;
mod created;
mod dry_run;
mod explain;
mod listing;
mod once;
mod operations;
mod page;
mod preview;
mod quotas;
mod report;
mod run_listing;
mod run_routes;
mod runs;
mod schedules;
mod tenants;

use std::future::ready;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, Response, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{MethodRouter, any, on};
use bytes::Bytes;
use domain::TenantId;
use listener::Slot;

use crate::auth::{self, Caller};
use crate::extract::path_parameter;
use crate::openapi::{self, Version};
use crate::query;
use crate::rejection::{Code, Rejected, reject};
use crate::route::{
    Content, Needs, Parameter, ResponseSpec, Route, batch_lines, created_response, ok, operation, quota_numbers,
    schedule_patch, schedules as schedules_route, schema_of, status, summary, summary_or_dry_run,
    tenants as tenants_route,
};
use crate::spans;
use crate::state::{App, AppState};
use crate::unread::Budget;
use Needs::{Admin, AdminOf, AdminOrOperator, Operator, Reader, Writer};
use Parameter::{DryRun, DueFrom, DueUntil, IdempotencyKey, IfMatch, IfNoneMatch, Label, Limit, PageToken};
use operations::OPEN_METRICS;

const PAGE: &[Parameter] = &[Limit, PageToken];
/// Parameters of the routes that support preconditions.
const CONDITIONS: &[Parameter] = &[IfMatch, IfNoneMatch];
const CHANGE_PARAMETERS: &[Parameter] = &[IfMatch, IfNoneMatch, DryRun];
const TAG: &[&str] = &["ETag"];
const TAG_AND_LOCATION: &[&str] = &["ETag", "Location"];

/// Path of the previews, and the path under which the router knows them. A schedule may have the id `preview`, and the
/// router would otherwise find no route for other methods on its path.
const PREVIEW_PATH: &str = "/v1/schedules/preview";
const PREVIEW_ROUTE: &str = "/v1/schedules:preview";
/// Path without a route, for requests whose client sends [`PREVIEW_ROUTE`] itself.
const PREVIEW_UNKNOWN: &str = "/v1/schedules%3Apreview";
/// Methods on [`PREVIEW_PATH`]: those of a schedule, and POST.
const PREVIEW_METHODS: &str = "GET,HEAD,PUT,PATCH,DELETE,POST";

/// Problem codes of the routes that create or replace a schedule.
const CREATE_CODES: &[Code] = &[
    Code::IdempotencyKeyReused,
    Code::InvalidSchedule,
    Code::NotUtf8,
    Code::QuotaExceeded,
    Code::RateExceeded,
    Code::ScheduleExists,
    Code::StorageFull,
];
/// Problem codes of the routes that change a tenant's settings.
const SETTINGS_CODES: &[Code] = &[Code::InvalidRequest, Code::QuotaCeiling, Code::StorageFull];

/// Returns the routes of the main listener.
pub(crate) fn router(app: Arc<AppState>) -> Router {
    let routes = operation_routes(Routes::new(app.clone()));
    let routes = if app.options.metrics_listen.is_some() { routes } else { metrics_route(routes) };
    let router = match app.options.answers_users {
        true => with_pages(tenant_routes(schedule_routes(routes))).router,
        false => routes.router.route("/v1/{*rest}", any(not_for_users)),
    };
    router.fallback(unknown_route).method_not_allowed_fallback(unknown_method).with_state(app)
}

/// Returns the route of the listener for metrics.
pub(crate) fn metrics_router(app: Arc<AppState>) -> Router {
    let router = metrics_route(Routes::new(app.clone())).router;
    router.fallback(unknown_route).method_not_allowed_fallback(unknown_method).with_state(app)
}

fn schedule_routes(routes: Routes) -> Routes {
    let routes = routes
        .add(
            schedules_route(
                "GET /v1/schedules",
                "listSchedules",
                Reader,
                "List schedules: all, or those with one state, with one label, or due within a range of 24 hours",
                ok(
                    "One page, which may have fewer results than `limit` although more pages follow",
                    schema_of::<api::SchedulePage>,
                ),
            )
            .with(&[Parameter::State, Label, Parameter::Order, DueFrom, DueUntil, Limit, PageToken]),
            listing::list,
        )
        .add(
            schedules_route(
                "GET /v1/schedules:count",
                "countSchedules",
                Reader,
                "Count the schedules by state",
                ok("The numbers of schedules by state", schema_of::<api::ScheduleCount>),
            ),
            listing::count,
        )
        .add(
            schedules_route(
                "POST /v1/schedules",
                "createSchedule",
                Writer,
                "Create a schedule",
                ResponseSpec { headers: TAG_AND_LOCATION, ..created_response("The schedule was created", summary) },
            )
            .or(ok("The result of a dry run", schema_of::<api::DryRun>))
            .with(&[DryRun, IdempotencyKey])
            .with_body(schema_of::<api::ScheduleRequest>)
            .rejecting(CREATE_CODES),
            schedules::create,
        )
        .add(
            schedules_route(
                "POST /v1/schedules:batch",
                "createScheduleBatch",
                Writer,
                "Create many schedules: one request per line, and one result (`BatchLine`) per line, in order",
                ResponseSpec { content: Content::Lines, ..ok("One result for each line of the request", batch_lines) },
            )
            .with(&[IdempotencyKey])
            .with_lines()
            .rejecting(&[Code::BatchTooLong]),
            batch::batch,
        )
        .add_at(
            PREVIEW_ROUTE,
            schedules_route(
                "POST /v1/schedules/preview",
                "previewSchedule",
                Writer,
                "Check a schedule and list its next occurrences, with the effects of clock changes",
                ok("The next occurrences", schema_of::<api::Preview>),
            )
            .with(&[Parameter::Count, Parameter::PreviewFrom])
            .with_body(schema_of::<api::ScheduleRequest>)
            .rejecting(&[Code::InvalidSchedule, Code::NotUtf8, Code::QuotaExceeded, Code::RateExceeded]),
            preview::preview,
        )
        .add(
            schedules_route(
                "GET /v1/schedules/{id}",
                "getSchedule",
                Reader,
                "Read a schedule",
                ResponseSpec { headers: TAG, ..ok("The schedule", schema_of::<api::Schedule>) },
            )
            .or(ResponseSpec {
                status: 304,
                description: "The schedule's ETag is in the list of `If-None-Match`",
                content: Content::Nothing,
                headers: TAG,
            })
            .with(CONDITIONS)
            .rejecting(&[Code::ScheduleNotFound]),
            schedules::get,
        )
        .add(
            schedules_route(
                "PUT /v1/schedules/{id}",
                "putSchedule",
                Writer,
                "Create or replace the schedule with this id",
                ok("The replaced schedule, or the result of a dry run", summary_or_dry_run),
            )
            .or(ResponseSpec { headers: TAG_AND_LOCATION, ..created_response("The schedule was created", summary) })
            .with(CHANGE_PARAMETERS)
            .with_body(schema_of::<api::ScheduleRequest>)
            .rejecting(CREATE_CODES),
            changes::put,
        )
        .add(
            schedules_route(
                "PATCH /v1/schedules/{id}",
                "patchSchedule",
                Writer,
                "Change a schedule: replace the fields that the body contains (RFC 7396)",
                ok("The changed schedule, or the result of a dry run", summary_or_dry_run),
            )
            .with(CHANGE_PARAMETERS)
            .with_patch(schedule_patch)
            .rejecting(&[
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
                "cancelSchedule",
                Writer,
                "Cancel a schedule",
                ok("`cancelled`, or `too_late` if an attempt is in flight", schema_of::<api::Cancelled>),
            )
            .or(ResponseSpec {
                status: 202,
                ..ok(
                    "`pending`: the owner decides on the cancellation at or before the instant `decided_by`",
                    schema_of::<api::Cancelled>,
                )
            })
            .with(CONDITIONS)
            .rejecting(&[Code::ScheduleNotFound, Code::StorageFull]),
            changes::cancel,
        );
    run_routes::add(routes)
}

fn tenant_routes(routes: Routes) -> Routes {
    routes
        .add(
            tenants_route(
                "GET /v1/quotas",
                "getQuotas",
                Reader,
                "Read the tenant's quotas",
                ok("The quotas and their ceilings", schema_of::<api::QuotaSheet>),
            ),
            quotas::get,
        )
        .add(
            tenants_route(
                "PATCH /v1/quotas",
                "patchQuotas",
                Admin,
                "Set quotas, up to their ceilings",
                ok("The new quotas and their ceilings", schema_of::<api::QuotaSheet>),
            )
            .with_body(quota_numbers)
            .rejecting(SETTINGS_CODES),
            quotas::patch,
        )
        .add(
            tenants_route(
                "GET /v1/tenants",
                "listTenants",
                Operator,
                "List tenants",
                ok("All tenants", schema_of::<api::TenantList>),
            ),
            tenants::list,
        )
        .add(
            tenants_route(
                "POST /v1/tenants",
                "createTenant",
                Operator,
                "Create a tenant",
                created_response(
                    "The tenant, its first key and its first signing secret, shown only once",
                    schema_of::<api::TenantCreated>,
                ),
            )
            .with_body(schema_of::<api::TenantRequest>)
            .rejecting(&[Code::InvalidRequest, Code::QuotaCeiling, Code::StorageFull, Code::TenantExists]),
            tenants::create,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}",
                "getTenant",
                AdminOf,
                "Read a tenant",
                ok("The tenant", schema_of::<api::Tenant>),
            ),
            tenants::get,
        )
        .add(
            tenants_route(
                "PATCH /v1/tenants/{tenant}",
                "patchTenant",
                AdminOf,
                "Change a tenant's settings (RFC 7396); only an operator may change quotas, ceilings and egress",
                ok("The changed tenant", schema_of::<api::Tenant>),
            )
            .with_patch(schema_of::<api::TenantPatch>)
            .rejecting(SETTINGS_CODES),
            tenants::patch,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}/keys",
                "listKeys",
                AdminOf,
                "List keys",
                ok("All keys", schema_of::<api::KeyList>),
            ),
            tenants::keys,
        )
        .add(
            tenants_route(
                "POST /v1/tenants/{tenant}/keys",
                "createKey",
                AdminOf,
                "Create a key",
                created_response("The key with its secret, shown only once", schema_of::<api::KeyCreated>),
            )
            .with_body(schema_of::<api::KeyRequest>)
            .rejecting(&[Code::InvalidRequest, Code::StorageFull, Code::TooMany]),
            tenants::create_key,
        )
        .add(
            tenants_route(
                "DELETE /v1/tenants/{tenant}/keys/{id}",
                "revokeKey",
                AdminOf,
                "Revoke a key",
                ok("The revoked key", schema_of::<api::Key>),
            )
            .rejecting(&[Code::KeyNotFound, Code::LastOne, Code::StorageFull]),
            tenants::revoke_key,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}/signing-secrets",
                "listSigningSecrets",
                AdminOf,
                "List signing secrets",
                ok("All signing secrets", schema_of::<api::SigningSecretList>),
            ),
            tenants::secrets,
        )
        .add(
            tenants_route(
                "POST /v1/tenants/{tenant}/signing-secrets",
                "createSigningSecret",
                AdminOf,
                "Create a signing secret",
                created_response("The signing secret, shown only once", schema_of::<api::SigningSecretCreated>),
            )
            .rejecting(&[Code::InvalidRequest, Code::StorageFull, Code::TooMany]),
            tenants::create_secret,
        )
        .add(
            tenants_route(
                "DELETE /v1/tenants/{tenant}/signing-secrets/{id}",
                "deleteSigningSecret",
                AdminOf,
                "Delete a signing secret",
                ok("The deleted signing secret", schema_of::<api::SigningSecret>),
            )
            .rejecting(&[Code::KeyNotFound, Code::LastOne, Code::StorageFull]),
            tenants::delete_secret,
        )
        .add(
            tenants_route(
                "GET /v1/tenants/{tenant}/audit",
                "listAuditEntries",
                AdminOf,
                "List the changes of a tenant",
                ok("A page", schema_of::<api::AuditPage>),
            )
            .with(PAGE),
            tenants::audit,
        )
        .add(
            tenants_route(
                "GET /v1/audit",
                "getAudit",
                AdminOrOperator,
                "List the differences between the timings of schedules and the records in the store",
                ok("The result of the last complete audit", schema_of::<api::Audit>),
            ),
            audit::audit,
        )
}

fn operation_routes(routes: Routes) -> Routes {
    routes
        .add(
            operation(
                "GET /healthz",
                "getHealth",
                "Check that the process responds",
                ok("The process responds", status),
            ),
            operations::health,
        )
        .add(
            operation(
                "GET /readyz",
                "getReadiness",
                "Check that the server accepts requests",
                ok("The server accepts requests", status),
            )
            .rejecting(&[Code::StoreUnavailable, Code::CoordinationUnavailable, Code::Stopping]),
            operations::ready,
        )
}

fn metrics_route(routes: Routes) -> Routes {
    routes.add(
        operation(
            "GET /metrics",
            "getMetrics",
            "Read the metrics in the text format of Prometheus, or as OpenMetrics text if the client accepts it",
            ResponseSpec { content: Content::Text(&["text/plain", OPEN_METRICS]), ..ok("All metrics", status) },
        ),
        operations::metrics,
    )
}

/// Adds the routes of the OpenAPI documents and of the page that shows them. The documents describe the routes that are
/// registered so far. The first request for a document creates the document.
fn with_pages(routes: Routes) -> Routes {
    let documented = routes.documented.clone();
    let document = |version| {
        let cell = Arc::new((documented.clone(), OnceLock::new()));
        move |State(app): App| {
            let (routes, cell) = &*cell;
            let create = || Bytes::from(openapi::document(routes, &app.options, version));
            ready(page::document(cell.get_or_init(create).clone()))
        }
    };
    let page_route = || Route::undocumented("GET /docs", "getPage");
    routes
        .add(Route::undocumented("GET /openapi.json", "getDocument"), document(Version::V3_1))
        .add(Route::undocumented("GET /openapi-3.0.json", "getDocument30"), document(Version::V3_0))
        .add(page_route(), page::page)
        .add_at("/docs/{part}", page_route(), page::asset)
}

/// Routes registered so far.
struct Routes {
    app: Arc<AppState>,
    router: Router<Arc<AppState>>,
    documented: Vec<Arc<Route>>,
}

impl Routes {
    fn new(app: Arc<AppState>) -> Self {
        Routes { app, router: Router::new(), documented: Vec::new() }
    }

    fn add<T: 'static>(self, route: Route, handler: impl Handler<T, Arc<AppState>>) -> Self {
        self.add_at(route.method_and_path().1, route, handler)
    }

    /// Adds a route under `path`, which may differ from the path in the route's name.
    fn add_at<T: 'static>(mut self, path: &str, route: Route, handler: impl Handler<T, Arc<AppState>>) -> Self {
        let method = Method::from_bytes(route.method_and_path().0.as_bytes()).ok();
        let filter =
            method.and_then(|method| method.try_into().ok()).expect("a route's name starts with an HTTP method");
        let handler: MethodRouter<Arc<AppState>> = on(filter, handler);
        let route = Arc::new(route);
        if !route.responses.is_empty() {
            self.documented.push(route.clone());
        }
        let layer = from_fn_with_state((self.app.clone(), route), serve);
        Routes { router: self.router.route(path, handler.route_layer(layer)), ..self }
    }
}

type Entry = (Arc<AppState>, Arc<Route>);

async fn serve(State((app, route)): State<Entry>, request: Request, next: Next) -> Response<Body> {
    let work = async {
        let request = admit(&app, &route, request).await?;
        let budget: &Budget = request.extensions().get().expect("each request has the budget of its connection");
        // The server reserves no bytes for a request without a key, because its response is small. For this request,
        // tenant 0 is only a placeholder.
        let tenant = request.extensions().get().map_or(TenantId(0), |caller: &Caller| caller.tenant.id);
        let reserved = app.reserve(&budget.clone(), tenant, &route).await?;
        let mut response = next.run(request).await;
        if let Some(reserved) = reserved {
            response.extensions_mut().insert(reserved);
        }
        Ok(response)
    };
    app.respond(&route, work).await
}

/// Checks the query and the key, and passes the caller and the route's body description to the handler.
async fn admit(app: &AppState, route: &Route, request: Request) -> Result<Request, Rejected> {
    let (mut head, body) = request.into_parts();
    if route.changes_schedule() {
        spans::record_caller(&head.headers);
    }
    if route.needs != Needs::Nothing {
        if !route.has_query() {
            query::check_empty(head.uri.query())?;
        }
        let tenant = path_parameter(&mut head, "tenant").await;
        let caller = auth::authorize(app, &head.headers, route.needs, &tenant)?;
        let slot: &Slot = head.extensions.get().expect("each request has the slot of its connection");
        slot.trust();
        head.extensions.insert(caller);
    }
    if let Some(body) = route.body {
        head.extensions.insert(body);
    }
    Ok(Request::from_parts(head, body))
}

/// Returns the request with the path that the router knows: the path of a preview, or the path with each `%3A` decoded.
/// Some clients encode the colon of `/v1/schedules:batch`, but the router does not decode the path before it looks for
/// the route. If a client sends [`PREVIEW_ROUTE`] itself, the request gets a path without a route.
pub(crate) fn with_known_path(mut request: Request) -> Request {
    let uri = request.uri();
    let path = match uri.path() {
        PREVIEW_PATH if request.method() == Method::POST => PREVIEW_ROUTE.to_owned(),
        path if path == PREVIEW_ROUTE || path.contains("%3") => {
            let decoded = path.replace("%3A", ":").replace("%3a", ":");
            if decoded == PREVIEW_ROUTE { PREVIEW_UNKNOWN.to_owned() } else { decoded }
        }
        _ => return request,
    };
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some((path + &query).parse().expect("a colon is valid in the path of a URI"));
    *request.uri_mut() =
        Uri::from_parts(parts).expect("a URI stays valid if only its path changes to another valid path");
    request
}

async fn not_for_users(State(app): App) -> Response<Body> {
    unknown(
        &app,
        reject(Code::RouteNotFound, "this member does not serve users; send requests to a member with the role `api`"),
    )
    .await
}

async fn unknown_route(State(app): App, request: Request) -> Response<Body> {
    let path: String = request.uri().path().chars().take(128).collect();
    let detail = format!("{path:?} is not a path of this API; /docs and /openapi.json list all paths");
    unknown(&app, reject(Code::RouteNotFound, detail)).await
}

async fn unknown_method(State(app): App, request: Request) -> Response<Body> {
    let method: String = request.method().as_str().chars().take(32).collect();
    let detail = format!("the path does not support {method}; the Allow header lists the supported methods");
    let is_preview = request.uri().path() == PREVIEW_PATH;
    let mut response = unknown(&app, reject(Code::MethodNotAllowed, detail)).await;
    if is_preview {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(PREVIEW_METHODS));
    }
    response
}

async fn unknown(app: &AppState, rejected: Rejected) -> Response<Body> {
    app.respond(&Route::UNKNOWN, ready(Err(rejected))).await
}

//! Routes that create and read one schedule.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, Response, StatusCode};
use domain::Status;
use scheduler::{Create, CreateRejection, Timing};

use super::created::{reject_create, schedule_response, timing_pointer, wire_schedule, written};
use super::{dry_run, once};
use crate::auth::Caller;
use crate::body::read_schedule;
use crate::condition::{Condition, Unmet, with_etag};
use crate::extract::{BodyBytes, ExistingId, MediaType, schedule_not_found};
use crate::idempotency::IdempotencyKey;
use crate::query::DryRun;
use crate::quota::Written;
use crate::rejection::HandlerResult;
use crate::spans;
use crate::state::{App, AppState};
use crate::wire;

pub(super) async fn create(
    State(app): App,
    Caller { tenant, .. }: Caller,
    _: MediaType,
    DryRun(is_dry_run): DryRun,
    IdempotencyKey(key): IdempotencyKey,
    BodyBytes(bytes): BodyBytes,
) -> HandlerResult {
    if let Some(key) = key {
        return Box::pin(once::create(&app, tenant, &key, &bytes, is_dry_run)).await;
    }
    app.count_create(&tenant)?;
    let now = app.runtime.now();
    let parsed = read_schedule(&bytes, None, &app.options.limits, &tenant.egress, now)?;
    let reservation = app.admit(&tenant, None, &parsed.spec, now).await?;
    let request = Create { tenant, id: parsed.id, incarnation: None, spec: parsed.spec, by: None };
    let when = timing_pointer(&request);
    if is_dry_run {
        app.stored.finish(&reservation, Written::Nothing);
        return would_create(&app, request).await;
    }
    let responses = app.scheduler.create(vec![request]).await?;
    let response = responses.into_iter().next().expect("the scheduler returns one result for each create request");
    app.stored.finish(&reservation, written(&response, true));
    let schedule = response.map_err(|rejection| reject_create(rejection, when, &app.scheduler))?;
    spans::record_schedule(&schedule);
    Ok(schedule_response(StatusCode::CREATED, &wire::summary(&schedule), schedule.edition()))
}

async fn would_create(app: &AppState, request: Create) -> HandlerResult {
    let existing = match &request.id {
        Some(id) => app.scheduler.get(request.tenant.id, id.clone()).await?,
        None => None,
    };
    if existing.as_ref().is_some_and(|existing| existing.status != Status::Cancelled) {
        return Err(reject_create(CreateRejection::Exists, timing_pointer(&request), &app.scheduler));
    }
    dry_run::preview(app, request, existing.as_deref(), Timing::Restarted)
}

pub(super) async fn get(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    condition: Condition,
) -> HandlerResult {
    let found = app.scheduler.get(tenant.id, id).await?.ok_or_else(schedule_not_found)?;
    let response = match condition.check(Some(&found)) {
        Ok(()) => wire::json(StatusCode::OK, &wire_schedule(&found)?),
        Err(Unmet::Match) => return Err(Unmet::Match.reject()),
        Err(Unmet::NoneMatch) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
    };
    // The response forbids caching. A cache would compare only the `ETag`, but some fields of a schedule change without
    // a new `ETag`.
    Ok(no_store(with_etag(response, found.edition())))
}

fn no_store(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

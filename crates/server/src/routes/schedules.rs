//! One schedule at a time.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, Response, StatusCode};
use domain::Status;
use scheduler::{Create, CreateRefusal, Timing};

use super::created::{made, may_be_made, never_fires, refuse_create, shown};
use super::{dry_run, once};
use crate::answer;
use crate::auth::Caller;
use crate::body::read_schedule;
use crate::condition::{Condition, Unmet, with_etag};
use crate::extract::{BodyBytes, ExistingId, MediaType, schedule_not_found};
use crate::idempotency::IdempotencyKey;
use crate::query::DryRun;
use crate::refusal::Answered;
use crate::spans;
use crate::state::{App, AppState};

pub(super) async fn create(
    State(app): App,
    Caller { tenant, .. }: Caller,
    _: MediaType,
    DryRun(is_dry_run): DryRun,
    IdempotencyKey(key): IdempotencyKey,
    BodyBytes(bytes): BodyBytes,
) -> Answered {
    if let Some(key) = key {
        return Box::pin(once::create(&app, tenant, &key, &bytes, is_dry_run)).await;
    }
    let now = app.runtime.now();
    let wanted = read_schedule(&bytes, None, &app.options.limits, &tenant.egress, now)?;
    let room = app.admit(&tenant, None, &wanted.spec, now).await?;
    let request = Create { tenant, id: wanted.id, incarnation: None, spec: wanted.spec };
    let when = never_fires(&request);
    if is_dry_run {
        app.pending.settle(&room, false);
        return would_create(&app, request).await;
    }
    let answers = app.scheduler.create(vec![request]).await?;
    let answer = answers.into_iter().next().expect("the scheduler answers every request of a call");
    app.pending.settle(&room, may_be_made(&answer));
    let schedule = answer.map_err(|refusal| refuse_create(refusal, when))?;
    spans::made(&schedule);
    Ok(made(StatusCode::CREATED, &answer::summary(&schedule), schedule.edition()))
}

async fn would_create(app: &AppState, request: Create) -> Answered {
    let existing = match &request.id {
        Some(id) => app.scheduler.get(request.tenant.id, id.clone()).await?,
        None => None,
    };
    if existing.as_ref().is_some_and(|existing| existing.status != Status::Cancelled) {
        return Err(refuse_create(CreateRefusal::Exists, never_fires(&request)));
    }
    dry_run::answer(app, request, existing.as_deref(), Timing::Anew)
}

pub(super) async fn get(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    condition: Condition,
) -> Answered {
    let found = app.scheduler.get(tenant.id, id).await?.ok_or_else(schedule_not_found)?;
    let response = match condition.check(Some(&found)) {
        Ok(()) => answer::json(StatusCode::OK, &shown(&found)?),
        Err(Unmet::Match) => return Err(Unmet::Match.refuse()),
        Err(Unmet::NoneMatch) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
    };
    // No cache in between may ask with the tag by itself: whether it is the same edition is not all that a reader may want.
    Ok(no_store(with_etag(response, found.edition())))
}

fn no_store(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

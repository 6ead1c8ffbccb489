//! One schedule at a time.

use api::{FieldError, ScheduleSummary};
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, LOCATION};
use axum::http::{HeaderValue, Response, StatusCode};
use domain::{Edition, Schedule, Status, When};
use scheduler::{Create, CreateRefusal, Timing};

use super::{dry_run, once};
use crate::answer;
use crate::auth::Caller;
use crate::body::read_schedule;
use crate::condition::{Condition, Unmet, with_etag};
use crate::extract::{BodyBytes, ExistingId, MediaType, schedule_not_found};
use crate::idempotency::IdempotencyKey;
use crate::query::DryRun;
use crate::refusal::{Answered, Code, Refused, refuse, refuse_fields};
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

pub(super) fn made(status: StatusCode, summary: &ScheduleSummary<'_>, edition: Edition) -> Response<Body> {
    let mut response = with_etag(answer::json(status, summary), edition);
    if status == StatusCode::CREATED {
        let place = format!("/v1/schedules/{}", summary.id);
        if let Ok(place) = HeaderValue::try_from(place) {
            response.headers_mut().insert(LOCATION, place);
        }
    }
    response
}

/// The field to blame if this schedule turns out never to fire.
pub(super) fn never_fires(request: &Create) -> &'static str {
    match request.spec.when {
        When::At(_) => "/at",
        When::Cron(_) => "/cron",
        When::Every(_) => "/every",
    }
}

/// Whether there may be one schedule more.
pub(super) fn may_be_made<T>(answer: &Result<T, CreateRefusal>) -> bool {
    !matches!(answer, Err(CreateRefusal::Exists | CreateRefusal::NeverFires))
}

pub(super) fn refuse_create(refusal: CreateRefusal, when: &'static str) -> Refused {
    match refusal {
        CreateRefusal::Exists => {
            refuse(Code::ScheduleExists, "choose another id, or replace the schedule with PUT /v1/schedules/{id}")
        }
        CreateRefusal::Unreachable => {
            refuse(Code::StoreUnavailable, "nothing is known of whether this request took effect; send it again")
        }
        CreateRefusal::NeverFires => {
            let error = FieldError {
                pointer: Some(when.to_owned()),
                code: "never_fires".into(),
                detail: "it names no instant that is still to come".into(),
                ..FieldError::default()
            };
            refuse_fields(Code::InvalidSchedule, "the schedule would never fire", vec![error])
        }
    }
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

pub(super) fn shown(schedule: &Schedule) -> Result<api::Schedule, Refused> {
    answer::schedule(schedule)
        .ok_or_else(|| refuse(Code::StoreDamaged, "the payload that is stored is not the one that was sent"))
}

fn no_store(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

//! One schedule at a time.

use api::{CancelResult, Cancelled, FieldError, ScheduleSummary};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use domain::{ScheduleId, When};
use scheduler::{CancelAnswer, Create, CreateRefusal};
use store::Role;

use super::check_content_type;
use crate::answer;
use crate::auth::authenticate;
use crate::body::collect::collect;
use crate::body::read_schedule;
use crate::refusal::{Kind, Refused, refuse, refuse_fields};
use crate::shared::Shared;

const JSON: &[&str] = &["application/json"];

pub(super) async fn create(shared: &Shared, request: Request) -> Result<Response<Body>, Refused> {
    let request = read(shared, None, request).await?;
    let when = never_fires(&request);
    let answers = shared.scheduler.create(vec![request]).await?;
    let answer = answers.into_iter().next().expect("the scheduler answers every request of a call");
    let schedule = answer.map_err(|refusal| refuse_create(refusal, when))?;
    Ok(made(StatusCode::CREATED, &answer::summary(&schedule)))
}

pub(super) async fn put(shared: &Shared, id: &str, request: Request) -> Result<Response<Body>, Refused> {
    let request = read(shared, Some(id), request).await?;
    let when = never_fires(&request);
    let answer = shared.scheduler.put(request).await?.map_err(|refusal| refuse_create(refusal, when))?;
    let status = if answer.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(made(status, &ScheduleSummary { too_late: answer.too_late, ..answer::summary(&answer.schedule) }))
}

async fn read(shared: &Shared, id: Option<&str>, request: Request) -> Result<Create, Refused> {
    let (head, body) = request.into_parts();
    let tenant = authenticate(shared, &head.headers, Role::Writer)?;
    let named = id.map(|id| ScheduleId::new(id).map_err(|error| bad_id(&error))).transpose()?;
    check_content_type(&head.headers, JSON)?;
    let bytes = collect(shared, &head.headers, body).await?;
    let wanted = read_schedule(&bytes, named.as_ref(), &shared.options.limits, shared.runtime.now())?;
    Ok(Create { tenant, id: wanted.id, incarnation: None, spec: wanted.spec })
}

fn bad_id(error: &domain::id::ScheduleIdError) -> Refused {
    let errors = vec![FieldError {
        parameter: Some("id".into()),
        code: "invalid_id".into(),
        detail: error.to_string(),
        ..FieldError::default()
    }];
    refuse_fields(Kind::InvalidParameter, "the path names a schedule that cannot be", errors)
}

fn made(status: StatusCode, summary: &ScheduleSummary<'_>) -> Response<Body> {
    let mut response = answer::json(status, summary);
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

pub(super) fn refuse_create(refusal: CreateRefusal, when: &'static str) -> Refused {
    match refusal {
        CreateRefusal::Exists => {
            refuse(Kind::ScheduleExists, "choose another id, or replace the schedule with PUT /v1/schedules/{id}")
        }
        CreateRefusal::Unreachable => {
            refuse(Kind::StoreUnavailable, "nothing is known of whether this request took effect; send it again")
        }
        CreateRefusal::NeverFires => {
            let error = FieldError {
                pointer: Some(when.to_owned()),
                code: "never_fires".into(),
                detail: "it names no instant that is still to come".into(),
                ..FieldError::default()
            };
            refuse_fields(Kind::InvalidSchedule, "the schedule would never fire", vec![error])
        }
    }
}

pub(super) async fn get(shared: &Shared, id: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Reader)?;
    let id = find_id(id)?;
    let schedule = shared.scheduler.get(tenant.id, id).await?.ok_or_else(not_found)?;
    let schedule = answer::schedule(&schedule)
        .ok_or_else(|| refuse(Kind::StoreDamaged, "the payload that is stored is not the one that was sent"))?;
    Ok(answer::json(StatusCode::OK, &schedule))
}

pub(super) async fn cancel(shared: &Shared, id: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Writer)?;
    let (status, result, decided_by) = match shared.scheduler.cancel(tenant.id, find_id(id)?).await? {
        CancelAnswer::NotFound => return Err(not_found()),
        CancelAnswer::Cancelled => (StatusCode::OK, CancelResult::Cancelled, None),
        CancelAnswer::TooLate => (StatusCode::OK, CancelResult::TooLate, None),
        CancelAnswer::Pending { decided_by } => (StatusCode::ACCEPTED, CancelResult::Pending, Some(decided_by)),
    };
    Ok(answer::json(status, &Cancelled { result, decided_by: decided_by.map(answer::time) }))
}

/// The id in a path; one that cannot be is simply not there.
pub(super) fn find_id(id: &str) -> Result<ScheduleId, Refused> {
    ScheduleId::new(id).map_err(|_| not_found())
}

pub(super) fn not_found() -> Refused {
    refuse(Kind::ScheduleNotFound, "no schedule of your tenant has this id")
}

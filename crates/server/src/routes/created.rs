//! The answers of every route that creates a schedule.

use api::{FieldError, ScheduleSummary};
use axum::body::Body;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, Response, StatusCode};
use domain::{Edition, Schedule, When};
use scheduler::{Create, CreateRefusal};

use crate::answer;
use crate::condition::with_etag;
use crate::refusal::{Code, Refused, refuse, refuse_fields};

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

pub(super) fn shown(schedule: &Schedule) -> Result<api::Schedule, Refused> {
    answer::schedule(schedule)
        .ok_or_else(|| refuse(Code::StoreDamaged, "the payload that is stored is not the one that was sent"))
}

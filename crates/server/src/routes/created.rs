//! Responses of the routes that create schedules.

use api::{FieldError, ScheduleSummary};
use axum::body::Body;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, Response, StatusCode};
use domain::{Schedule, ScheduleVersion, When};
use scheduler::{Create, CreateRejection, Scheduler};
use store::Health;

use crate::condition::with_etag;
use crate::quota::Written;
use crate::rejection::{Code, Rejected, reject, reject_fields};
use crate::wire;

pub(super) fn schedule_response(
    status: StatusCode,
    summary: &ScheduleSummary<'_>,
    edition: ScheduleVersion,
) -> Response<Body> {
    let mut response = with_etag(wire::json(status, summary), edition);
    if status == StatusCode::CREATED {
        let location = format!("/v1/schedules/{}", summary.id);
        if let Ok(location) = HeaderValue::try_from(location) {
            response.headers_mut().insert(LOCATION, location);
        }
    }
    response
}

/// Returns the JSON pointer to the request's timing field. The error for a schedule that never fires names this field.
pub(super) fn timing_pointer(request: &Create) -> &'static str {
    match request.spec.when {
        When::At(_) => "/at",
        When::Cron(_) => "/cron",
        When::Every { .. } => "/every",
    }
}

/// Returns the kind of rows that the request may have written. `is_one_more` is true if the request would increase the
/// number of active schedules.
pub(super) fn written<T>(response: &Result<T, CreateRejection>, is_one_more: bool) -> Written {
    match response {
        Err(CreateRejection::Exists | CreateRejection::NeverFires) => Written::Nothing,
        _ if is_one_more => Written::Schedule,
        _ => Written::Spec,
    }
}

/// Returns the rejection of a request that creates a schedule. `scheduler` knows whether the coordination engine causes
/// the rejection.
pub(super) fn reject_create(rejection: CreateRejection, when: &'static str, scheduler: &Scheduler) -> Rejected {
    match rejection {
        CreateRejection::Exists => reject(
            Code::ScheduleExists,
            "the id is in use; choose another id, or replace the schedule with PUT /v1/schedules/{id}",
        ),
        CreateRejection::Unreachable => match scheduler.coordination_outage() {
            Some(outage) if scheduler.health() == Health::Ready => {
                let detail = format!(
                    "{outage}, so this member cannot find the owner of the schedule's shard; the request may or may not \
                     have taken effect; send it again when the engine responds"
                );
                reject(Code::CoordinationUnavailable, detail)
            }
            _ => reject(Code::StoreUnavailable, "the request may or may not have taken effect; send it again"),
        },
        CreateRejection::NeverFires => {
            let error = FieldError {
                pointer: Some(when.to_owned()),
                code: "never_fires".into(),
                detail: "the schedule's timing has no instant in the future".into(),
                ..FieldError::default()
            };
            reject_fields(Code::InvalidSchedule, "the schedule would never fire", vec![error])
        }
    }
}

pub(super) fn wire_schedule(schedule: &Schedule) -> Result<api::Schedule, Rejected> {
    wire::schedule(schedule).ok_or_else(|| reject(Code::StoreDamaged, "the stored payload is not valid JSON"))
}

//! Handling of `dry_run=true`, which checks a request and shows its result without writing data.

use api::DryRun;
use axum::http::StatusCode;
use domain::{Schedule, Status, Timestamp};
use scheduler::{Create, CreateRejection, Timing};

use super::created::{reject_create, timing_pointer, wire_schedule};
use crate::rejection::HandlerResult;
use crate::state::AppState;
use crate::wire;

/// Maximum number of upcoming instants in a response.
const UPCOMING_MAX: usize = 5;

/// Responds with the result that `request` would have. `existing` is the schedule that has the request's id.
pub(super) fn preview(app: &AppState, request: Create, existing: Option<&Schedule>, timing: Timing) -> HandlerResult {
    let when = timing_pointer(&request);
    let would_be = app.scheduler.would_put(request, existing, timing);
    let would_be = would_be.ok_or_else(|| reject_create(CreateRejection::NeverFires, when, &app.scheduler))?;
    let is_new = existing.is_none_or(|existing| existing.status == Status::Cancelled);
    preview_of(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &would_be)
}

/// Responds that the same request without `dry_run` would return this `status` and this schedule.
pub(super) fn preview_of(status: StatusCode, would_be: &Schedule) -> HandlerResult {
    let upcoming = upcoming(would_be).map(wire::time).collect();
    let body = DryRun { dry_run: true, status: status.as_u16(), schedule: wire_schedule(would_be)?, upcoming };
    Ok(wire::json(StatusCode::OK, &body))
}

fn upcoming(schedule: &Schedule) -> impl Iterator<Item = Timestamp> {
    let after = |nominal: &Timestamp| schedule.spec.when.next_after(schedule.updated_at, *nominal);
    std::iter::successors(schedule.next, after).take(UPCOMING_MAX)
}

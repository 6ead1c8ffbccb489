//! `dry_run=true`: all that a request would be held to, and what it would make, and nothing written.

use api::DryRun;
use axum::http::StatusCode;
use domain::{Schedule, Status, Timestamp};
use scheduler::{Create, CreateRefusal, Timing};

use super::created::{never_fires, refuse_create, shown};
use crate::answer;
use crate::refusal::Answered;
use crate::state::AppState;

/// How many instants are told.
const UPCOMING_MAX: usize = 5;

/// What `request` would make, with `existing` under its id.
pub(super) fn answer(app: &AppState, request: Create, existing: Option<&Schedule>, timing: Timing) -> Answered {
    let when = never_fires(&request);
    let would_be = app.scheduler.would_put(request, existing, timing);
    let would_be = would_be.ok_or_else(|| refuse_create(CreateRefusal::NeverFires, when))?;
    let is_new = existing.is_none_or(|existing| existing.status == Status::Cancelled);
    told(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &would_be)
}

/// That the answer in earnest would have this `status`, and be about this schedule.
pub(super) fn told(status: StatusCode, would_be: &Schedule) -> Answered {
    let upcoming = upcoming(would_be).map(answer::time).collect();
    let told = DryRun { dry_run: true, status: status.as_u16(), schedule: shown(would_be)?, upcoming };
    Ok(answer::json(StatusCode::OK, &told))
}

fn upcoming(schedule: &Schedule) -> impl Iterator<Item = Timestamp> {
    let after = |nominal: &Timestamp| schedule.spec.when.next_after(schedule.updated_at, *nominal);
    std::iter::successors(schedule.next, after).take(UPCOMING_MAX)
}

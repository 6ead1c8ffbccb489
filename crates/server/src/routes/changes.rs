//! Routes that replace, patch and cancel one schedule.
//!
//! The handler reads the schedule, checks preconditions and merges the change. The schedule's owner applies the change
//! only if no other request has changed the schedule since the read. Otherwise the handler reads the schedule again and
//! repeats these steps, so no concurrent change is lost.

use api::{CancelResult, Cancelled, ScheduleSummary};
use axum::extract::State;
use axum::http::StatusCode;
use domain::{Schedule, Status, Timestamp, When};
use scheduler::{CancelResponse, Create, CreateRejection, PutResponse, Timing};

use super::created::{reject_create, schedule_response, timing_pointer, written};
use super::dry_run;
use crate::auth::Caller;
use crate::body::{merge, read_merged, read_schedule};
use crate::condition::{Condition, Unmet};
use crate::extract::{BodyBytes, ExistingId, MediaType, NewId, schedule_not_found};
use crate::query::DryRun;
use crate::quota::{self, Reservation, Written};
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::spans;
use crate::state::{App, AppState};
use crate::wire;

/// Maximum number of tries of a request that conflicts with concurrent changes of the same schedule.
pub(super) const TRIES: usize = 20;

pub(super) async fn put(
    State(app): App,
    Caller { tenant, key }: Caller,
    NewId(id): NewId,
    _: MediaType,
    condition: Condition,
    DryRun(is_dry_run): DryRun,
    BodyBytes(bytes): BodyBytes,
) -> HandlerResult {
    app.count_create(&tenant)?;
    let now = app.runtime.now();
    let parsed = read_schedule(&bytes, Some(&id), &app.options.limits, &tenant.egress, now)?;
    let reservation = app.admit(&tenant, Some(&id), &parsed.spec, now).await?;
    let by = Some(key.id.clone());
    let request = Create { tenant, id: Some(id), incarnation: None, spec: parsed.spec, by };
    if condition.is_none() && !is_dry_run {
        let when = timing_pointer(&request);
        let response = app.scheduler.put(request).await?;
        // If the request replaces an ended schedule, the schedule becomes active again. The count of active schedules
        // then omits the schedule until the server next reads the count from the store, up to one second later.
        let is_one_more = response.as_ref().map_or(true, |put| put.created);
        app.stored.finish(&reservation, written(&response, is_one_more));
        return put_response(&app, response, when);
    }
    put_if(&app, &request, &condition, is_dry_run, &reservation).await
}

async fn put_if(
    app: &AppState,
    request: &Create,
    condition: &Condition,
    is_dry_run: bool,
    reservation: &Reservation,
) -> HandlerResult {
    let id = request.id.as_ref().expect("a PUT request has an id");
    let when = timing_pointer(request);
    for _ in 0..TRIES {
        let found = app.scheduler.get(request.tenant.id, id.clone()).await?;
        if let Err(unmet) = condition.check(found.as_deref()) {
            if let (Unmet::NoneMatch, Some(found), false) = (unmet, &found, is_dry_run) {
                // An earlier try of the same request may have created the schedule without confirming its placement, so
                // this try confirms the placement.
                app.scheduler.confirm(found.incarnation).await?;
            }
            app.stored.finish(reservation, Written::Nothing);
            return Err(unmet.reject());
        }
        if is_dry_run {
            app.stored.finish(reservation, Written::Nothing);
            return dry_run::preview(app, request.clone(), found.as_deref(), Timing::Restarted);
        }
        let seen = found.as_deref().map(Schedule::seen);
        if let Some(response) = app.scheduler.put_if(request.clone(), seen, Timing::Restarted).await? {
            app.stored.finish(reservation, written(&response, !is_active(found.as_deref())));
            return put_response(app, response, when);
        }
    }
    Err(others())
}

/// Returns true if `found` is an active schedule, which the quota of pending schedules already counts.
fn is_active(found: Option<&Schedule>) -> bool {
    found.is_some_and(|found| found.status == Status::Active)
}

fn put_response(app: &AppState, response: Result<PutResponse, CreateRejection>, when: &'static str) -> HandlerResult {
    let PutResponse { schedule, created, too_late } =
        response.map_err(|rejection| reject_create(rejection, when, &app.scheduler))?;
    spans::record_schedule(&schedule);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let summary = ScheduleSummary { too_late, ..wire::summary(&schedule) };
    Ok(schedule_response(status, &summary, schedule.edition()))
}

pub(super) async fn patch(
    State(app): App,
    Caller { tenant, key }: Caller,
    ExistingId(id): ExistingId,
    _: MediaType,
    condition: Condition,
    DryRun(is_dry_run): DryRun,
    BodyBytes(bytes): BodyBytes,
) -> HandlerResult {
    let mut reservation = Reservation::default();
    for attempt in 0..TRIES {
        let found = app.scheduler.get(tenant.id, id.clone()).await?.ok_or_else(schedule_not_found)?;
        if found.status == Status::Cancelled {
            return Err(reject(Code::ScheduleOver, "the schedule is cancelled; create another schedule with PUT"));
        }
        condition.check(Some(&found)).map_err(Unmet::reject)?;
        // The request rate counts each request once, even if the handler needs several tries.
        if attempt == 0 {
            app.count_create(&tenant)?;
        }
        let now = app.runtime.now();
        let merged = merge(&found, &bytes)?;
        // The handler checks the timing before the other fields. Otherwise, if the schedule's instant has passed, the
        // handler would reject this instant as an invalid field, even if the change does not contain the field.
        let timing = timing_of(merged.names_timing, &found, now)?;
        let spec = read_merged(merged, &found, &app.options.limits, &tenant.egress, now)?;
        match attempt {
            0 => reservation = app.admit(&tenant, Some(&id), &spec, now).await?,
            _ => quota::check_spec(&tenant, &spec, now)?,
        }
        let by = Some(key.id.clone());
        let request = Create { tenant: tenant.clone(), id: Some(id.clone()), incarnation: None, spec, by };
        if is_dry_run {
            app.stored.finish(&reservation, Written::Nothing);
            return dry_run::preview(&app, request, Some(&found), timing);
        }
        let when = timing_pointer(&request);
        if let Some(response) = app.scheduler.put_if(request, Some(found.seen()), timing).await? {
            app.stored.finish(&reservation, written(&response, !is_active(Some(&found))));
            return put_response(&app, response, when);
        }
    }
    Err(others())
}

/// Returns the timing of a change. A change without timing keeps the schedule's timing, and fails if no occurrence
/// remains.
fn timing_of(names_timing: bool, found: &Schedule, now: Timestamp) -> Result<Timing, Rejected> {
    if names_timing {
        return Ok(Timing::Restarted);
    }
    let is_due = |next: Timestamp| matches!(found.spec.when, When::At(_)) && next <= now;
    match found.next {
        Some(next) if !is_due(next) => Ok(Timing::Kept),
        Some(_) => Err(reject(Code::ScheduleOver, "the schedule's only occurrence is already due; set a new `at`")),
        None => {
            Err(reject(Code::ScheduleOver, "the schedule has no further occurrence; set a new `at`, `cron` or `every`"))
        }
    }
}

pub(super) async fn cancel(
    State(app): App,
    Caller { tenant, key }: Caller,
    ExistingId(id): ExistingId,
    condition: Condition,
) -> HandlerResult {
    let key = Some(key.id.clone());
    if condition.is_none() {
        return cancel_response(app.scheduler.cancel(tenant.id, id, key).await?);
    }
    for _ in 0..TRIES {
        let found = app.scheduler.get(tenant.id, id.clone()).await?.ok_or_else(schedule_not_found)?;
        // RFC 9110, section 13.1.1, allows success for a repeated request whose effect has already happened.
        if found.status != Status::Cancelled {
            condition.check(Some(&found)).map_err(Unmet::reject)?;
        }
        if let Some(response) = app.scheduler.cancel_if(&found, key.clone()).await? {
            return cancel_response(response);
        }
    }
    Err(others())
}

fn cancel_response(response: CancelResponse) -> HandlerResult {
    let (status, result, decided_by) = match response {
        CancelResponse::NotFound => return Err(schedule_not_found()),
        CancelResponse::Cancelled => (StatusCode::OK, CancelResult::Cancelled, None),
        CancelResponse::TooLate => (StatusCode::OK, CancelResult::TooLate, None),
        CancelResponse::Pending { decided_by } => (StatusCode::ACCEPTED, CancelResult::Pending, Some(decided_by)),
    };
    Ok(wire::json(status, &Cancelled { result, decided_by: decided_by.map(wire::time) }))
}

pub(super) fn others() -> Rejected {
    reject(Code::StoreUnavailable, "other requests changed the schedule; this request had no effect; send it again")
}

//! Putting, patching and cancelling one schedule: what is decided by what is there.
//!
//! A condition, and what a change is merged into, are looked at here, on the schedule as it was read; its owner makes the
//! change only if that is how it still stands. So nothing is lost that came between: it is all read and decided again.

use api::{CancelResult, Cancelled, ScheduleSummary};
use axum::extract::State;
use axum::http::StatusCode;
use domain::{Schedule, Status, Timestamp, When};
use scheduler::{CancelAnswer, Create, CreateRefusal, PutAnswer, Timing};

use super::created::{made, may_be_made, never_fires, refuse_create};
use super::dry_run;
use crate::answer;
use crate::auth::Caller;
use crate::body::{merge, read_merged, read_schedule};
use crate::condition::{Condition, Unmet};
use crate::extract::{BodyBytes, ExistingId, MediaType, NewId, schedule_not_found};
use crate::query::DryRun;
use crate::quota::{self, Room};
use crate::refusal::{Answered, Code, Refused, refuse};
use crate::spans;
use crate::state::{App, AppState};

/// How often a change is tried that meets others of the same schedule.
pub(super) const TRIES: usize = 20;

pub(super) async fn put(
    State(app): App,
    Caller { tenant, .. }: Caller,
    NewId(id): NewId,
    _: MediaType,
    condition: Condition,
    DryRun(is_dry_run): DryRun,
    BodyBytes(bytes): BodyBytes,
) -> Answered {
    let now = app.runtime.now();
    let wanted = read_schedule(&bytes, Some(&id), &app.options.limits, &tenant.egress, now)?;
    let room = app.admit(&tenant, Some(&id), &wanted.spec, now).await?;
    let request = Create { tenant, id: Some(id), incarnation: None, spec: wanted.spec };
    if condition.is_none() && !is_dry_run {
        let when = never_fires(&request);
        let answer = app.scheduler.put(request).await?;
        // One that had ended is taken for one that was active: for a second it does not count.
        let is_one_more = answer.as_ref().map_or(true, |put| put.created);
        app.pending.settle(&room, may_be_made(&answer) && is_one_more);
        return put_answer(answer, when);
    }
    put_if(&app, &request, &condition, is_dry_run, &room).await
}

async fn put_if(app: &AppState, request: &Create, condition: &Condition, is_dry_run: bool, room: &Room) -> Answered {
    let id = request.id.as_ref().expect("a put has an id");
    let when = never_fires(request);
    for _ in 0..TRIES {
        let found = app.scheduler.get(request.tenant.id, id.clone()).await?;
        if let Err(unmet) = condition.check(found.as_deref()) {
            if let (Unmet::NoneMatch, Some(found), false) = (unmet, &found, is_dry_run) {
                // It may be that an earlier try of this very request has made it.
                app.scheduler.confirm(found.incarnation).await?;
            }
            app.pending.settle(room, false);
            return Err(unmet.refuse());
        }
        if is_dry_run {
            app.pending.settle(room, false);
            return dry_run::answer(app, request.clone(), found.as_deref(), Timing::Anew);
        }
        let seen = found.as_deref().map(Schedule::seen);
        if let Some(answer) = app.scheduler.put_if(request.clone(), seen, Timing::Anew).await? {
            app.pending.settle(room, may_be_made(&answer) && !is_active(found.as_deref()));
            return put_answer(answer, when);
        }
    }
    Err(others())
}

/// Whether it has its room already.
fn is_active(found: Option<&Schedule>) -> bool {
    found.is_some_and(|found| found.status == Status::Active)
}

pub(super) fn put_answer(answer: Result<PutAnswer, CreateRefusal>, when: &'static str) -> Answered {
    let PutAnswer { schedule, created, too_late } = answer.map_err(|refusal| refuse_create(refusal, when))?;
    spans::made(&schedule);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let summary = ScheduleSummary { too_late, ..answer::summary(&schedule) };
    Ok(made(status, &summary, schedule.edition()))
}

pub(super) async fn patch(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    _: MediaType,
    condition: Condition,
    DryRun(is_dry_run): DryRun,
    BodyBytes(bytes): BodyBytes,
) -> Answered {
    let mut room = Room::default();
    for attempt in 0..TRIES {
        let found = app.scheduler.get(tenant.id, id.clone()).await?.ok_or_else(schedule_not_found)?;
        if found.status == Status::Cancelled {
            return Err(refuse(Code::ScheduleOver, "the schedule is cancelled; make another with PUT"));
        }
        condition.check(Some(&found)).map_err(Unmet::refuse)?;
        let now = app.runtime.now();
        let merged = merge(&found, &bytes)?;
        // First, as an instant that has passed is nothing that the change has said.
        let timing = timing_of(merged.names_timing, &found, now)?;
        let spec = read_merged(merged, &found, &app.options.limits, &tenant.egress, now)?;
        match attempt {
            0 => room = app.admit(&tenant, Some(&id), &spec, now).await?,
            // One request counts once, however often it is tried.
            _ => quota::check_spec(&tenant, &spec, now)?,
        }
        let request = Create { tenant: tenant.clone(), id: Some(id.clone()), incarnation: None, spec };
        if is_dry_run {
            app.pending.settle(&room, false);
            return dry_run::answer(&app, request, Some(&found), timing);
        }
        let when = never_fires(&request);
        if let Some(answer) = app.scheduler.put_if(request, Some(found.seen()), timing).await? {
            app.pending.settle(&room, may_be_made(&answer) && !is_active(Some(&found)));
            return put_answer(answer, when);
        }
    }
    Err(others())
}

/// A change that does not say when leaves that alone; it is too late for it once there is no occurrence left to change.
fn timing_of(names_timing: bool, found: &Schedule, now: Timestamp) -> Result<Timing, Refused> {
    if names_timing {
        return Ok(Timing::Anew);
    }
    let is_due = |next: Timestamp| matches!(found.spec.when, When::At(_)) && next <= now;
    match found.next {
        Some(next) if !is_due(next) => Ok(Timing::Kept),
        Some(_) => {
            Err(refuse(Code::ScheduleOver, "its only occurrence is due already; name a new `at` to have another"))
        }
        None => Err(refuse(Code::ScheduleOver, "it has no further occurrence; name a new `at`, `cron` or `every`")),
    }
}

pub(super) async fn cancel(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    condition: Condition,
) -> Answered {
    if condition.is_none() {
        return cancel_answer(app.scheduler.cancel(tenant.id, id).await?);
    }
    for _ in 0..TRIES {
        let found = app.scheduler.get(tenant.id, id.clone()).await?.ok_or_else(schedule_not_found)?;
        // What was to be done has been done: RFC 9110, section 13.1.1, lets that be said to one who asks again.
        if found.status != Status::Cancelled {
            condition.check(Some(&found)).map_err(Unmet::refuse)?;
        }
        if let Some(answer) = app.scheduler.cancel_if(&found).await? {
            return cancel_answer(answer);
        }
    }
    Err(others())
}

fn cancel_answer(answer: CancelAnswer) -> Answered {
    let (status, result, decided_by) = match answer {
        CancelAnswer::NotFound => return Err(schedule_not_found()),
        CancelAnswer::Cancelled => (StatusCode::OK, CancelResult::Cancelled, None),
        CancelAnswer::TooLate => (StatusCode::OK, CancelResult::TooLate, None),
        CancelAnswer::Pending { decided_by } => (StatusCode::ACCEPTED, CancelResult::Pending, Some(decided_by)),
    };
    Ok(answer::json(status, &Cancelled { result, decided_by: decided_by.map(answer::time) }))
}

pub(super) fn others() -> Refused {
    refuse(Code::StoreUnavailable, "others keep changing the schedule; nothing was done, send it again")
}

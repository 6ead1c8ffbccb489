//! Routes that list and read runs, and redrive a dead letter.

use api::{Redriven, RunPage};
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use domain::occurrence::Run;
use domain::{RunId, ScheduleId};
use scheduler::RedriveResponse;

use crate::auth::Caller;
use crate::extract::{ExistingId, Id, schedule_not_found};
use crate::query::Page;
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::state::{App, AppState};
use crate::wire;

pub(super) async fn schedule_runs(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let page = Page::parse(query.as_deref(), false, RunId::parse)?;
    let runs =
        app.scheduler.runs(tenant.id, id.clone(), page.after, page.limit).await?.ok_or_else(schedule_not_found)?;
    Ok(page_response(&app, runs.iter().map(|run| (run, Some(&id))), page.limit))
}

pub(super) async fn dead_letters(
    State(app): App,
    Caller { tenant, .. }: Caller,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let page = Page::parse(query.as_deref(), true, RunId::parse)?;
    let runs = app.scheduler.dead_letters(tenant.id, page.after, page.limit).await?;
    let ids = app.scheduler.ids(runs.iter().map(|run| run.occurrence.incarnation).collect()).await?;
    Ok(page_response(&app, runs.iter().zip(ids.iter().map(Option::as_ref)), page.limit))
}

/// Maximum number of bytes of the excerpts on one page. A page with more excerpts ends early. JSON escapes at most
/// double the bytes, so that a page fits into the bytes that the server reserves for it.
const PAGE_EXCERPT_BYTES_MAX: usize = 1 << 20;

/// Returns the number of runs at the start of `runs` that fit on one page: all runs, unless their excerpts are too
/// long. At least one run fits.
pub(super) fn fitting<'a>(runs: impl Iterator<Item = &'a Run>) -> usize {
    let mut bytes = 0;
    let fits = |run: &&Run| {
        bytes += run.excerpt_bytes();
        bytes <= PAGE_EXCERPT_BYTES_MAX
    };
    runs.take_while(fits).count().max(1)
}

/// Responds with a page of `runs`, each with the id of its schedule.
fn page_response<'a>(
    app: &AppState,
    runs: impl Iterator<Item = (&'a Run, Option<&'a ScheduleId>)> + Clone,
    limit: usize,
) -> Response<Body> {
    let fitting = fitting(runs.clone().map(|(run, _)| run));
    let is_last = runs.clone().nth(fitting).is_none() && fitting < limit;
    let runs = wire::runs(runs.take(fitting), &app.options.keyring);
    let next_page_token = runs.last().filter(|_| !is_last).map(|run| run.id.clone());
    wire::json(StatusCode::OK, &RunPage { runs, next_page_token, unreadable: 0 })
}

pub(super) async fn get(State(app): App, Caller { tenant, .. }: Caller, Id(id): Id) -> HandlerResult {
    let occurrence = RunId::parse(&id).ok_or_else(run_not_found)?;
    let (run, schedule) = app.scheduler.find_run(tenant.id, occurrence).await?.ok_or_else(run_not_found)?;
    let converted = wire::runs([(&run, Some(&schedule))], &app.options.keyring);
    Ok(wire::json(StatusCode::OK, &converted[0]))
}

pub(super) async fn redrive(State(app): App, Caller { tenant, .. }: Caller, Id(id): Id) -> HandlerResult {
    let occurrence = RunId::parse(&id).ok_or_else(run_not_found)?;
    match app.scheduler.redrive(tenant.id, occurrence).await? {
        RedriveResponse::NotFound => Err(run_not_found()),
        RedriveResponse::NotDead => Err(reject(
            Code::NotDeadLetter,
            "the run has not failed or was already redriven; only a failed run can be redriven, and only once",
        )),
        RedriveResponse::Redriven(occurrence) => {
            let run_id = occurrence.run_id().as_str().to_owned();
            Ok(wire::json(StatusCode::OK, &Redriven { run_id }))
        }
    }
}

fn run_not_found() -> Rejected {
    reject(Code::RunNotFound, "the tenant has no run with this id")
}

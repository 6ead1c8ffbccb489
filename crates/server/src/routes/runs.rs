//! Runs: reading them, and running a dead letter again.

use api::{Redriven, RunPage};
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use domain::occurrence::Run;
use domain::{RunId, ScheduleId};
use scheduler::RedriveAnswer;

use crate::answer;
use crate::auth::Caller;
use crate::extract::{ExistingId, Id, schedule_not_found};
use crate::query::Page;
use crate::refusal::{Answered, Code, refuse};
use crate::state::App;

pub(super) async fn of_schedule(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    RawQuery(query): RawQuery,
) -> Answered {
    let page = Page::parse(query.as_deref(), false, RunId::parse)?;
    let runs =
        app.scheduler.runs(tenant.id, id.clone(), page.after, page.limit).await?.ok_or_else(schedule_not_found)?;
    Ok(page_answer(runs.iter().map(|run| (run, Some(&id))), page.limit))
}

pub(super) async fn dead_letters(
    State(app): App,
    Caller { tenant, .. }: Caller,
    RawQuery(query): RawQuery,
) -> Answered {
    let page = Page::parse(query.as_deref(), true, RunId::parse)?;
    let runs = app.scheduler.dead_letters(tenant.id, page.after, page.limit).await?;
    let ids = app.scheduler.ids(runs.iter().map(|run| run.occurrence.incarnation).collect()).await?;
    Ok(page_answer(runs.iter().zip(ids.iter().map(Option::as_ref)), page.limit))
}

/// `runs` with the ids of their schedules.
fn page_answer<'a>(runs: impl Iterator<Item = (&'a Run, Option<&'a ScheduleId>)>, limit: usize) -> Response<Body> {
    let runs: Vec<api::Run> = runs.map(|(run, id)| answer::run(run, id)).collect();
    let next_page_token = runs.last().filter(|_| runs.len() == limit).map(|run| run.id.clone());
    answer::json(StatusCode::OK, &RunPage { runs, next_page_token })
}

pub(super) async fn redrive(State(app): App, Caller { tenant, .. }: Caller, Id(id): Id) -> Answered {
    let not_found = || refuse(Code::RunNotFound, "no run of your tenant has this id");
    let occurrence = RunId::parse(&id).ok_or_else(not_found)?;
    match app.scheduler.redrive(tenant.id, occurrence).await? {
        RedriveAnswer::NotFound => Err(not_found()),
        RedriveAnswer::NotDead => {
            Err(refuse(Code::NotDeadLetter, "only a run that failed for good, and was not redriven, can be redriven"))
        }
        RedriveAnswer::Redriven(occurrence) => {
            let run_id = occurrence.run_id().as_str().to_owned();
            Ok(answer::json(StatusCode::OK, &Redriven { run_id }))
        }
    }
}

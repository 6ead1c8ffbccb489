//! Runs: reading them, and running a dead letter again.

use api::{FieldError, Redriven, RunPage};
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use domain::occurrence::Run;
use domain::{Role, RunId, ScheduleId};
use scheduler::RedriveAnswer;

use super::schedules::{find_id, not_found};
use crate::answer;
use crate::auth::authenticate;
use crate::refusal::{Kind, Refused, refuse, refuse_fields};
use crate::shared::Shared;

pub(super) const PAGE_LIMIT_DEFAULT: usize = 100;
pub(crate) const PAGE_LIMIT_MAX: usize = 1_000;

pub(super) async fn of_schedule(
    shared: &Shared,
    id: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Reader)?.tenant;
    let id = find_id(id)?;
    let page = Page::parse(query, false, RunId::parse)?;
    let runs = shared.scheduler.runs(tenant.id, id.clone(), page.after, page.limit).await?.ok_or_else(not_found)?;
    Ok(page_answer(runs.iter().map(|run| (run, Some(&id))), page.limit))
}

pub(super) async fn dead_letters(
    shared: &Shared,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Reader)?.tenant;
    let page = Page::parse(query, true, RunId::parse)?;
    let runs = shared.scheduler.dead_letters(tenant.id, page.after, page.limit).await?;
    let ids = shared.scheduler.ids(runs.iter().map(|run| run.occurrence.incarnation).collect()).await?;
    Ok(page_answer(runs.iter().zip(ids.iter().map(Option::as_ref)), page.limit))
}

/// `runs` with the ids of their schedules.
fn page_answer<'a>(runs: impl Iterator<Item = (&'a Run, Option<&'a ScheduleId>)>, limit: usize) -> Response<Body> {
    let runs: Vec<api::Run> = runs.map(|(run, id)| answer::run(run, id)).collect();
    let next_page_token = runs.last().filter(|_| runs.len() == limit).map(|run| run.id.clone());
    answer::json(StatusCode::OK, &RunPage { runs, next_page_token })
}

pub(super) async fn redrive(shared: &Shared, id: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Writer)?.tenant;
    let not_found = || refuse(Kind::RunNotFound, "no run of your tenant has this id");
    let occurrence = RunId::parse(id).ok_or_else(not_found)?;
    match shared.scheduler.redrive(tenant.id, occurrence).await? {
        RedriveAnswer::NotFound => Err(not_found()),
        RedriveAnswer::NotDead => {
            Err(refuse(Kind::NotDeadLetter, "only a run that failed for good, and was not redriven, can be redriven"))
        }
        RedriveAnswer::Redriven(occurrence) => {
            let run_id = occurrence.run_id().as_str().to_owned();
            Ok(answer::json(StatusCode::OK, &Redriven { run_id }))
        }
    }
}

/// What a query asks for.
pub(super) struct Page<T> {
    pub(super) limit: usize,
    pub(super) after: Option<T>,
}

impl<T> Page<T> {
    /// `is_dead_letters`: the query must, or must not, have `dead_letter=true`. `token` reads the token of a page.
    pub(super) fn parse(
        query: Option<&str>,
        is_dead_letters: bool,
        token: impl Fn(&str) -> Option<T>,
    ) -> Result<Self, Refused> {
        let mut page = Page { limit: PAGE_LIMIT_DEFAULT, after: None };
        let mut errors = Vec::new();
        let mut asks_dead_letters = false;
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("limit", text) => match text.parse() {
                    Ok(limit @ 1..=PAGE_LIMIT_MAX) => page.limit = limit,
                    _ => {
                        errors.push(bad("limit", "out_of_range", format!("it is a number from 1 to {PAGE_LIMIT_MAX}")))
                    }
                },
                ("page_token", text) => match token(text) {
                    Some(after) => page.after = Some(after),
                    None => errors.push(bad("page_token", "invalid_token", "it is not a next_page_token".to_owned())),
                },
                ("dead_letter", "true") if is_dead_letters => asks_dead_letters = true,
                ("dead_letter", _) if is_dead_letters => {}
                (name, _) => {
                    let name: String = name.chars().take(64).collect();
                    let detail = format!("{name:?} is no parameter here; limit and page_token are");
                    errors.push(bad("query", "unknown_parameter", detail));
                }
            }
        }
        if is_dead_letters && !asks_dead_letters {
            let detail = "only dead letters are listed over all schedules: send dead_letter=true";
            errors.push(bad("dead_letter", "missing_parameter", detail.to_owned()));
        }
        if errors.is_empty() {
            return Ok(page);
        }
        errors.truncate(32);
        Err(refuse_fields(Kind::InvalidParameter, "the query cannot be used; see errors", errors))
    }
}

pub(super) fn bad(parameter: &'static str, code: &'static str, detail: String) -> FieldError {
    FieldError { parameter: Some(parameter.into()), code: code.into(), detail, ..FieldError::default() }
}

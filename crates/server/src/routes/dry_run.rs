//! `dry_run=true`: all that a request would be held to, and what it would make, and nothing written.

use api::{DryRun, FieldError};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use domain::{Schedule, Status, Timestamp};
use scheduler::{Create, CreateRefusal, Timing};

use super::schedules::{never_fires, refuse_create, shown};
use crate::answer;
use crate::refusal::{Kind, Refused, refuse_fields};
use crate::shared::Shared;

/// How many instants are told.
const UPCOMING_MAX: usize = 5;

/// Whether the query asks for it. There is no other parameter, and one that is misspelt must not be passed over.
pub(super) fn is_asked(query: Option<&str>) -> Result<bool, Refused> {
    let mut is_asked = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (code, detail) = match (pair, is_asked) {
            ("dry_run=true", None) => {
                is_asked = Some(true);
                continue;
            }
            ("dry_run=false", None) => {
                is_asked = Some(false);
                continue;
            }
            ("dry_run=true" | "dry_run=false", Some(_)) => ("duplicate_field", "it is there more than once".to_owned()),
            (pair, _) if pair.starts_with("dry_run=") || pair == "dry_run" => {
                ("wrong_type", "it is `true` or `false`".to_owned())
            }
            (pair, _) => {
                let name: String = pair.split('=').next().unwrap_or_default().chars().take(64).collect();
                ("unknown_parameter", format!("{name:?} is no parameter here; dry_run is"))
            }
        };
        let parameter = if code == "unknown_parameter" { "query" } else { "dry_run" };
        let error =
            FieldError { parameter: Some(parameter.into()), code: code.into(), detail, ..FieldError::default() };
        return Err(refuse_fields(Kind::InvalidParameter, "the query cannot be used; see errors", vec![error]));
    }
    Ok(is_asked.unwrap_or(false))
}

/// What `request` would make, with `existing` under its id.
pub(super) fn answer(
    shared: &Shared,
    request: Create,
    existing: Option<&Schedule>,
    timing: Timing,
) -> Result<Response<Body>, Refused> {
    let when = never_fires(&request);
    let would_be = shared.scheduler.would_put(request, existing, timing);
    let would_be = would_be.ok_or_else(|| refuse_create(CreateRefusal::NeverFires, when))?;
    let is_new = existing.is_none_or(|existing| existing.status == Status::Cancelled);
    told(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &would_be)
}

/// That the answer in earnest would have this `status`, and be about this schedule.
pub(super) fn told(status: StatusCode, would_be: &Schedule) -> Result<Response<Body>, Refused> {
    let upcoming = upcoming(would_be).map(answer::time).collect();
    let told = DryRun { dry_run: true, status: status.as_u16(), schedule: shown(would_be)?, upcoming };
    Ok(answer::json(StatusCode::OK, &told))
}

fn upcoming(schedule: &Schedule) -> impl Iterator<Item = Timestamp> {
    let after = |nominal: &Timestamp| schedule.spec.when.next_after(schedule.updated_at, *nominal);
    std::iter::successors(schedule.next, after).take(UPCOMING_MAX)
}

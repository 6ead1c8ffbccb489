//! `GET /v1/audit`: the differences that the auditor of the leader found. An operator sees the differences of all
//! tenants, and an admin those of the admin's tenant.

use axum::extract::State;
use axum::http::StatusCode;
use domain::{DifferenceKind, Role};
use scheduler::AuditFinding;

use crate::auth::Caller;
use crate::rejection::HandlerResult;
use crate::state::{App, AppState};
use crate::wire::{self, time};

pub(super) async fn audit(State(app): App, Caller { tenant, key }: Caller) -> HandlerResult {
    let of_tenant = (key.role != Role::Operator).then_some(tenant.id);
    let report = app.scheduler.audit(of_tenant).await?;
    let audit = api::Audit {
        from: report.from.map(time),
        completed_at: report.completed_at.map(time),
        unaccounted: report.unaccounted,
        truncated: report.is_truncated,
        incomplete: report.is_incomplete,
        findings: report.findings.iter().map(|finding| finding_of(&app, finding)).collect(),
    };
    Ok(wire::json(StatusCode::OK, &audit))
}

fn finding_of(app: &AppState, finding: &AuditFinding) -> api::AuditFinding {
    let AuditFinding { tenant, schedule, difference, found_at } = finding;
    let name = app.tenants.get(*tenant).map_or_else(|| tenant.0.to_string(), |tenant| tenant.name.clone());
    api::AuditFinding {
        kind: difference.kind.name().to_owned(),
        text: text(difference.kind).to_owned(),
        tenant: name,
        schedule: schedule.to_string(),
        at: time(difference.occurrence.nominal),
        run: difference.occurrence.run_id().to_string(),
        found_at: time(*found_at),
    }
}

fn text(kind: DifferenceKind) -> &'static str {
    match kind {
        DifferenceKind::MissingOutcome => "the occurrence has started, but it has neither an outcome nor a due row",
        DifferenceKind::MissingDueRow => {
            "the schedule waits for the occurrence, but it has no due row; replace the schedule so that it fires again"
        }
        DifferenceKind::MissingRetry => "the run waits for a retry, but the retry has no due row",
        DifferenceKind::NoSuchOccurrence => {
            "the store has an outcome, but the schedule had no occurrence at this instant"
        }
        DifferenceKind::NoSuchRevision => "the store has an outcome of a revision that the schedule has not reached",
        DifferenceKind::NotStarted => "the store has an outcome of an occurrence after the next one",
        DifferenceKind::NotRedriven => "the store has a run of a redrive, but the run before it is not a dead letter",
        DifferenceKind::Duplicate => "the occurrence has an outcome, and a record of missed runs also covers it",
        DifferenceKind::WrongCount => "the record of missed runs has a wrong count",
    }
}

//! `GET /v1/schedules/{id}/explain`: the chain of causes why a schedule did, did not or will not fire at an instant.

use api::CauseKind as Kind;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use domain::explain::{Cause, Verdict};
use domain::{ClockChange, Timestamp, duration};

use crate::auth::Caller;
use crate::extract::{ExistingId, schedule_not_found};
use crate::query::{INVALID_INSTANT, decoded_parameters, instant, parameter_error};
use crate::rejection::{Code, HandlerResult, Rejected, reject_fields};
use crate::state::App;
use crate::wire::{self, time};

pub(super) async fn explain(
    State(app): App,
    Caller { tenant, .. }: Caller,
    ExistingId(id): ExistingId,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let at = parse_at(query.as_deref().unwrap_or_default())?;
    let explanation = app.scheduler.explain(tenant.id, id, at).await?.ok_or_else(schedule_not_found)?;
    let causes = explanation.causes.iter().map(cause).collect();
    let explanation = api::Explanation { at: time(at), verdict: verdict(explanation.verdict), causes };
    Ok(wire::json(StatusCode::OK, &explanation))
}

fn parse_at(query: &str) -> Result<Timestamp, Rejected> {
    let mut errors = Vec::new();
    let values = decoded_parameters(query, &["at"], &mut errors);
    let at = values.get("at").map(|text| instant(text));
    match at {
        Some(Some(at)) if errors.is_empty() => return Ok(at),
        Some(None) => errors.push(parameter_error("at", "invalid_time", INVALID_INSTANT.to_owned())),
        None if errors.is_empty() => errors.push(parameter_error(
            "at",
            "missing_parameter",
            "the parameter is required; send the instant to explain".to_owned(),
        )),
        Some(Some(_)) | None => {}
    }
    Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", errors))
}

fn verdict(verdict: Verdict) -> api::Verdict {
    match verdict {
        Verdict::WillFire => api::Verdict::WillFire,
        Verdict::WillNotFire => api::Verdict::WillNotFire,
        Verdict::Pending => api::Verdict::Pending,
        Verdict::Fired => api::Verdict::Fired,
        Verdict::Failed => api::Verdict::Failed,
        Verdict::DidNotFire => api::Verdict::DidNotFire,
        Verdict::Unknown => api::Verdict::Unknown,
    }
}

fn cause(cause: &Cause) -> api::Cause {
    match cause {
        Cause::Fired { .. }
        | Cause::Answered { .. }
        | Cause::TimedOut { .. }
        | Cause::Unreachable { .. }
        | Cause::EgressRejected { .. }
        | Cause::Panicked { .. }
        | Cause::RetriesLeft { .. }
        | Cause::DeadLetter { .. }
        | Cause::Redriven { .. }
        | Cause::Missed { .. } => cause_of_run(cause),
        Cause::NotYetDue { due_in } => {
            api::Cause::new(Kind::NotYetDue, format!("the occurrence is due in {}", duration::format(*due_in)))
        }
        Cause::Late { by } => {
            let text = format!("the first attempt started {} after its instant", duration::format(*by));
            api::Cause::new(Kind::Late, text)
        }
        Cause::Due { since } => api::Cause {
            at: Some(time(*since)),
            ..api::Cause::new(Kind::Due, "the occurrence is due and has no outcome yet".to_owned())
        },
        Cause::Replaced { revision, at, by } => api::Cause {
            at: at.map(time),
            key: by.clone(),
            ..api::Cause::new(Kind::Replaced, format!("a change replaced revision {} of the schedule", revision.0))
        },
        Cause::Cancelled { at, by } => api::Cause {
            at: at.map(time),
            key: by.clone(),
            ..api::Cause::new(Kind::Cancelled, "the schedule was cancelled".to_owned())
        },
        Cause::Ended { last } => api::Cause {
            at: last.map(time),
            ..api::Cause::new(Kind::Ended, "the schedule has no further occurrence".to_owned())
        },
        Cause::OverQuota { quota, since } => api::Cause {
            at: Some(time(*since)),
            ..api::Cause::new(Kind::OverQuota, format!("the tenant has reached its quota {}", quota.name()))
        },
        Cause::NoSlot => api::Cause::new(Kind::NoSlot, "no slot was free".to_owned()),
        Cause::CircuitOpen { until } => api::Cause {
            at: until.map(time),
            ..api::Cause::new(Kind::CircuitOpen, "the circuit of the target was open".to_owned())
        },
        Cause::CaughtUp { missed } => api::Cause {
            count: Some(*missed),
            ..api::Cause::new(Kind::CaughtUp, "it was the latest of several overdue occurrences".to_owned())
        },
        Cause::MemberDown { until } => api::Cause {
            at: Some(time(*until)),
            ..api::Cause::new(
                Kind::MemberDown,
                "the member that starts the attempts took over the schedule after the instant".to_owned(),
            )
        },
        Cause::SetLate { at } => api::Cause {
            at: Some(time(*at)),
            ..api::Cause::new(Kind::SetLate, "a user set the timing after the instant".to_owned())
        },
        Cause::OwnerUnreachable => api::Cause::new(
            Kind::OwnerUnreachable,
            "the member that owns the schedule is unreachable, or no member owns it".to_owned(),
        ),
        Cause::RowUnreadable { reason } => {
            api::Cause::new(Kind::RowUnreadable, format!("the stored schedule is unreadable: {reason}"))
        }
        Cause::NoMatch { next } => api::Cause {
            at: next.map(time),
            ..api::Cause::new(Kind::NoMatch, "the timing has no occurrence at this instant".to_owned())
        },
        Cause::ZoneMoved(change) => zone_moved(*change),
        Cause::NotCreated { created_at } => api::Cause {
            at: Some(time(*created_at)),
            ..api::Cause::new(Kind::NotCreated, "the schedule did not exist yet".to_owned())
        },
        Cause::HistoryDeleted { before } => api::Cause {
            at: Some(time(*before)),
            ..api::Cause::new(Kind::HistoryDeleted, "the history of this time may be deleted".to_owned())
        },
    }
}

fn zone_moved(change: ClockChange) -> api::Cause {
    let (text, fires_at) = match change {
        ClockChange::Skipped { fires_at } => ("a clock change of the time zone skips this local time", fires_at),
        ClockChange::Repeated { fires_at } => ("a clock change of the time zone repeats this local time", fires_at),
    };
    api::Cause { at: Some(time(fires_at)), ..api::Cause::new(Kind::ZoneMoved, text.to_owned()) }
}

/// Converts a cause that the run of the occurrence contains.
fn cause_of_run(cause: &Cause) -> api::Cause {
    match cause {
        Cause::Fired { attempt, started_at } => api::Cause {
            at: Some(time(*started_at)),
            attempt: Some(*attempt),
            ..api::Cause::new(Kind::Fired, format!("attempt {attempt} succeeded"))
        },
        Cause::Answered { attempt, status } => api::Cause {
            attempt: Some(*attempt),
            status: Some(*status),
            ..api::Cause::new(Kind::Answered, format!("attempt {attempt}: the target responded with status {status}"))
        },
        Cause::TimedOut { attempt } => api::Cause {
            attempt: Some(*attempt),
            ..api::Cause::new(Kind::TimedOut, format!("attempt {attempt} timed out"))
        },
        Cause::Unreachable { attempt, reason } => api::Cause {
            attempt: Some(*attempt),
            ..api::Cause::new(Kind::Unreachable, format!("attempt {attempt} could not reach the target: {reason}"))
        },
        Cause::EgressRejected { attempt, reason } => api::Cause {
            attempt: Some(*attempt),
            ..api::Cause::new(Kind::EgressRejected, format!("attempt {attempt}: {reason}"))
        },
        Cause::Panicked { attempt } => api::Cause {
            attempt: Some(*attempt),
            ..api::Cause::new(Kind::Panicked, format!("the server failed during attempt {attempt}"))
        },
        Cause::RetriesLeft { left, next_at } => api::Cause {
            at: next_at.map(time),
            count: Some(u64::from(*left)),
            ..api::Cause::new(Kind::RetriesLeft, format!("the run has {left} more attempts"))
        },
        Cause::DeadLetter { attempts } => api::Cause {
            count: Some(u64::from(*attempts)),
            ..api::Cause::new(Kind::DeadLetter, format!("the run is a dead letter after {attempts} attempts"))
        },
        Cause::Redriven { replay } => api::Cause {
            count: Some(u64::from(*replay)),
            ..api::Cause::new(Kind::Redriven, "a user redrove the dead letter".to_owned())
        },
        Cause::Missed { replaced_by, count, attempt_possible } => {
            let possible = if *attempt_possible { "; an attempt may have started" } else { "" };
            let text = format!("a later occurrence was due too and fired instead{possible}");
            let at = replaced_by.map(time);
            api::Cause { at, count: Some(*count), ..api::Cause::new(Kind::Missed, text) }
        }
        other => unreachable!("the caller passes only causes of runs, but it passed {other:?}"),
    }
}

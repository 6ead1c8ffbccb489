//! Parsing and checking of schedules in request bodies.
//!
//! [`reader`] parses the JSON, and [`check`] converts and checks the fields. Both continue after an error, so that one
//! response lists all errors. The parsing of a body that is not JSON ends at the first error.

mod check;
pub(crate) mod collect;
mod merge;
mod pointer;
mod reader;

#[cfg(test)]
mod tests;

use api::FieldError;
use domain::limits::Limits;
use domain::{Egress, Schedule, ScheduleId, Secret, Spec, Target, Tenant, Timestamp};

use crate::quota::check_spec;
use crate::rejection::{Code, Rejected, reject, reject_fields};
use check::ScheduleFields;
pub(crate) use merge::{Merged, merge};
use pointer::{ERRORS_MAX, Errors};

/// Schedule of a request body, after parsing and checking.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ParsedSchedule {
    pub(crate) id: Option<ScheduleId>,
    pub(crate) spec: Spec,
}

/// Reads and checks one schedule. `named` is the id in the path, if the path contains an id. `egress` is the egress
/// policy of the tenant.
pub(crate) fn read_schedule(
    bytes: &[u8],
    named: Option<&ScheduleId>,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
) -> Result<ParsedSchedule, Rejected> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(&error))?;
    read_text(text, named, Vec::new(), limits, egress, now)
}

/// Checks the schedule that results from a change to `schedule`. If the change moves the target to another origin, the
/// change must name every header again, because the stored headers may contain credentials for the old origin.
pub(crate) fn read_merged(
    merged: Merged,
    schedule: &Schedule,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
) -> Result<Spec, Rejected> {
    let keeps_headers = !merged.headers_kept.is_empty();
    let spec = read_text(&merged.text, Some(&schedule.id), merged.headers_kept, limits, egress, now)?.spec;
    if keeps_headers && spec.target.origin() != schedule.spec.target.origin() {
        let part = match spec.target {
            Target::Http(_) => "scheme, host or port",
            Target::Bus(_) => "topic",
        };
        let error = FieldError {
            pointer: Some(format!("/target/{}/headers", merge::kind_name(&spec.target))),
            code: "headers_not_named".into(),
            detail: format!("the target has another {part}, and would receive headers meant for the old one"),
            hint: Some("send each header with its value, or remove it with null".to_owned()),
            ..FieldError::default()
        };
        return Err(reject_fields(Code::InvalidSchedule, summary(1), vec![error]));
    }
    Ok(spec)
}

/// Reads a body that the server has already checked. This function accepts instants in the past, because time has
/// passed since that check.
pub(crate) fn read_again(bytes: &[u8]) -> Option<Spec> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut found = Vec::new();
    let mut errors = Errors::new(&mut found);
    let fields = reader::read_document::<ScheduleFields<'_>>(text, &mut errors).ok()??;
    let (limits, egress) = (Limits::default(), Egress::default());
    Some(check::check(fields, None, &limits, &egress, Timestamp::MIN, Vec::new(), &mut errors).spec)
}

fn read_text(
    text: &str,
    named: Option<&ScheduleId>,
    headers_kept: Vec<(String, Secret)>,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
) -> Result<ParsedSchedule, Rejected> {
    let mut found = Vec::new();
    let mut errors = Errors::new(&mut found);
    let fields = reader::read_document::<ScheduleFields<'_>>(text, &mut errors).map_err(|error| malformed(&error))?;
    let parsed = match fields {
        Some(fields) => Some(check::check(fields, named, limits, egress, now, headers_kept, &mut errors)),
        None => {
            reader::note_null(&mut errors);
            None
        }
    };
    match parsed {
        Some(parsed) if found.is_empty() => Ok(parsed),
        _ => Err(reject_fields(Code::InvalidSchedule, summary(found.len()), found)),
    }
}

/// Reads and checks a schedule that did not arrive over HTTP. `text` has the form of a POST body without an id. The
/// function also checks the quotas that limit a single schedule.
///
/// # Errors
/// Returns a text that lists all errors.
pub fn read_spec(text: &str, limits: &Limits, tenant: &Tenant, now: Timestamp) -> Result<Spec, String> {
    // An id in the text is an error, because the caller of this function has the id from another source.
    let named = ScheduleId::new("named-elsewhere").expect("the text is a valid id");
    let parsed = read_schedule(text.as_bytes(), Some(&named), limits, &tenant.egress, now);
    let checked = parsed.and_then(|parsed| check_spec(tenant, &parsed.spec, now).map(|()| parsed.spec));
    checked.map_err(|rejected| rejected.to_string())
}

fn summary(count: usize) -> String {
    match count {
        1 => "the body has 1 error; see the field `errors`".to_owned(),
        ERRORS_MAX => format!("the body has {ERRORS_MAX} or more errors; see the first ones in the field `errors`"),
        _ => format!("the body has {count} errors; see the field `errors`"),
    }
}

fn malformed(error: &serde_json::Error) -> Rejected {
    reject(Code::MalformedJson, format!("{error}; send one JSON object in UTF-8"))
}

fn not_utf8(error: &std::str::Utf8Error) -> Rejected {
    reject(Code::NotUtf8, format!("byte {} is not part of a UTF-8 character", error.valid_up_to()))
}

//! From a request's bytes to a checked schedule.
//!
//! Two steps: [`reader`] takes the JSON apart, [`check`] makes values of the fields. Both go on after an error, so that
//! one answer names everything that is wrong; only a body that is not JSON at all is refused at the first error.

mod check;
pub(crate) mod collect;
mod merge;
mod pointer;
mod reader;

#[cfg(test)]
mod tests;

use api::FieldError;
use domain::limits::Limits;
use domain::{Egress, Schedule, ScheduleId, Secret, Spec, Timestamp};

use crate::refusal::{Code, Refused, refuse, refuse_fields};
use check::ScheduleFields;
pub(crate) use merge::{Merged, merge};
use pointer::{ERRORS_MAX, Errors};

/// What a body asks for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Wanted {
    pub(crate) id: Option<ScheduleId>,
    pub(crate) spec: Spec,
}

/// Reads and checks one schedule. `named` is the id that the path gives, if it does; `egress` the policy of its tenant.
pub(crate) fn read_schedule(
    bytes: &[u8],
    named: Option<&ScheduleId>,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
) -> Result<Wanted, Refused> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(&error))?;
    read_text(text, named, Vec::new(), limits, egress, now)
}

/// Checks all that a change makes of `schedule`. Headers that nobody names again do not go to another place than they were
/// given for: what is in them may be a credential of that one.
pub(crate) fn read_merged(
    merged: Merged,
    schedule: &Schedule,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
) -> Result<Spec, Refused> {
    let keeps_headers = !merged.headers_kept.is_empty();
    let spec = read_text(&merged.text, Some(&schedule.id), merged.headers_kept, limits, egress, now)?.spec;
    if keeps_headers && spec.target.origin() != schedule.spec.target.origin() {
        let error = FieldError {
            pointer: Some("/target/http/headers".to_owned()),
            code: "headers_not_named".into(),
            detail: "the target is at another scheme, host or port, and headers that were given for the one before would go there".into(),
            hint: Some("name each header with its value, or take it away with null".to_owned()),
            ..FieldError::default()
        };
        return Err(refuse_fields(Code::InvalidSchedule, summary(1), vec![error]));
    }
    Ok(spec)
}

/// What a body says, which was read and checked before: it is not judged again, as time has passed since.
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
) -> Result<Wanted, Refused> {
    let mut found = Vec::new();
    let mut errors = Errors::new(&mut found);
    let fields = reader::read_document::<ScheduleFields<'_>>(text, &mut errors).map_err(|error| malformed(&error))?;
    let wanted = match fields {
        Some(fields) => Some(check::check(fields, named, limits, egress, now, headers_kept, &mut errors)),
        None => {
            reader::note_null(&mut errors);
            None
        }
    };
    match wanted {
        Some(wanted) if found.is_empty() => Ok(wanted),
        _ => Err(refuse_fields(Code::InvalidSchedule, summary(found.len()), found)),
    }
}

/// Reads and checks a schedule that came another way than over HTTP, as POST takes it without its id.
///
/// # Errors
/// With all that is wrong with it, in words.
pub fn read_spec(text: &str, limits: &Limits, egress: &Egress, now: Timestamp) -> Result<Spec, String> {
    // The id that it is made under is not in it.
    let named = ScheduleId::new("named-elsewhere").expect("it is an id");
    let wanted = read_schedule(text.as_bytes(), Some(&named), limits, egress, now);
    wanted.map(|wanted| wanted.spec).map_err(|refused| refused.to_string())
}

fn summary(count: usize) -> String {
    match count {
        1 => "one thing is wrong with the body; see errors".to_owned(),
        ERRORS_MAX => format!("{ERRORS_MAX} or more things are wrong with the body; the first are in errors"),
        _ => format!("{count} things are wrong with the body; see errors"),
    }
}

fn malformed(error: &serde_json::Error) -> Refused {
    refuse(Code::MalformedJson, format!("{error}; send one JSON object in UTF-8"))
}

fn not_utf8(error: &std::str::Utf8Error) -> Refused {
    refuse(Code::NotUtf8, format!("byte {} is not part of a UTF-8 character", error.valid_up_to()))
}

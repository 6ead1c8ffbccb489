//! Conversion of domain values to wire types.

use std::borrow::Cow;

use api::Time;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use domain::limits::EXCERPT_BYTES_MAX;
use domain::occurrence::Run;
use domain::{
    AttemptResult, BusTarget, CloudEvent, CloudEventMode, HttpTarget, RunId, RunState, Schedule, ScheduleId, Secret,
    Status, Target, Timestamp, When, duration,
};
use serde_json::value::RawValue;
use store::Keyring;
use store::encryption::Place;

use crate::rejection::to_json;

pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    let mut response = Response::new(Body::from(to_json(value)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn summary(schedule: &Schedule) -> api::ScheduleSummary<'_> {
    api::ScheduleSummary {
        id: Cow::Borrowed(schedule.id.as_str()),
        state: state(schedule.status),
        next: schedule.next.map(time),
        revision: schedule.revision.0,
        created_at: time(schedule.created_at),
        updated_at: time(schedule.updated_at),
        too_late: false,
    }
}

/// Converts a schedule. Returns `None` if the stored payload is not valid JSON. The payload was valid JSON at the
/// creation of the schedule, so the stored data is damaged.
pub(crate) fn schedule(schedule: &Schedule) -> Option<api::Schedule> {
    let (mut at, mut cron, mut every, mut zone) = (None, None, None, None);
    match &schedule.spec.when {
        When::At(instant) => at = Some(time(*instant)),
        When::Every { interval, .. } => every = Some(duration::format(*interval)),
        When::Cron(expression) => {
            cron = Some(expression.expression().to_owned());
            zone = Some(expression.zone().to_owned());
        }
    }
    let retry = schedule.spec.retry;
    let payload = match schedule.spec.payload.as_ref() {
        [] => None,
        bytes => Some(RawValue::from_string(String::from_utf8(bytes.to_vec()).ok()?).ok()?),
    };
    Some(api::Schedule {
        id: schedule.id.as_str().to_owned(),
        state: state(schedule.status),
        next: schedule.next.map(time),
        revision: schedule.revision.0,
        created_at: time(schedule.created_at),
        updated_at: time(schedule.updated_at),
        at,
        cron,
        every,
        zone,
        target: target(&schedule.spec.target),
        payload,
        labels: schedule.spec.labels.clone(),
        retry: api::Retry {
            attempts_max: retry.attempts_max,
            backoff: duration::format(retry.backoff),
            backoff_max: duration::format(retry.backoff_max),
        },
    })
}

fn target(target: &Target) -> api::Target {
    let headers = target.headers().iter().map(|(name, _)| (name.clone(), Secret::REDACTED.to_owned())).collect();
    let timeout = duration::format(target.timeout());
    match target {
        Target::Http(HttpTarget { url, method, headers: _, timeout: _ }) => {
            api::Target::Http(api::HttpTarget { url: url.clone(), method: method.clone(), headers, timeout })
        }
        Target::Bus(BusTarget { topic, key, headers: _, cloud_event, timeout: _ }) => {
            let cloud_event = cloud_event.as_ref().map(self::cloud_event);
            api::Target::Bus(api::BusTarget { topic: topic.clone(), key: key.clone(), headers, cloud_event, timeout })
        }
    }
}

pub(crate) fn cloud_event(event: &CloudEvent) -> api::CloudEvent {
    let CloudEvent { mode, kind, source } = event;
    let mode = match mode {
        CloudEventMode::Binary => api::CloudEventMode::Binary,
        CloudEventMode::Structured => api::CloudEventMode::Structured,
    };
    api::CloudEvent { mode, kind: Some(kind.clone()), source: source.clone() }
}

/// Converts the runs of a page, each with the id of its schedule, or `None` if the schedule no longer exists. `keyring`
/// decrypts the excerpts of responses. Logs one warning for all excerpts that it cannot decrypt.
pub(crate) fn runs<'a>(
    runs: impl IntoIterator<Item = (&'a Run, Option<&'a ScheduleId>)>,
    keyring: &Keyring,
) -> Vec<api::Run> {
    let mut opening = Opening { keyring, failed: 0, first: None };
    let converted = runs.into_iter().map(|(run, schedule)| self::run(run, schedule, &mut opening)).collect();
    if let Some((run, error)) = opening.first {
        let count = opening.failed;
        tracing::warn!(count, first_run = %run, %error, "excerpts not shown: cannot decrypt them");
    }
    converted
}

/// Decryption of the excerpts of a page.
struct Opening<'a> {
    keyring: &'a Keyring,
    /// Number of excerpts that the keyring cannot decrypt.
    failed: usize,
    /// Run of the first of these excerpts, and the error.
    first: Option<(RunId, String)>,
}

fn run(run: &Run, schedule: Option<&ScheduleId>, opening: &mut Opening<'_>) -> api::Run {
    let (missed_last, missed_count, attempt_possible) = match run.state {
        RunState::Missed { last, count, attempt_possible } => (Some(time(last)), Some(count), attempt_possible),
        RunState::Retrying | RunState::Succeeded | RunState::Failed | RunState::Cancelled => (None, None, false),
    };
    api::Run {
        id: run.occurrence.run_id().as_str().to_owned(),
        schedule_id: schedule.map(|id| id.as_str().to_owned()),
        state: match run.state {
            RunState::Retrying => api::RunState::Retrying,
            RunState::Succeeded => api::RunState::Succeeded,
            RunState::Failed => api::RunState::Failed,
            RunState::Missed { .. } => api::RunState::Missed,
            RunState::Cancelled => api::RunState::Cancelled,
        },
        scheduled_at: time(run.occurrence.nominal),
        revision: run.occurrence.revision.0,
        replay: run.occurrence.replay,
        missed_last,
        missed_count,
        attempt_possible,
        attempts: run.attempts.iter().map(|one| attempt(run, one, opening)).collect(),
    }
}

fn attempt(run: &Run, attempt: &domain::Attempt, opening: &mut Opening<'_>) -> api::Attempt {
    let (excerpt, excerpt_base64) = match excerpt(run, attempt, opening) {
        Some(Ok(text)) => (Some(text), None),
        Some(Err(bytes)) => (None, Some(STANDARD.encode(bytes))),
        None => (None, None),
    };
    let mut converted = api::Attempt {
        number: attempt.number,
        started_at: time(attempt.started_at),
        duration_ms: u64::try_from(attempt.duration.as_millis()).unwrap_or(u64::MAX),
        status: None,
        partition: None,
        offset: None,
        error_class: (!attempt.result.is_success()).then(|| attempt.result.class().to_owned()),
        error: None,
        excerpt,
        excerpt_base64,
    };
    match &attempt.result {
        AttemptResult::Answered(status) => converted.status = Some(*status),
        AttemptResult::Stored { partition, offset } => {
            converted.partition = Some(*partition);
            converted.offset = Some(*offset);
        }
        AttemptResult::Unreachable(reason) => converted.error = Some(reason.clone()),
        AttemptResult::TimedOut => converted.error = Some("timed out".to_owned()),
        AttemptResult::Panicked => converted.error = Some("the executor failed".to_owned()),
    }
    converted
}

/// Returns the excerpt of an attempt: as text, or as bytes if it is not UTF-8 or contains control characters other than
/// tabs and line ends. Returns `None` if the attempt has no excerpt, or if the keyring cannot decrypt it.
fn excerpt(run: &Run, attempt: &domain::Attempt, opening: &mut Opening<'_>) -> Option<Result<String, Vec<u8>>> {
    let stored = attempt.excerpt.as_ref()?;
    let id = run.occurrence.run_id();
    let place = Place::Excerpt { tenant: run.tenant, run: &id, attempt: attempt.number };
    match opening.keyring.open(place, stored) {
        Ok(bytes) => Some(text_of(&bytes)),
        Err(error) => {
            opening.failed += 1;
            opening.first.get_or_insert_with(|| (id.clone(), error.to_string()));
            None
        }
    }
}

/// Returns the text of an excerpt. The excerpt may end within a character, whose bytes the text then lacks.
fn text_of(bytes: &[u8]) -> Result<String, Vec<u8>> {
    let is_cut = bytes.len() == EXCERPT_BYTES_MAX;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("the parser has accepted these bytes")
        }
        Err(_) => return Err(bytes.to_vec()),
    };
    if text.chars().any(|c| c.is_control() && !"\t\n\r".contains(c)) {
        Err(bytes.to_vec())
    } else {
        Ok(text.to_owned())
    }
}

pub(crate) fn time(instant: Timestamp) -> Time {
    Time(instant.as_millis())
}

fn state(status: Status) -> api::ScheduleState {
    match status {
        Status::Active => api::ScheduleState::Active,
        Status::Ended => api::ScheduleState::Ended,
        Status::Cancelled => api::ScheduleState::Cancelled,
    }
}

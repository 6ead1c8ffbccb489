//! A span for each request, at debug level and of a target of its own; what is not looked at costs a look at a number.
//!
//! The names of the fields are known to who exports spans (`reveille::otlp`): a schedule's incarnation and revision say
//! which span its runs link to.

use axum::http::{HeaderMap, StatusCode};
use domain::Schedule;
use tracing::Span;
use tracing::field::{Empty, display};

/// The route of a batch, whose lines have a span each.
const BATCH: &str = "POST /v1/schedules:batch";

macro_rules! request_span {
    ($($field:tt)*) => {
        tracing::debug_span!(target: "reveille::spans", "request", $($field)*)
    };
}

pub(crate) fn request(route: &'static str) -> Span {
    request_span!(
        route,
        status = Empty,
        schedule = Empty,
        incarnation = Empty,
        revision = Empty,
        caller = Empty,
        error = Empty
    )
}

pub(crate) fn answered(span: &Span, status: StatusCode) {
    span.record("status", status.as_u16());
    if status.is_server_error() {
        span.record("error", status.as_str());
    }
}

/// Notes the trace that the client is in, if it says so.
pub(crate) fn caller(headers: &HeaderMap) {
    if let Some(caller) = headers.get("traceparent").and_then(|value| value.to_str().ok()) {
        Span::current().record("caller", caller);
    }
}

/// Notes that the request that is under way made this schedule, or this revision of it.
pub(crate) fn made(schedule: &Schedule) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("schedule", schedule.id.as_str());
        span.record("incarnation", display(format_args!("{:032x}", schedule.incarnation.0)));
        span.record("revision", schedule.revision.0);
    }
}

/// A line of a batch is as a request of its own.
pub(crate) fn made_in_batch(schedule: &Schedule) {
    drop(request_span!(
        route = BATCH,
        status = StatusCode::CREATED.as_u16(),
        schedule = schedule.id.as_str(),
        incarnation = format_args!("{:032x}", schedule.incarnation.0),
        revision = schedule.revision.0
    ));
}

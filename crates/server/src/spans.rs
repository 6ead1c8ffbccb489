//! Spans of requests, at debug level and with their own tracing target. If spans are disabled, a request only performs
//! one integer comparison per span.
//!
//! The span exporter (`reveille::otlp`) relies on the field names. The spans of a schedule's runs link to the request
//! span with the same incarnation and revision.

use axum::http::{HeaderMap, StatusCode};
use domain::Schedule;
use tracing::Span;
use tracing::field::{Empty, display};

/// Route of a batch. Each line of a batch has its own span.
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

pub(crate) fn record_status(span: &Span, status: StatusCode) {
    span.record("status", status.as_u16());
    if status.is_server_error() {
        span.record("error", status.as_str());
    }
}

/// Records the client's trace context, which the header `traceparent` contains, in the current span.
pub(crate) fn record_caller(headers: &HeaderMap) {
    if let Some(caller) = headers.get("traceparent").and_then(|value| value.to_str().ok()) {
        Span::current().record("caller", caller);
    }
}

/// Records that the current request created this schedule or this revision of it.
pub(crate) fn record_schedule(schedule: &Schedule) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("schedule", schedule.id.as_str());
        span.record("incarnation", display(format_args!("{:032x}", schedule.incarnation.0)));
        span.record("revision", schedule.revision.0);
    }
}

/// Emits the span of one line of a batch. Each line counts as a request.
pub(crate) fn record_batch_line(schedule: &Schedule) {
    drop(request_span!(
        route = BATCH,
        status = StatusCode::CREATED.as_u16(),
        schedule = schedule.id.as_str(),
        incarnation = format_args!("{:032x}", schedule.incarnation.0),
        revision = schedule.revision.0
    ));
}

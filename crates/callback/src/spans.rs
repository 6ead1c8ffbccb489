//! A span for each attempt, at debug level and of a target of its own; what is not looked at costs a look at a number.
//!
//! The names of the fields are known to who exports spans (`reveille::otlp`). Of a target its scheme, host and port are told, and
//! neither path nor query, which may hold what is secret.

use domain::{AttemptResult, Target};
use http::Uri;
use scheduler::{Delivered, Delivery};
use tracing::Span;
use tracing::field::{Empty, display};

pub(crate) fn attempt(delivery: &Delivery) -> Span {
    let span = tracing::debug_span!(
        target: "reveille::spans",
        "attempt",
        run = %delivery.occurrence.run_id(),
        attempt = delivery.attempt,
        method = Empty,
        address = Empty,
        span = Empty,
        status = Empty,
        error = Empty
    );
    if !span.is_disabled() {
        let Target::Http(target) = &delivery.schedule.spec.target;
        span.record("method", target.method.as_str());
        // The authority has no user: such a URL is refused.
        if let Some(authority) = target.url.parse::<Uri>().ok().as_ref().and_then(Uri::authority) {
            span.record("address", authority.as_str());
        }
    }
    span
}

/// The receiver is told that its caller is the span of this id.
pub(crate) fn sent(span_id: u64) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("span", display(format_args!("{span_id:016x}")));
    }
}

/// `None`: it was not sent.
pub(crate) fn ended(delivered: Option<&Delivered>) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    let error = match delivered.map(|delivered| &delivered.result) {
        None => "not sent",
        Some(AttemptResult::Answered(status)) => {
            span.record("status", *status);
            match delivered.is_some_and(|delivered| delivered.result.is_success()) {
                true => return,
                false => "refused by the target",
            }
        }
        Some(AttemptResult::Unreachable(reason)) => reason.as_str(),
        Some(AttemptResult::TimedOut) => "timed out",
        Some(AttemptResult::Panicked) => "panicked",
    };
    span.record("error", error);
}

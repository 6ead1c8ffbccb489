//! Tracing span of each attempt, at debug level and with its own tracing target. If the span is disabled, each function
//! of this module makes only one comparison.
//!
//! The exporter of spans (`reveille::otlp`) relies on the names of the span's fields. The span records the scheme, host
//! and port of the callback's target, but neither path nor query, because these may contain secrets.

use domain::{AttemptResult, Target};
use futures_util::future::BoxFuture;
use http::Uri;
use scheduler::{Delivered, Delivery};
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

/// Runs an attempt in its span, and records its result.
pub(crate) fn traced(
    span: Span,
    attempt: impl Future<Output = Option<Delivered>> + Send + 'static,
) -> BoxFuture<'static, Option<Delivered>> {
    Box::pin(
        async move {
            let delivered = attempt.await;
            ended(delivered.as_ref());
            delivered
        }
        .instrument(span),
    )
}

pub(crate) fn attempt(delivery: &Delivery) -> Span {
    let span = tracing::debug_span!(
        target: "reveille::spans",
        "attempt",
        run = %delivery.occurrence.run_id(),
        attempt = delivery.attempt,
        method = Empty,
        address = Empty,
        topic = Empty,
        span = Empty,
        status = Empty,
        error = Empty
    );
    if !span.is_disabled() {
        match &delivery.schedule.spec.target {
            Target::Http(target) => {
                span.record("method", target.method.as_str());
                // The authority contains no user name, because the client rejects a URL with a user name.
                if let Some(authority) = target.url.parse::<Uri>().ok().as_ref().and_then(Uri::authority) {
                    span.record("address", authority.as_str());
                }
            }
            Target::Bus(target) => drop(span.record("topic", target.topic.as_str())),
        }
    }
    span
}

/// Records the span id that the callback's `traceparent` header carries.
pub(crate) fn sent(span_id: u64) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("span", display(format_args!("{span_id:016x}")));
    }
}

/// Records the result of the attempt; `None` means that the client did not send the callback.
fn ended(delivered: Option<&Delivered>) {
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
                false => "the target responded with a status other than 2xx",
            }
        }
        Some(AttemptResult::Stored { .. }) => return,
        Some(AttemptResult::Unreachable(reason)) => reason.as_str(),
        Some(AttemptResult::TimedOut) => "timed out",
        Some(AttemptResult::Panicked) => "panicked",
    };
    span.record("error", error);
}

//! Routes for operators: liveness, readiness and metrics. They need no key and reveal no data of tenants.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::json;
use store::Health;

use crate::rejection::{Code, HandlerResult, reject};
use crate::state::App;
use crate::wire;

pub(super) const OPEN_METRICS: &str = "application/openmetrics-text";

/// Responds that the process runs.
pub(super) async fn health() -> Response<Body> {
    wire::json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Responds with status 200 while the server accepts requests. A nearly full disk changes only the body of the response
/// and not its status, because the server then rejects only requests that write data. An outage of the coordination
/// engine changes the status when the lease of this member has ended.
pub(super) async fn ready(State(app): App) -> HandlerResult {
    if app.readiness.is_withdrawn() {
        return Err(reject(Code::Stopping, "the server is stopping; send new requests to another server"));
    }
    if app.scheduler.clock_is_behind() {
        return Err(reject(
            Code::StoreUnavailable,
            "the clock of this member or of an earlier owner was ahead; the member is correcting the positions of its \
             shards",
        ));
    }
    let status = match app.scheduler.health() {
        Health::Ready => "ready",
        Health::Full => "storage_full",
        Health::Unreachable => {
            return Err(reject(
                Code::StoreUnavailable,
                "the database server of the store is unreachable; this member tries to connect again",
            ));
        }
        Health::Closed => {
            return Err(reject(Code::StoreUnavailable, "the store is closed or has failed; see the server's log"));
        }
    };
    let status = match app.scheduler.coordination_outage() {
        None => status,
        // Until the end of its lease, the member creates and fires schedules as before.
        Some(_) if app.scheduler.may_own() && status != "ready" => status,
        Some(_) if app.scheduler.may_own() => "coordination_unavailable",
        Some(outage) => {
            let detail = format!(
                "{outage}, so this member owns no shards and fires no schedules; check the engine and the network"
            );
            return Err(reject(Code::CoordinationUnavailable, detail));
        }
    };
    Ok(wire::json(StatusCode::OK, &json!({ "status": status })))
}

/// Responds with the metrics as OpenMetrics text if the client accepts it, else in the text format of Prometheus.
pub(super) async fn metrics(State(app): App, headers: HeaderMap) -> Response<Body> {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_open = accepted.flat_map(|value| value.split(',')).any(|media| media.trim().starts_with(OPEN_METRICS));
    let text = app.metrics.text(is_open, app.runtime.monotonic(), || app.scheduler.metrics_text());
    let content_type = match is_open {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

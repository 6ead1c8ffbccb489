//! Routes for operators: liveness, readiness and metrics. They need no key and reveal no data of tenants.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::json;
use store::Health;

use crate::rejection::{Code, HandlerResult, reject};
use crate::state::App;
use crate::wire;

/// Responds that the process runs.
pub(super) async fn health() -> Response<Body> {
    wire::json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Responds that the server accepts requests. A nearly full disk does not change the response, because it affects only
/// new schedules.
pub(super) async fn ready(State(app): App) -> HandlerResult {
    if app.readiness.is_withdrawn() {
        return Err(reject(Code::Stopping, "the server is stopping; send new requests to another server"));
    }
    let status = match app.scheduler.health() {
        Health::Ready => "ready",
        Health::Full => "storage_full",
        Health::Unreachable => {
            return Err(reject(Code::StoreUnavailable, "the store's server is unreachable; this server retries"));
        }
        Health::Closed => return Err(reject(Code::StoreUnavailable, "the store is closed or has failed")),
    };
    Ok(wire::json(StatusCode::OK, &json!({ "status": status })))
}

pub(super) async fn metrics(State(app): App) -> Response<Body> {
    let mut response = Response::new(Body::from(app.metrics.text(app.scheduler.metrics_text())));
    let open_metrics = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, open_metrics);
    response
}

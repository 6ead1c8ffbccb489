//! The child process of `bench limit` that stands for a server: the HTTP stack that Reveille uses, and nothing else.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use journal::{Commit, Journal, Opened};
use runtime::{Runtime, TaskSet};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

type Ticket = oneshot::Sender<()>;

/// Serves until it is killed. With a `folder` for a journal, each POST is durable before its answer.
pub(crate) async fn serve(runtime: &Runtime, listen: SocketAddr, folder: Option<PathBuf>) -> anyhow::Result<()> {
    let tasks = TaskSet::new(runtime);
    let create = match folder {
        None => post(async |_body: Bytes| StatusCode::CREATED),
        Some(folder) => post(create_durably).with_state(open(runtime, &tasks, &folder).await?),
    };
    let router = Router::new().route("/readyz", get(async || StatusCode::OK)).route("/v1/schedules", create);
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "a connection keeps its small packets back");
        }
    });
    axum::serve(listener, router).await.context("the bare handler stopped")
}

async fn open(runtime: &Runtime, tasks: &TaskSet, folder: &Path) -> anyhow::Result<Journal<Ticket>> {
    let opened = Journal::open(runtime, tasks, folder, journal::Options::default()).await;
    let Opened { journal, commits, .. } = opened.context("cannot open the bare handler's journal")?;
    tasks.spawn("limit-answers", answer(journal.clone(), commits));
    Ok(journal)
}

async fn answer(journal: Journal<Ticket>, mut commits: mpsc::Receiver<Commit<Ticket>>) {
    while let Some(commit) = commits.recv().await {
        for (_, ticket) in commit.entries {
            // Who asked may have gone away.
            let _gone = ticket.send(());
        }
        journal.release(commit.first_index);
    }
}

/// A create request's fields, as far as they have to be told apart.
#[derive(Deserialize)]
struct Body<'a> {
    at: &'a str,
    #[serde(borrow)]
    target: Target<'a>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
struct Target<'a> {
    #[serde(borrow)]
    http: Http<'a>,
}

#[derive(Deserialize)]
struct Http<'a> {
    url: &'a str,
}

async fn create_durably(State(journal): State<Journal<Ticket>>, body: Bytes) -> StatusCode {
    let Ok(parsed) = serde_json::from_slice::<Body<'_>>(&body) else { return StatusCode::BAD_REQUEST };
    if parsed.at.is_empty() || parsed.target.http.url.is_empty() {
        return StatusCode::BAD_REQUEST;
    }
    let entry = body.slice_ref(parsed.payload.get().as_bytes());
    let (ticket, durable) = oneshot::channel();
    match journal.append(entry, ticket).await {
        Ok(()) if durable.await.is_ok() => StatusCode::CREATED,
        Ok(()) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

//! Child process of `bench limit` that takes the place of the server. Apart from an optional journal or database, it
//! contains only the HTTP stack that Reveille uses.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use cli_support::Url;
use journal::{Commit, Journal, Opened};
use runtime::{Runtime, TaskSet};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::limit_database::{self, Ticket};

/// Storage in which the handler makes the payload of a request durable before it responds.
pub(crate) enum Durable {
    None,
    Journal(PathBuf),
    /// URL of a database, and the number of connections on which the handler writes to a table of this database.
    Database(Url, usize),
}

/// Serves requests until the bench kills the process.
pub(crate) async fn serve(runtime: &Runtime, listen: SocketAddr, durable: Durable) -> anyhow::Result<()> {
    let tasks = TaskSet::new(runtime);
    let create = match durable {
        Durable::None => post(async |_body: Bytes| StatusCode::CREATED),
        Durable::Journal(folder) => {
            let journal = open(runtime, &tasks, &folder).await?;
            post(async |State(journal): State<Journal<Ticket>>, body: Bytes| {
                create_durably(body, async |entry, ticket| journal.append(entry, ticket).await.is_ok()).await
            })
            .with_state(journal)
        }
        Durable::Database(url, connections) => {
            let lanes = limit_database::lanes(runtime, &tasks, &url, connections).await?;
            post(async |State(lanes): State<mpsc::Sender<(Bytes, Ticket)>>, body: Bytes| {
                create_durably(body, async |entry, ticket| lanes.send((entry, ticket)).await.is_ok()).await
            })
            .with_state(lanes)
        }
    };
    let router = Router::new().route("/readyz", get(async || StatusCode::OK)).route("/v1/schedules", create);
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "cannot set TCP_NODELAY on a connection; small packets may be delayed");
        }
    });
    axum::serve(listener, router).await.context("the bare handler stopped")
}

async fn open(runtime: &Runtime, tasks: &TaskSet, folder: &Path) -> anyhow::Result<Journal<Ticket>> {
    let opened = Journal::open(runtime, tasks, folder, journal::Options::default()).await;
    let Opened { journal, commits, .. } =
        opened.with_context(|| format!("cannot open the bare handler's journal {}", folder.display()))?;
    tasks.spawn("limit-responses", respond(journal.clone(), commits));
    Ok(journal)
}

async fn respond(journal: Journal<Ticket>, mut commits: mpsc::Receiver<Commit<Ticket>>) {
    while let Some(commit) = commits.recv().await {
        for (_, ticket) in commit.entries {
            // The task ignores a failure to send the notification: in this case the handler has dropped the request.
            let _gone = ticket.send(());
        }
        journal.release(commit.first_index);
    }
}

/// Fields of a create request that the handler has to parse.
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

async fn create_durably(body: Bytes, store: impl AsyncFnOnce(Bytes, Ticket) -> bool) -> StatusCode {
    let Ok(parsed) = serde_json::from_slice::<Body<'_>>(&body) else { return StatusCode::BAD_REQUEST };
    if parsed.at.is_empty() || parsed.target.http.url.is_empty() {
        return StatusCode::BAD_REQUEST;
    }
    let entry = body.slice_ref(parsed.payload.get().as_bytes());
    let (ticket, durable) = oneshot::channel();
    match store(entry, ticket).await && durable.await.is_ok() {
        true => StatusCode::CREATED,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

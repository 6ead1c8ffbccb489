//! Trial of the listing of runs: the time until the first page of each filter arrives. [`load`] writes the runs into a
//! store without a server.

mod loader;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::http1::Connection;
use domain::Timestamp;
use runtime::Runtime;
use serde::Deserialize;

use crate::Common;
use crate::load::{self, Exchange, Pace, Plan};
use crate::message::{Head, write_request};
use crate::report::Row;
use crate::server::{Server, ServerArguments};

pub use loader::{LoadRunsArguments, load};

#[derive(Args, Debug)]
pub struct RunsArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of requests for the first page of each filter
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    repetitions: u64,
    /// Number of runs in a page
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
}

/// Longest duration of the requests for one filter.
const FILTER_MAX: Duration = Duration::from_secs(600);
/// Schedule whose runs the trial lists. Every load has a schedule with this number.
const SCHEDULE: usize = 4_711;
/// Filters in the form of a query string. The last filter of each kind matches no run, so its page ends early.
const FILTERS: [&str; 15] = [
    "",
    "state=succeeded",
    "state=failed",
    "state=retrying",
    "state=missed",
    "state=cancelled",
    "label=order%3D4711",
    "label=team%3Dt7",
    "host=h7.example",
    "host=nowhere.example",
    "status=204",
    "status=503",
    "status=410",
    "late_by=30s",
    "late_by=1h",
];

/// Requests for the first page of one filter.
struct FirstPage {
    head: Head,
    path: String,
}

impl Exchange for FirstPage {
    fn write(&self, _index: u64, out: &mut Vec<u8>) {
        write_request("GET", &self.path, &self.head, b"", out);
    }

    fn accept(&self, _index: u64, status: u16, _body: &[u8]) -> bool {
        status == 200
    }
}

/// Members of a page that the trial reads.
#[derive(Deserialize)]
struct Page {
    runs: Vec<ListedRun>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct ListedRun {
    schedule_id: Option<String>,
}

/// Runs the trial, and prints one row for each filter and order.
///
/// # Errors
/// Returns an error if the server does not respond, or if it rejects a listing.
pub(crate) async fn run(runtime: &Runtime, arguments: &RunsArguments) -> anyhow::Result<()> {
    let rows = trial(runtime, arguments).await?;
    crate::print(&arguments.common, rows.into_iter().map(|row| (vec![row], Vec::new())).collect())
}

/// Measures the first page of each filter, one request at a time.
async fn trial(runtime: &Runtime, arguments: &RunsArguments) -> anyhow::Result<Vec<Row>> {
    let server = Server::start(runtime, &arguments.server, &arguments.common.data).await?;
    let head = server.head("application/json");
    let limit = arguments.limit;
    let from = runtime.now() - Duration::from_secs((loader::DAYS + 1) * 86_400);
    let listed = page(&head, &format!("/v1/runs?from={from}&limit=1&label=order%3D{SCHEDULE}")).await?;
    let schedule = listed.runs.into_iter().next().and_then(|run| run.schedule_id);
    let schedule = schedule.context("the store has no loaded runs: load them first with `reveille bench load-runs`")?;

    let mut queries: Vec<String> = FILTERS.iter().map(|filter| format!("from={from}&{filter}")).collect();
    queries.push(format!("from={from}&schedule={schedule}"));
    queries.push(format!("from={}", Timestamp::from_millis(0)));
    let mut rows = Vec::new();
    for query in &queries {
        for order in ["newest", "oldest"] {
            let path = format!("/v1/runs?{}&order={order}&limit={limit}", query.trim_end_matches('&'));
            let first = page(&head, &path).await?;
            let exchange = Arc::new(FirstPage { head: head.clone(), path });
            let requests_max = arguments.repetitions;
            let plan = Plan {
                address: server.address,
                connections: 1,
                pace: Pace::Closed,
                duration: FILTER_MAX,
                requests_max,
            };
            let outcome = load::run(runtime, plan, exchange).await?;
            let name = query.trim_start_matches(&format!("from={from}")).trim_start_matches('&');
            let name = if name.is_empty() { "all" } else { name };
            let mut row = Row::new(format!("{name} {order}")).with_latency(&outcome.latency);
            (row.count, row.failed) = (Some(outcome.accepted), Some(outcome.failed()));
            let end = if first.next_page_token.is_some() { ", and more pages follow" } else { "" };
            row.notes.push(format!("the first page has {} runs{end}", first.runs.len()));
            if outcome.failed() > 0 {
                row.notes.push(outcome.failure_summary());
            }
            rows.push(row);
        }
    }
    server.stop(runtime).await?;
    Ok(rows)
}

/// Reads one page of a listing.
async fn page(head: &Head, path: &str) -> anyhow::Result<Page> {
    let mut connection =
        Connection::open(head.host).await.with_context(|| format!("cannot connect to {}", head.host))?;
    let mut request = Vec::new();
    write_request("GET", path, head, b"", &mut request);
    let status = connection.exchange(&request).await.context("the server did not respond to a listing")?;
    let body = String::from_utf8_lossy(connection.body());
    ensure!(status.0 == 200, "the server rejected {path} with {}: {body}", status.0);
    serde_json::from_str(&body).with_context(|| format!("the response to {path} is not a page of runs"))
}

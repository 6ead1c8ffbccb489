//! Upper limits of this machine, which the bench measures without the work that Reveille adds. Every ratio in a report
//! compares the result of a run with one of these limits.
//!
//! - *handler*: the HTTP stack alone. It responds with 201 to a POST of a schedule and does not read the schedule.
//! - *durable handler*: the same stack with a handler that parses the JSON and waits until a payload of 1 KB is durable
//!   in Reveille's journal. The handler has no index and checks no API key. With a database, it writes the payload to
//!   one plain table of the database instead.
//! - *client*: pooled HTTP/1.1 connections, which post unsigned 1 KB bodies to the counting receiver.
//! - *database*: inserts of rows of 1 KB into a plain table; see `limit_database`.
//!
//! As in the trials, the measured program is a separate process. The load generator and the receiver run in this
//! process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use cli_support::Url;
use cli_support::receiver;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use runtime::{Runtime, TaskSet};

use crate::arrivals::Arrivals;
use crate::create::{Create, schedules_far};
use crate::limit_database::{self, Size};
use crate::load::{self, Pace, Plan};
use crate::message::{Head, PAYLOAD_BYTES};
use crate::process::{Meter, Process, free_address};
use crate::report::Row;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    Handler,
    Durable,
    Client,
    Database,
}

impl Part {
    pub(crate) const ALL: [Part; 4] = [Part::Handler, Part::Durable, Part::Client, Part::Database];
}

/// Storage on which the bench measures the limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) store: Option<&'a Url>,
    /// Number of connections on which a PostgreSQL store writes.
    pub(crate) store_connections: usize,
}

/// Measures one limit once.
pub(crate) async fn measure(runtime: &Runtime, part: Part, size: Size, location: Location<'_>) -> anyhow::Result<Row> {
    let Location { folder, store, store_connections } = location;
    match (part, store) {
        (Part::Handler, _) => handler(runtime, "limit: handler", &[], &[], size, folder).await,
        (Part::Durable, Some(store)) => {
            let name = "limit: durable handler with a database";
            handler(runtime, name, &["--database"], &[("REVEILLE_STORE", store.as_str())], size, folder).await
        }
        (Part::Durable, None) => {
            let journal = folder.join("limit-journal");
            let text = journal.to_str();
            let text = text.with_context(|| {
                format!("the path {} is not valid UTF-8; choose another folder with --data", journal.display())
            })?;
            let row = handler(runtime, "limit: durable handler", &["--journal", text], &[], size, folder).await;
            let removed = std::fs::remove_dir_all(&journal);
            removed.with_context(|| format!("cannot remove the durable handler's journal {}", journal.display()))?;
            row
        }
        (Part::Client, _) => client(runtime, size, folder).await,
        (Part::Database, Some(store)) => limit_database::measure(runtime, store, store_connections, size).await,
        (Part::Database, None) => bail!("the bench has no database to measure; name a database with --store"),
    }
}

async fn handler(
    runtime: &Runtime,
    name: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    size: Size,
    folder: &Path,
) -> anyhow::Result<Row> {
    const READY_MAX: Duration = Duration::from_secs(60);
    let log = folder.join("limit.log");
    let arguments: Vec<&str> = ["bench", "limit-handler"].iter().chain(arguments).copied().collect();
    let process = Process::start(runtime, &arguments, environment, free_address()?, "/readyz", &log, READY_MAX).await?;
    let head = Head { host: process.address, key: "none.none".to_owned(), content_type: "application/json" };
    let schedules = schedules_far(runtime);
    let plan = Plan {
        address: process.address,
        connections: size.connections,
        pace: Pace::Closed,
        duration: size.duration,
        requests_max: u64::MAX,
    };
    let meter = Meter::start(runtime, Some(process.pid));
    let outcome = load::run(runtime, plan, Arc::new(Create { head, schedules })).await?;
    let cost = meter.stop().await;
    process.kill().await?;
    ensure!(outcome.accepted > 0, "{name}: no request succeeded; see the log {}", log.display());
    let mut row = Row::new(name).with_latency(&outcome.latency).with_cost(&cost, outcome.accepted);
    row.per_second = Some(outcome.per_second());
    row.count = Some(outcome.accepted);
    row.failed = Some(outcome.failed());
    Ok(row)
}

async fn client(runtime: &Runtime, size: Size, folder: &Path) -> anyhow::Result<Row> {
    let arrivals = Arc::new(Arrivals::counting());
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let receiver = receiver::Receiver::start(runtime, listen, receiver::Options::default(), arrivals.clone()).await?;
    let log = folder.join("limit.log");
    let connections = size.connections.to_string();
    let target = receiver.address.to_string();
    let arguments = ["bench", "limit-client", "--target", &target, "--connections", &connections];
    let process = Process::start(runtime, &arguments, &[], free_address()?, "/", &log, Duration::from_secs(10)).await?;
    let meter = Meter::start(runtime, Some(process.pid));
    let (before, started) = (arrivals.count(), runtime.monotonic());
    runtime.sleep(size.duration).await;
    let (count, elapsed) = (arrivals.count() - before, runtime.monotonic().since(started));
    let cost = meter.stop().await;
    process.kill().await?;
    ensure!(count > 0, "the bare client sent no request; see the log {}", log.display());
    let mut row = Row::new("limit: client").with_cost(&cost, count);
    #[expect(clippy::cast_precision_loss, reason = "counts of requests stay far below 2^52")]
    let per_second = count as f64 / elapsed.as_secs_f64();
    row.per_second = Some(per_second);
    row.count = Some(count);
    Ok(row)
}

/// Runs the child process that measures [`Part::Client`]. The process posts requests to `target` as fast as possible on
/// `connections` connections until the bench kills it. Once the connections are open, the process also responds to
/// requests on `listen`.
pub(crate) async fn serve_client(
    runtime: &Runtime,
    target: SocketAddr,
    connections: usize,
    listen: SocketAddr,
) -> anyhow::Result<()> {
    let tasks = TaskSet::new(runtime);
    for _ in 0..connections {
        let sender = connect(&tasks, target).await?;
        tasks.spawn("limit-client", async move {
            if let Err(error) = post_repeatedly(sender, target).await {
                tracing::error!(%error, "bare client stopped");
            }
        });
    }
    let readiness = Arc::new(Arrivals::counting());
    receiver::Receiver::start(runtime, listen, receiver::Options::default(), readiness).await?.ended().await;
    Ok(())
}

async fn connect(tasks: &TaskSet, target: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = tokio::net::TcpStream::connect(target).await;
    let stream = stream.with_context(|| format!("the bare client cannot connect to {target}"))?;
    stream.set_nodelay(true)?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tasks.spawn("limit-client-connection", async move {
        if let Err(error) = connection.await {
            tracing::error!(%error, "connection of the bare client failed");
        }
    });
    Ok(sender)
}

async fn post_repeatedly(mut sender: SendRequest<Full<Bytes>>, target: SocketAddr) -> anyhow::Result<()> {
    use http_body_util::BodyExt;
    let body = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    loop {
        let request = hyper::Request::post("/callback")
            .header("host", target.to_string())
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        ensure!(response.status() == 200, "the receiver answered {}", response.status());
        response.into_body().collect().await?;
    }
}

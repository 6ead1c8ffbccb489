//! Measurement of the highest rate at which a PostgreSQL database inserts rows. The measurement inserts batches of rows into a plain table with only a primary
//! key. Each row has the size of a schedule's payload.
//!
//! This module also contains the tasks with which the bare handler writes these rows.
//!
//! The bench compares this limit with a load. The measurement has as many rows in flight as the load has requests in
//! flight, and uses as many connections as the store. Therefore no batch has more rows than the load has requests in
//! flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use cli_support::Url;
use futures_util::future::try_join_all;
use postgres_client::{Failure, Link, Server, Session};
use runtime::{Monotonic, Runtime, TaskSet};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::message::PAYLOAD_BYTES;
use crate::report::Row;

/// Duration of a load, and the number of connections on which the bench sends the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) connections: usize,
    pub(crate) duration: Duration,
}

/// Sender of the notification that an entry is durable.
pub(crate) type Ticket = oneshot::Sender<()>;

const CREATE: &str = "drop table if exists reveille_bench_limit;
    create table reveille_bench_limit (number bigint primary key, value bytea not null)";
const DROP: &str = "drop table reveille_bench_limit";
const INSERT: &str = "insert into reveille_bench_limit select * from unnest($1::bigint[], $2::bytea[])";

/// Maximum number of rows in one batch of the bare handler. The store has the same limit.
const ROWS_MAX: usize = 1_000;

/// Measures a database over `connections` connections. The number of rows in flight equals the number of connections in
/// `size`.
///
/// # Errors
/// Returns an error if the database server is unreachable or rejects a request.
pub(crate) async fn measure(runtime: &Runtime, store: &Url, connections: usize, size: Size) -> anyhow::Result<Row> {
    let server = Arc::new(Server::new(store.as_str(), postgres_client::Options::default())?);
    let (tasks, stop) = (TaskSet::new(runtime), CancellationToken::new());
    let links: Vec<Link> = (0..connections).map(|_| Link::start(runtime, &tasks, &server, stop.clone())).collect();
    let measured = measure_on(runtime, &links, size.connections.div_ceil(connections), size.duration).await;
    stop.cancel();
    tasks.join().await;
    measured.context("cannot measure the database")
}

async fn measure_on(runtime: &Runtime, links: &[Link], batch: usize, duration: Duration) -> Result<Row, Failure> {
    let sessions = try_join_all(links.iter().map(Link::session)).await?;
    let run = async |statements: &str| sessions[0].within(sessions[0].client().batch_execute(statements)).await;
    run(CREATE).await?;
    let (next, started) = (AtomicI64::new(0), runtime.monotonic());
    let until = started + duration;
    let inserting = sessions.iter().map(|session| insert_until(runtime, session, batch, until, &next));
    let rows: u64 = try_join_all(inserting).await?.into_iter().sum();
    let elapsed = runtime.monotonic().since(started);
    run(DROP).await?;
    let mut row = Row::new(format!("limit: database with batches of {batch} rows"));
    #[expect(clippy::cast_precision_loss, reason = "counts of rows stay far below 2^52")]
    let per_second = rows as f64 / elapsed.as_secs_f64();
    row.per_second = Some(per_second);
    row.count = Some(rows);
    Ok(row)
}

/// Starts tasks that insert entries into a table of the database, and returns the channel for these entries. When an
/// entry is durable, a task sends a notification through the entry's [`Ticket`]. As in the store, new entries wait
/// while the tasks write earlier batches, and then form a batch.
///
/// # Errors
/// Returns an error if the database server is unreachable or rejects a request.
pub(crate) async fn lanes(
    runtime: &Runtime,
    tasks: &TaskSet,
    store: &Url,
    connections: usize,
) -> anyhow::Result<mpsc::Sender<(Bytes, Ticket)>> {
    let server = Arc::new(Server::new(store.as_str(), postgres_client::Options::default())?);
    let (sender, waiting) = mpsc::channel(10_000);
    let (waiting, next) = (Arc::new(Mutex::new(waiting)), Arc::new(AtomicI64::new(0)));
    for lane in 0..connections {
        let link = Link::start(runtime, tasks, &server, CancellationToken::new());
        if lane == 0 {
            let session = link.session().await?;
            session.within(session.client().batch_execute(CREATE)).await?;
        }
        let (waiting, next) = (waiting.clone(), next.clone());
        tasks.spawn("limit-lane", async move {
            let mut batch: Vec<(Bytes, Ticket)> = Vec::new();
            while waiting.lock().await.recv_many(&mut batch, ROWS_MAX).await > 0 {
                let values: Vec<&[u8]> = batch.iter().map(|(value, _)| value.as_ref()).collect();
                let inserting = async { insert(&*link.session().await?, &values, &next).await };
                if let Err(error) = inserting.await {
                    tracing::error!(%error, "bare handler cannot write rows to the database");
                    batch.clear();
                }
                for (_, ticket) in batch.drain(..) {
                    // The task ignores a failure to send the notification: in this case the handler has dropped the
                    // request.
                    let _gone = ticket.send(());
                }
            }
        });
    }
    Ok(sender)
}

/// Inserts one batch and returns its number of rows.
async fn insert(session: &Session, values: &[&[u8]], next: &AtomicI64) -> Result<u64, Failure> {
    let statement = session.prepare(INSERT).await?;
    let length = i64::try_from(values.len()).unwrap_or(i64::MAX);
    let first = next.fetch_add(length, Ordering::Relaxed);
    let numbers: Vec<i64> = (first..first + length).collect();
    session.within(session.client().execute(&statement, &[&numbers, &values])).await
}

async fn insert_until(
    runtime: &Runtime,
    session: &Session,
    batch: usize,
    until: Monotonic,
    next: &AtomicI64,
) -> Result<u64, Failure> {
    let value = vec![0x5a_u8; PAYLOAD_BYTES];
    let values = vec![value.as_slice(); batch];
    let mut rows = 0;
    while runtime.monotonic() < until {
        rows += insert(session, &values, next).await?;
    }
    Ok(rows)
}

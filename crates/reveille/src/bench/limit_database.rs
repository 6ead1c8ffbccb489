//! What a PostgreSQL can do at most: rows as large as schedules, in batches, into a plain table with nothing but a primary key.
//!
//! As many rows are outstanding as the load that is compared with it has requests outstanding, over as many connections as
//! the store writes on: batches are no larger than the load could fill.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use postgres_client::{Failure, Link, Server, Session};
use runtime::{Monotonic, Runtime, TaskSet};
use tokio_util::sync::CancellationToken;

use crate::bench::message::PAYLOAD_BYTES;
use crate::bench::report::Row;
use crate::engine::Url;

const MAKE: &str = "drop table if exists reveille_bench_limit;
    create table reveille_bench_limit (number bigint primary key, value bytea not null)";
const DROP: &str = "drop table reveille_bench_limit";
const INSERT: &str = "insert into reveille_bench_limit select * from unnest($1::bigint[], $2::bytea[])";

/// `outstanding`: rows whose commit is waited for, at any time.
///
/// # Errors
/// If the server cannot be reached or refuses.
pub(crate) async fn measure(
    runtime: &Runtime,
    store: &Url,
    outstanding: usize,
    duration: Duration,
) -> anyhow::Result<Row> {
    let server = Arc::new(Server::new(store.as_str(), postgres_client::Options::default())?);
    let (tasks, stop) = (TaskSet::new(runtime), CancellationToken::new());
    let connections = store_postgres::Options::default().creator_connections;
    let links: Vec<Link> = (0..connections).map(|_| Link::start(runtime, &tasks, &server, stop.clone())).collect();
    let measured = on(runtime, &links, outstanding.div_ceil(connections), duration).await;
    stop.cancel();
    tasks.join().await;
    measured.context("cannot measure what the database can do")
}

async fn on(runtime: &Runtime, links: &[Link], batch: usize, duration: Duration) -> Result<Row, Failure> {
    let sessions = try_join_all(links.iter().map(Link::session)).await?;
    let run = async |statements: &str| sessions[0].within(sessions[0].client().batch_execute(statements)).await;
    run(MAKE).await?;
    let (next, started) = (AtomicI64::new(0), runtime.monotonic());
    let until = started + duration;
    let inserting = sessions.iter().map(|session| insert_until(runtime, session, batch, until, &next));
    let rows: u64 = try_join_all(inserting).await?.into_iter().sum();
    let elapsed = runtime.monotonic().since(started);
    run(DROP).await?;
    let mut row = Row::new(format!("limit: database, batches of {batch}"));
    #[expect(clippy::cast_precision_loss, reason = "counts of rows stay far below 2^52")]
    let per_second = rows as f64 / elapsed.as_secs_f64();
    row.per_second = Some(per_second);
    row.count = Some(rows);
    Ok(row)
}

async fn insert_until(
    runtime: &Runtime,
    session: &Session,
    batch: usize,
    until: Monotonic,
    next: &AtomicI64,
) -> Result<u64, Failure> {
    let statement = session.prepare(INSERT).await?;
    let value = vec![0x5a_u8; PAYLOAD_BYTES];
    let values = vec![value.as_slice(); batch];
    let mut rows = 0;
    while runtime.monotonic() < until {
        let length = i64::try_from(batch).unwrap_or(i64::MAX);
        let first = next.fetch_add(length, Ordering::Relaxed);
        let numbers: Vec<i64> = (first..first + length).collect();
        rows += session.within(session.client().execute(&statement, &[&numbers, &values])).await?;
    }
    Ok(rows)
}

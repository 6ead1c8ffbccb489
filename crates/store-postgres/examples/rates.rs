//! Benchmark of the store on PostgreSQL on this machine: `cargo run --profile dist -p store-postgres --example rates
//! [-- ROWS]`. For comparison, it also measures a plain table on the same server.
//!
//! The example starts its own server with full durability in the folder for temporary files. It measures batches of 1
//! KB schedules, single inserts, reads and outcomes. The comparison writes the same number of bytes into one table that
//! has only a primary key. It uses batches of the same size and the same number of connections.

#![expect(clippy::print_stdout, reason = "the benchmark prints its results to the terminal")]
#![expect(clippy::unwrap_used, reason = "a failed step ends the benchmark with a panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule,
    ScheduleId, ShardId, Spec, Status, Target, TenantId, Term, Timestamp, When,
};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use postgres_client::{Link, Server};
use runtime::{Monotonic, Runtime, TaskSet};
use store::{Change, Cursor, DueBound, DueRead, Insert, OwnerWrite, Positions, Store as _};
use store_postgres::{Options, PostgresStore, migrate};
use test_servers::postgres::Postgres;
use tokio_util::sync::CancellationToken;

const TENANT: TenantId = TenantId(1);
const BATCH: usize = 1_000;
/// Number of calls that the benchmark makes concurrently.
const BATCHES_AT_ONCE: usize = 6;
const SINGLES_AT_ONCE: usize = 256;

fn main() {
    let rows = std::env::args().nth(1).map_or(100_000, |rows| rows.parse().unwrap());
    let postgres = Postgres::start().unwrap();
    let url = postgres.create_database().unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = Runtime::real();
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let tasks = TaskSet::new(&runtime);
        bare(&runtime, &tasks, &url, rows).await;
        let store = PostgresStore::open(&runtime, &tasks, &url, Options::default()).await.unwrap();
        measure(&runtime, &store, rows).await;
        bare(&runtime, &tasks, &url, rows).await;
        store.close();
    });
}

/// Measures inserts into one plain table of the server. These inserts write about the same number of bytes as the
/// inserts into the store.
async fn bare(runtime: &Runtime, tasks: &TaskSet, url: &str, rows: usize) {
    let server = Arc::new(Server::new(url, postgres_client::Options::default()).unwrap());
    let stop = CancellationToken::new();
    let connections = Options::default().creator_connections;
    let links: Vec<Link> = (0..connections).map(|_| Link::start(runtime, tasks, &server, stop.clone())).collect();
    let session = links[0].session().await.unwrap();
    let table = "drop table if exists bare; create table bare (number bigint primary key, value bytea not null)";
    session.within(session.client().batch_execute(table)).await.unwrap();
    let value = vec![0x5a_u8; 1_100];
    let values = vec![value.as_slice(); BATCH];
    let insert = |at: usize| {
        let link = &links[at % links.len()];
        let values = &values;
        let first = i64::try_from(at * BATCH).unwrap();
        Box::pin(async move {
            let session = link.session().await.unwrap();
            let text = "insert into bare select * from unnest($1::bigint[], $2::bytea[])";
            let statement = session.prepare(text).await.unwrap();
            let numbers: Vec<i64> = (first..).take(BATCH).collect();
            session.within(session.client().execute(&statement, &[&numbers, values])).await.unwrap();
        }) as BoxFuture<'_, ()>
    };
    timed(runtime, "bare: batches of 1,000", rows, BATCHES_AT_ONCE, (0..rows / BATCH).map(insert)).await;
    stop.cancel();
}

async fn measure(runtime: &Runtime, store: &PostgresStore, rows: usize) {
    let inserts: Vec<Vec<Insert>> =
        (0..rows / BATCH).map(|_| (0..BATCH).map(|_| schedule(runtime)).collect()).collect();
    let names: Vec<(PollerId, DueKey)> =
        inserts.iter().flatten().map(|insert| (insert.schedule.poller, insert.due)).collect();
    let calls = inserts.into_iter().map(|batch| completed(store.insert(batch)));
    timed(runtime, "insert, batches of 1,000", rows, BATCHES_AT_ONCE, calls).await;

    let singles: Vec<Insert> = (0..rows).map(|_| schedule(runtime)).collect();
    let calls = singles.into_iter().map(|insert| completed(store.insert(vec![insert])));
    timed(runtime, "insert, single", rows, SINGLES_AT_ONCE, calls).await;

    let loads: Vec<_> = names.chunks(BATCH).take(50).collect();
    let count = loads.len() * BATCH;
    let load = |keys: &[(PollerId, DueKey)]| {
        completed(store.load(keys.iter().map(|(_, key)| key.occurrence.incarnation).collect()))
    };
    let calls = loads.iter().map(|keys| load(keys));
    timed(runtime, "load batches of 1,000 schedules in creation order", count, 1, calls).await;
    let random: Vec<_> = (0..20_000).map(|_| names[pick(runtime, names.len())]).collect();
    timed(runtime, "load, 100 at random", 20_000, 1, random.chunks(100).map(load)).await;

    // These inserts make the store create the maximum number of partitions. The following measurements therefore run
    // with this number of partitions.
    store.maintain(runtime.now(), Timestamp::MIN).await.unwrap();
    let ahead: Vec<Insert> =
        (0..520).map(|week| schedule_at(runtime, Duration::from_secs(week * 7 * 86_400))).collect();
    store.insert(ahead).await.unwrap();

    let shards: Arc<[ShardId]> = (0..8).map(|number| poller(number).shard()).collect();
    let terms: BTreeMap<_, _> = shards.iter().copied().zip(store.take(shards.to_vec()).await.unwrap()).collect();
    let outcomes = names.chunks(BATCH);
    let calls = outcomes.map(|keys| completed(store.write(keys.iter().map(|key| outcome(key, &terms)).collect())));
    timed(runtime, "outcomes, batches of 1,000", rows, BATCHES_AT_ONCE, calls).await;

    let read = |number, limit| DueRead {
        poller: poller(number),
        after: DueBound::Instant(Timestamp::MIN),
        until: Timestamp::MAX,
        limit,
    };
    let calls = (0..8).map(|number| completed(store.due(vec![read(number, 10_000)])));
    timed(runtime, "due, pages of 10,000", 80_000, 1, calls).await;
    let calls = (0..200).map(|_| completed(store.due((0..8).map(|number| read(number, 10)).collect())));
    timed(runtime, "read due rows of 8 pollers in pages of 10", 200 * 80, 1, calls).await;

    let mut cursor = Cursor::default();
    let mut found = 0;
    let start = runtime.monotonic();
    loop {
        let (arrivals, next) = store.insert_log(shards.clone(), cursor, 10_000).await.unwrap();
        found += arrivals.len();
        if std::mem::replace(&mut cursor, next) == next {
            break;
        }
    }
    let seconds = since(runtime, start).as_secs_f64();
    println!("{:<32} {:>10.0} rows/s   {found} rows in total", "arrivals, pages of 10,000", found as f64 / seconds);
    let calls = (0..500).map(|_| completed(store.insert_log(shards.clone(), cursor, 10_000)));
    timed(runtime, "arrivals, nothing new", 500, 1, calls).await;

    let closing = |number: u16| {
        let positions = Positions { closed: runtime.now(), done: Timestamp::MIN };
        let poller = poller(number % 8);
        OwnerWrite { term: terms[&poller.shard()], poller, change: Change::Positions(positions) }
    };
    let calls = (0..500).map(|number| completed(store.write(vec![closing(number)])));
    timed(runtime, "write, one position", 500, 1, calls).await;
}

fn completed<'a, T: Send + 'a>(response: store::Answer<'a, T>) -> BoxFuture<'a, ()> {
    Box::pin(async move { drop(response.await.unwrap()) })
}

fn since(runtime: &Runtime, start: Monotonic) -> Duration {
    runtime.monotonic().since(start)
}

async fn timed<'a>(
    runtime: &Runtime,
    what: &str,
    rows: usize,
    at_once: usize,
    calls: impl Iterator<Item = BoxFuture<'a, ()>>,
) {
    let start = runtime.monotonic();
    let mut latencies = Vec::new();
    let mut under_way = FuturesUnordered::new();
    let mut calls = calls.map(|call| async move {
        let start = runtime.monotonic();
        call.await;
        since(runtime, start)
    });
    under_way.extend(calls.by_ref().take(at_once));
    while let Some(latency) = under_way.next().await {
        latencies.push(latency);
        under_way.extend(calls.next());
    }
    let seconds = since(runtime, start).as_secs_f64();
    latencies.sort();
    let at = |share: f64| {
        let place = share * (latencies.len() - 1) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is a valid index of the vector `latencies`"
        )]
        let place = place as usize;
        latencies[place].as_secs_f64() * 1e3
    };
    println!(
        "{what:<32} {:>10.0} rows/s   p50 {:>8.2} ms   p99 {:>8.2} ms   max {:>8.2} ms",
        rows as f64 / seconds,
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn pick(runtime: &Runtime, below: usize) -> usize {
    usize::try_from(runtime.random() % below as u64).unwrap()
}

fn poller(number: u16) -> PollerId {
    PollerId { tenant: TENANT, generation: 0, number }
}

/// Returns the insert of a one-shot schedule of about 1 KB. The schedule is due within a day and belongs to one of
/// eight pollers.
fn schedule(runtime: &Runtime) -> Insert {
    schedule_at(runtime, Duration::from_millis(60_000 + runtime.random() % 86_400_000))
}

fn schedule_at(runtime: &Runtime, ahead: Duration) -> Insert {
    let now = runtime.now();
    let incarnation = Incarnation::new(now, runtime.random_u128());
    let at = now + ahead;
    let target = Target::Http(HttpTarget {
        url: "http://receiver.internal:8080/hooks/orders".to_owned(),
        method: "POST".to_owned(),
        headers: vec![("x-trace".to_owned(), "0123456789abcdef".into())],
        timeout: Duration::from_secs(10),
    });
    let key = target.key();
    let retry = RetryPolicy { attempts_max: 5, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) };
    let payload: Vec<u8> = (0..900).map(|at: u16| b"0123456789abcdef"[usize::from(at) % 16]).collect();
    let schedule = Schedule {
        tenant: TENANT,
        id: ScheduleId::from_incarnation(incarnation),
        incarnation,
        poller: poller(u16::try_from(runtime.random() % 8).unwrap()),
        revision: Revision(0),
        status: Status::Active,
        created_at: now,
        updated_at: now,
        next: Some(at),
        spec: Spec {
            when: When::At(at),
            target,
            payload: Bytes::from(payload),
            labels: BTreeMap::from([("team".to_owned(), "orders".to_owned())]),
            retry,
        },
    };
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: key };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

/// Returns the write of a successful outcome at the first attempt. The outcome ends the schedule.
fn outcome((poller, key): &(PollerId, DueKey), terms: &BTreeMap<ShardId, Term>) -> OwnerWrite {
    let attempt = Attempt {
        number: 1,
        started_at: key.position,
        duration: Duration::from_millis(12),
        result: AttemptResult::Answered(200),
        delay: None,
        excerpt: None,
    };
    let run = Run { tenant: TENANT, occurrence: key.occurrence, state: RunState::Succeeded, attempts: vec![attempt] };
    OwnerWrite {
        term: terms[&poller.shard()],
        poller: *poller,
        change: Change::Run { run, then: None, ends: true, origin: None },
    }
}

//! Benchmark of the embedded store on this machine: `cargo run --profile dist -p store-embedded --example rates -- DIR
//! [ROWS]`.
//!
//! The example measures inserts of 1 KB schedules (in batches and one by one), reads of schedules, writes of outcomes,
//! and a restart of the store. It creates and fills the folder `DIR`, and does not delete the folder.

#![expect(clippy::print_stdout, reason = "the benchmark prints its results to the terminal")]
#![expect(clippy::unwrap_used, reason = "a failed step ends the benchmark with a panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule,
    ScheduleId, Spec, Status, Target, TargetKey, TenantId, Timestamp, When,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use runtime::{Monotonic, Runtime, TaskSet};
use store::{Change, DueBound, DueRead, Insert, OwnerWrite, Store};
use store_embedded::{EmbeddedStore, Options};

const TENANT: TenantId = TenantId(1);
const BATCH: usize = 1000;
/// Number of batch calls that the benchmark makes concurrently.
const BATCHES_AT_ONCE: usize = 4;
const SINGLES_AT_ONCE: usize = 256;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("the first argument must name a folder");
    let rows: usize = arguments.next().map_or(200_000, |rows| rows.parse().unwrap());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(measure(Path::new(&dir), rows));
}

async fn measure(dir: &Path, rows: usize) {
    let runtime = Runtime::real();
    let (store, tasks) = open(&runtime, dir).await;

    let inserts: Vec<Vec<Insert>> =
        (0..rows / BATCH).map(|_| (0..BATCH).map(|_| schedule(&runtime)).collect()).collect();
    let names: Vec<_> = inserts.iter().flatten().map(|insert| insert.due).collect();
    let calls = inserts.into_iter().map(|batch| store.insert(batch));
    timed(&runtime, "insert, batches of 1,000", rows, BATCHES_AT_ONCE, calls).await;

    let singles: Vec<Insert> = (0..100_000).map(|_| schedule(&runtime)).collect();
    let calls = singles.into_iter().map(|insert| store.insert(vec![insert]));
    timed(&runtime, "insert, single", 100_000, SINGLES_AT_ONCE, calls).await;

    let loads: Vec<_> = names.chunks(BATCH).take(50).collect();
    let count = loads.len() * BATCH;
    let calls = loads.iter().map(|keys| store.load(keys.iter().map(|key| key.occurrence.incarnation).collect()));
    timed(&runtime, "load batches of 1,000 schedules in creation order", count, 1, calls).await;
    let random: Vec<_> = (0..20_000).map(|_| names[pick(&runtime, names.len())].occurrence.incarnation).collect();
    let calls = random.chunks(100).map(|chunk| store.load(chunk.to_vec()));
    timed(&runtime, "load, 100 at random", 20_000, 1, calls).await;

    let shards: Vec<_> = (0..8).map(|number| poller(number).shard()).collect();
    let terms: BTreeMap<_, _> = shards.iter().copied().zip(store.take(shards.clone()).await.unwrap()).collect();
    let outcomes = names.chunks(BATCH).take(100);
    let count = outcomes.len() * BATCH;
    let calls = outcomes.map(|keys| store.write(keys.iter().map(|key| outcome(key, &terms)).collect()));
    timed(&runtime, "outcomes, batches of 1,000", count, BATCHES_AT_ONCE, calls).await;

    let read = |number| DueRead {
        poller: poller(number),
        after: DueBound::Instant(Timestamp::MIN),
        until: Timestamp::MAX,
        limit: 10_000,
    };
    let calls = (0..8).map(|number| store.due(vec![read(number)]));
    timed(&runtime, "due, pages of 10,000", 80_000, 1, calls).await;

    println!("{:?}", store.stats());
    store.close().await;
    drop(store);
    tasks.join().await;
    let start = runtime.monotonic();
    let (store, tasks) = open(&runtime, dir).await;
    println!("{:<32} {:>10.1} ms", "reopen after close", since(&runtime, start).as_secs_f64() * 1e3);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().filter(|line| line.starts_with("RssAnon")).for_each(|line| println!("{line}"));
    store.close().await;
    drop(store);
    tasks.join().await;
}

async fn open(runtime: &Runtime, dir: &Path) -> (EmbeddedStore, TaskSet) {
    let tasks = TaskSet::new(runtime);
    let store = EmbeddedStore::open(runtime, &tasks, dir, Options::default()).await.unwrap();
    (store, tasks)
}

fn since(runtime: &Runtime, start: Monotonic) -> Duration {
    runtime.monotonic().since(start)
}

async fn timed<T>(
    runtime: &Runtime,
    what: &str,
    rows: usize,
    at_once: usize,
    calls: impl Iterator<Item = store::Answer<'_, T>>,
) {
    let start = runtime.monotonic();
    let mut latencies = Vec::new();
    let mut under_way = FuturesUnordered::new();
    let clock = &runtime;
    let mut calls = calls.map(|call| async move {
        let start = clock.monotonic();
        call.await.unwrap();
        since(clock, start)
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
            reason = "the value is a valid index into `latencies`"
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

/// Returns the insert of a one-shot schedule of about 1 KB. It is due within a day and belongs to one of eight pollers.
fn schedule(runtime: &Runtime) -> Insert {
    let now = runtime.now();
    let incarnation = Incarnation::new(now, runtime.random_u128());
    let at = Timestamp::from_millis(now.as_millis() + 60_000 + i64::try_from(runtime.random() % 86_400_000).unwrap());
    let mut payload = Vec::with_capacity(1000);
    while payload.len() < 900 {
        payload.extend_from_slice(format!("{:016x}", runtime.random()).as_bytes());
    }
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
            target: Target::Http(HttpTarget {
                url: "http://127.0.0.1:8081/hook".to_owned(),
                method: "POST".to_owned(),
                headers: Vec::new(),
                timeout: Duration::from_secs(10),
            }),
            payload: Bytes::from(payload),
            labels: BTreeMap::new(),
            retry: RetryPolicy {
                attempts_max: 5,
                backoff: Duration::from_secs(1),
                backoff_max: Duration::from_secs(3600),
            },
        },
    };
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: TargetKey(1) };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

fn outcome(key: &DueKey, terms: &BTreeMap<domain::ShardId, domain::Term>) -> OwnerWrite {
    let attempt = Attempt {
        number: 1,
        started_at: key.position,
        duration: Duration::from_millis(2),
        result: AttemptResult::Answered(200),
        delay: None,
        excerpt: None,
    };
    let run = Run { tenant: TENANT, occurrence: key.occurrence, state: RunState::Succeeded, attempts: vec![attempt] };
    // All writes use the same poller, because the poller does not affect the rate.
    let poller = poller(0);
    OwnerWrite {
        term: terms[&poller.shard()],
        poller,
        change: Change::Run { run, then: None, ends: true, origin: None },
    }
}

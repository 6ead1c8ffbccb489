//! Trial of the buffered producer: the rate at which it accepts records while the bus is away, and the rate at which it sends
//! them afterwards.
//!
//! The bus is the engine in memory, whose connection the trial cuts, so that the local disk alone limits the first rate. The
//! ratio compares this rate with the rate at which the bare journal stores entries of the same size, from as many tasks,
//! right before. The trial counts the stored records by the offsets of the topic.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, NewRecord, TopicName, TopicOptions};
use bus_buffer::{BufferOptions, BufferedProducer};
use bytes::Bytes;
use clap::Args;
use journal::{Journal, Opened};
use runtime::{Runtime, TaskSet};
use tokio::sync::oneshot;

use crate::report::Row;
use crate::{Common, print};

#[derive(Args, Debug)]
pub struct BufferArguments {
    #[command(flatten)]
    common: Common,
    /// Number of records of a run
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    records: u64,
    /// Size of the value of each record, in bytes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=900_000))]
    bytes: u32,
    /// Number of records in each call of the producer
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
}

/// Number of different keys.
const KEYS: u64 = 10_000;
const PARTITIONS: u32 = 8;
/// Longest time until the bus has all records.
const LIMIT: Duration = Duration::from_secs(600);

/// # Errors
/// Returns an error if the trial fails, or if a record is lost or duplicated.
pub(crate) async fn run(runtime: &Runtime, arguments: &BufferArguments) -> anyhow::Result<()> {
    let folder = arguments.common.data.join("buffer");
    let (mut accepted, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..arguments.common.runs {
        let bare = with_folder(&folder, store_bare(runtime, arguments, &folder)).await?;
        let (mut first, second) = with_folder(&folder, trial(runtime, arguments, &folder)).await?;
        first.ratio = first.per_second.map(|rate| rate / bare);
        first.notes.push(format!("the bare journal stored {bare:.0} entries per second"));
        accepted.push(first);
        sent.push(second);
    }
    print(&arguments.common, vec![(accepted, Vec::new()), (sent.clone(), Vec::new())])?;
    let wrong: u64 = sent.iter().flat_map(|row| [row.lost, row.doubled]).flatten().sum();
    ensure!(wrong == 0, "{wrong} records were lost or duplicated");
    Ok(())
}

/// Runs a part of the trial with an empty folder, and removes the folder.
async fn with_folder<T>(folder: &Path, part: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let remove = || match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove the folder {}", folder.display()))
        }
        _ => Ok(()),
    };
    remove()?;
    let done = part.await;
    remove()?;
    done
}

/// Calls `call` with the first number of each batch, in several tasks. Returns the number of records per second.
async fn in_tasks<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    runtime: &Runtime,
    arguments: &BufferArguments,
    call: impl Fn(u64) -> F + Clone + Send + Sync + 'static,
) -> anyhow::Result<f64> {
    let (next, records, batch) = (Arc::new(AtomicU64::new(0)), arguments.records, arguments.batch);
    let began = runtime.monotonic();
    let tasks: Vec<_> = (0..arguments.common.connections())
        .map(|_| {
            let (next, call) = (next.clone(), call.clone());
            runtime.detached("bench buffer", async move {
                loop {
                    let first = next.fetch_add(batch, Ordering::Relaxed);
                    if first >= records {
                        return anyhow::Ok(());
                    }
                    call(first).await?;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.context("a task of the trial panicked")??;
    }
    Ok(records as f64 / runtime.monotonic().since(began).as_secs_f64())
}

/// Stores entries in a bare journal. Returns the number of entries per second.
async fn store_bare(runtime: &Runtime, arguments: &BufferArguments, folder: &Path) -> anyhow::Result<f64> {
    let tasks = TaskSet::new(runtime);
    let opened = Journal::<oneshot::Sender<()>>::open(runtime, &tasks, folder, journal::Options::default()).await;
    let Opened { journal, mut commits, .. } = opened.context("cannot open a journal")?;
    tasks.spawn("bench buffer commits", async move {
        while let Some(commit) = commits.recv().await {
            commit.entries.into_iter().for_each(|(_, stored)| _ = stored.send(()));
        }
    });
    // An entry of the buffer has about 60 bytes besides the value.
    let entry = Bytes::from(vec![b'x'; usize::try_from(arguments.bytes)? + 60]);
    let (batch, appending) = (arguments.batch, journal.clone());
    let rate = in_tasks(runtime, arguments, move |_| {
        let (journal, entry) = (appending.clone(), entry.clone());
        async move {
            let mut stored = Vec::new();
            for _ in 0..batch {
                let (ticket, done) = oneshot::channel();
                journal.append(entry.clone(), ticket).await?;
                stored.push(done);
            }
            for done in stored {
                done.await?;
            }
            Ok(())
        }
    });
    let rate = rate.await?;
    journal.close().await;
    Ok(rate)
}

async fn trial(runtime: &Runtime, arguments: &BufferArguments, folder: &Path) -> anyhow::Result<(Row, Row)> {
    let bus = MemoryBus::new(runtime.clone(), MemoryOptions::default());
    let topic = TopicName::new("buffered")?;
    bus.create_topic(&topic, TopicOptions::with_partitions(PARTITIONS)).await?;
    let away = bus.reopen(runtime.clone());
    let options = BufferOptions { bytes_max: u64::MAX, ..BufferOptions::new(folder) };
    let producer = Arc::new(BufferedProducer::open(runtime, &away, options).await?);
    away.cut(true);
    let value = Bytes::from(vec![b'x'; usize::try_from(arguments.bytes)?]);
    let record = {
        let topic = topic.clone();
        move |number: u64| NewRecord::new(&topic, format!("key-{}", number % KEYS), value.clone())
    };
    // The producer begins to buffer when the first record has waited for some time.
    producer.send(vec![record(0)]).await.remove(0)?;
    let (batch, sending) = (arguments.batch, producer.clone());
    let rate = in_tasks(runtime, arguments, move |first| {
        let (producer, records) = (sending.clone(), (first..first + batch).map(&record).collect());
        async move { producer.send(records).await.into_iter().try_for_each(|outcome| Ok(outcome.map(drop)?)) }
    });
    let count = arguments.records.div_ceil(arguments.batch) * arguments.batch + 1;
    let accepted =
        Row { per_second: Some(rate.await?), count: Some(count), ..Row::new("accepted while the bus is away") };

    let began = runtime.monotonic();
    away.cut(false);
    let producer = Arc::into_inner(producer).context("a task still uses the producer")?;
    let remaining = producer.close(LIMIT).await;
    let took = runtime.monotonic().since(began).as_secs_f64();
    let stored: u64 = bus.describe_topic(&topic).await?.offsets.iter().map(|(_, end)| end.0).sum();
    let sent = Row {
        per_second: Some(stored as f64 / took),
        count: Some(stored),
        lost: Some(count.saturating_sub(stored).max(remaining)),
        doubled: Some(stored.saturating_sub(count)),
        ..Row::new("sent after the outage")
    };
    Ok((accepted, sent))
}

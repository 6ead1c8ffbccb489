//! Compares the speed of the journal with the speed of its disk: `cargo run --profile dist -p journal --example rate --
//! FOLDER`.
//!
//! The program measures the bare disk first: one thread writes records as large as the records of the journal to a
//! preallocated file, and syncs each record. Then the program measures the journal, first with few and then with many
//! entries of 1 KB in flight.

#![expect(clippy::print_stdout, reason = "this program prints a table")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use journal::{Journal, Opened, Options};
use runtime::{OpenMode, Runtime, TaskSet};
use tokio::sync::{mpsc, oneshot};

const ENTRY_BYTES: usize = 1024;
const TRIAL: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder =
        std::env::args().nth(1).ok_or("missing argument FOLDER; pass the path of a folder on the disk to measure")?;
    let folder = Path::new(&folder);
    let runtime = Runtime::real();
    println!("{:<28} {:>10} {:>9} {:>9} {:>9} {:>9}", "", "per second", "p50 us", "p99 us", "p99.9 us", "MB/s");
    for bytes in [4 << 10, 72 << 10, 1 << 20] {
        let times = bare(&runtime, folder, bytes).await?;
        row(&format!("write + fdatasync {} KB", bytes >> 10), times, TRIAL, bytes);
    }
    for writers in [1, 64, 1024, 8192] {
        let times = journal(&runtime, folder, writers).await?;
        row(&format!("journal, {writers} writers"), times, TRIAL, ENTRY_BYTES);
    }
    Ok(())
}

async fn bare(runtime: &Runtime, folder: &Path, bytes: usize) -> std::io::Result<Vec<Duration>> {
    const LENGTH: u64 = 64 << 20;
    let path = folder.join("bare");
    let disk = runtime.disk();
    let file = disk.open(&path, OpenMode::CreateNew).await?;
    file.allocate(LENGTH).await?;
    let buffer = vec![7; bytes];
    let begun = runtime.monotonic();
    let mut times = Vec::new();
    let mut offset = 0;
    while runtime.monotonic().since(begun) < TRIAL {
        let started = runtime.monotonic();
        file.write_at(offset, &buffer).await?;
        file.sync_data().await?;
        times.push(runtime.monotonic().since(started));
        offset = (offset + bytes as u64) % LENGTH;
    }
    disk.remove(&path).await?;
    Ok(times)
}

/// Measures the journal. Each writer has one entry in flight. A sample is the time from an append to the consumer's
/// response to this append.
async fn journal(
    runtime: &Runtime,
    folder: &Path,
    writers: usize,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let dir = folder.join("journal");
    let tasks = TaskSet::new(runtime);
    let opened = Journal::<oneshot::Sender<()>>::open(runtime, &tasks, &dir, Options::default()).await?;
    let Opened { journal, mut commits, .. } = opened;
    let consumer_journal = journal.clone();
    tasks.spawn("consumer", async move {
        while let Some(commit) = commits.recv().await {
            consumer_journal.release(commit.first_index);
            for (_, ticket) in commit.entries {
                let _closed = ticket.send(());
            }
        }
    });
    let (sender, mut times) = mpsc::channel(writers);
    let begun = runtime.monotonic();
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    for _ in 0..writers {
        let (journal, runtime, sender, entry) =
            (Arc::new(journal.clone()), runtime.clone(), sender.clone(), entry.clone());
        let spawner = runtime.clone();
        let write = async move {
            let mut times = Vec::new();
            while runtime.monotonic().since(begun) < TRIAL {
                let started = runtime.monotonic();
                let (ticket, response) = oneshot::channel();
                if journal.append(entry.clone(), ticket).await.is_err() || response.await.is_err() {
                    break;
                }
                times.push(runtime.monotonic().since(started));
            }
            let _closed = sender.send(times).await;
        };
        drop(spawner.spawn("writer", write));
    }
    drop(sender);
    let mut all = Vec::new();
    while let Some(times) = times.recv().await {
        all.extend(times);
    }
    let closed = journal.clone();
    drop(journal);
    // The consumer also has a handle of the journal, so the journal does not close when this function drops its handle.
    closed.close().await;
    drop(tasks);
    std::fs::remove_dir_all(&dir)?;
    Ok(all)
}

fn row(name: &str, mut times: Vec<Duration>, over: Duration, bytes: usize) {
    times.sort_unstable();
    let at = |share: f64| -> u128 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the result is an index of `times`"
        )]
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len().saturating_sub(1))).map_or(0, Duration::as_micros)
    };
    let rate = times.len() as f64 / over.as_secs_f64();
    let megabytes = rate * bytes as f64 / 1e6;
    println!("{name:<28} {rate:>10.0} {:>9} {:>9} {:>9} {megabytes:>9.0}", at(0.5), at(0.99), at(0.999));
}

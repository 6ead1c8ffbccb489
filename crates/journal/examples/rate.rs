//! How fast the journal is beside the disk it is on: `cargo run --profile dist -p journal --example rate -- FOLDER`.
//!
//! First the bare disk: one thread, a preallocated file, a write and a sync of the sizes that the journal's records
//! have. Then the journal with few and with many entries in flight, each of 1 KB.

#![expect(clippy::print_stdout, reason = "it prints a table")]

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
    let folder = std::env::args().nth(1).ok_or("name a folder on the disk to measure")?;
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

/// Each writer has one entry in flight, and its time is from the append to the consumer's answer.
async fn journal(
    runtime: &Runtime,
    folder: &Path,
    writers: usize,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let dir = folder.join("journal");
    let tasks = TaskSet::new(runtime);
    let opened = Journal::<oneshot::Sender<()>>::open(runtime, &tasks, &dir, Options::default()).await?;
    let Opened { journal, mut commits, .. } = opened;
    let releasing = journal.clone();
    tasks.spawn("consumer", async move {
        while let Some(commit) = commits.recv().await {
            releasing.release(commit.first_index);
            for (_, ticket) in commit.entries {
                let _unheard = ticket.send(());
            }
        }
    });
    let (told, mut times) = mpsc::channel(writers);
    let begun = runtime.monotonic();
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    for _ in 0..writers {
        let (journal, runtime, told, entry) = (Arc::new(journal.clone()), runtime.clone(), told.clone(), entry.clone());
        let spawner = runtime.clone();
        let write = async move {
            let mut times = Vec::new();
            while runtime.monotonic().since(begun) < TRIAL {
                let started = runtime.monotonic();
                let (ticket, answer) = oneshot::channel();
                if journal.append(entry.clone(), ticket).await.is_err() || answer.await.is_err() {
                    break;
                }
                times.push(runtime.monotonic().since(started));
            }
            let _unheard = told.send(times).await;
        };
        drop(spawner.spawn("writer", write));
    }
    drop(told);
    let mut all = Vec::new();
    while let Some(times) = times.recv().await {
        all.extend(times);
    }
    let closed = journal.clone();
    drop(journal);
    // The consumer holds a handle, too.
    closed.close().await;
    drop(tasks);
    std::fs::remove_dir_all(&dir)?;
    Ok(all)
}

fn row(name: &str, mut times: Vec<Duration>, over: Duration, bytes: usize) {
    times.sort_unstable();
    let at = |share: f64| -> u128 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len().saturating_sub(1))).map_or(0, Duration::as_micros)
    };
    let rate = times.len() as f64 / over.as_secs_f64();
    let megabytes = rate * bytes as f64 / 1e6;
    println!("{name:<28} {rate:>10.0} {:>9} {:>9} {:>9} {megabytes:>9.0}", at(0.5), at(0.99), at(0.999));
}

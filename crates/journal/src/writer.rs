//! The one task that writes: drain the queue, write one record, sync, tell the consumer; and again.
//!
//! Always true here: one record at a time is between written and durable, so a crash can tear the last one only; what
//! was not synced is told to nobody; after a failed write or sync nothing more is told at all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::Commit;
use crate::format::{BLOCK, RecordBuffer, record_bytes};
use crate::linger::Linger;
use crate::queue::{Batch, Queue};
use crate::segment::Segment;
use crate::shared::Shared;

/// How soon after the last commit an idle journal writes down that it was durable. From then on damage to it can be
/// told from a write that never finished.
const MARKER_DELAY: Duration = Duration::from_millis(10);

pub(crate) struct Writer<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
    commits: mpsc::Sender<Commit<T>>,
    segment: Arc<Segment>,
    /// Where the next record goes.
    offset: u64,
    /// The index of the next entry; all before it are durable.
    next: u64,
    /// The journal itself says that every entry is durable.
    marked: bool,
    buffer: RecordBuffer,
    linger: Linger,
}

/// Why the writer stopped.
struct Stopped;

impl<T: Send + 'static> Writer<T> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Arc<Queue<T>>,
        commits: mpsc::Sender<Commit<T>>,
        marked: bool,
    ) -> Self {
        let (active, next) = {
            let book = shared.book();
            (book.held.back().expect("there is always a segment to write to").clone(), book.next)
        };
        let buffer = RecordBuffer::default();
        let linger = Linger::new(shared.runtime.monotonic());
        let (segment, offset) = (active.segment, active.end_offset);
        Writer { shared, queue, commits, segment, offset, next, marked, buffer, linger }
    }

    pub(crate) async fn run(mut self) {
        while let Some(wake) = self.wait().await {
            let outcome = match wake {
                Wake::Work => self.commit().await,
                Wake::Idle => {
                    self.mark().await;
                    Ok(())
                }
            };
            if let Err(Stopped) = outcome {
                break;
            }
        }
        self.queue.end();
        if !self.marked {
            self.mark().await;
        }
        self.shared.book().closing = true;
        self.shared.keep.notify_one();
    }

    /// `None` once the journal is closed and its queue is empty.
    async fn wait(&self) -> Option<Wake> {
        let filled = self.queue.wait();
        let filled =
            if self.marked { Some(filled.await) } else { self.shared.runtime.timeout(MARKER_DELAY, filled).await };
        match filled {
            Some(true) => Some(Wake::Work),
            Some(false) => None,
            None => Some(Wake::Idle),
        }
    }

    async fn commit(&mut self) -> Result<(), Stopped> {
        let mut bytes_max = self.shared.options.batch_bytes_max;
        if self.shared.book().ready.is_empty() {
            // No other segment yet: use up this one first.
            bytes_max = bytes_max.min(self.room());
        }
        let Batch { entries, body_bytes } = self.queue.take(bytes_max);
        while record_bytes(body_bytes) > self.room() {
            self.turn().await?;
        }
        self.buffer.begin();
        for (entry, _) in &entries {
            self.buffer.push(entry);
        }
        let took = self.write().await;
        self.shared.commit_seconds.observe(took.as_secs_f64());
        let first_index = self.next;
        let count = entries.len();
        self.next += count as u64;
        self.marked = false;
        self.note_written();
        // A consumer that is gone answers nobody; what is queued will be asked for again.
        self.commits.send(Commit { first_index, entries }).await.map_err(|_| Stopped)?;
        if let Some(pause) = self.linger.after_commit(count, self.shared.runtime.monotonic()) {
            self.shared.runtime.sleep(pause).await;
        }
        Ok(())
    }

    /// A record without entries. There is room for one: [`Writer::room`] leaves a block for it.
    async fn mark(&mut self) {
        self.buffer.begin();
        let _of_no_entry = self.write().await;
        self.marked = true;
        self.note_written();
    }

    /// Bytes left for a record with entries.
    fn room(&self) -> u64 {
        self.segment.length.saturating_sub(self.offset + BLOCK)
    }

    /// Writes what is in the buffer and waits until it is durable; how long that took.
    async fn write(&mut self) -> Duration {
        let record = self.buffer.finish(self.segment.salt, self.offset, self.next, self.next);
        let begun = self.shared.runtime.monotonic();
        let mut outcome = self.segment.file.write_at(self.offset, record).await;
        if outcome.is_ok() {
            outcome = self.segment.file.sync_data().await;
        }
        if let Err(error) = outcome {
            let segment = self.segment.path.display();
            self.shared.runtime.halt(&format!("the journal cannot write {segment}: {error}")).await;
        }
        self.offset += record.len() as u64;
        let took = self.shared.runtime.monotonic().since(begun);
        let mut book = self.shared.book();
        book.commit_last = took;
        book.records += 1;
        took
    }

    fn note_written(&self) {
        let mut book = self.shared.book();
        let first_of_segment = book.held.back().is_some_and(|active| active.end_offset == BLOCK);
        book.written(self.offset, self.next);
        drop(book);
        if first_of_segment {
            // Segments before this one may go now.
            self.shared.keep.notify_one();
        }
    }

    /// Goes on to the next segment, waiting for it if need be.
    async fn turn(&mut self) -> Result<(), Stopped> {
        if self.offset == BLOCK {
            // It was made under a smaller limit. A segment left behind has a record, so that damage shows.
            self.mark().await;
        }
        // Once: on a full disk the keeper tries again by itself, and each try is told here.
        self.shared.keep.notify_one();
        loop {
            {
                let mut book = self.shared.book();
                if book.turn() {
                    self.segment = book.held.back().expect("it was just begun").segment.clone();
                    self.offset = BLOCK;
                    break;
                }
                if book.no_room && self.queue.set_full(true) {
                    let dir = self.shared.dir.display();
                    tracing::warn!(%dir, "no room on disk for a journal segment: appends are refused until there is");
                }
                if book.no_room && self.queue.is_closed() {
                    return Err(Stopped);
                }
            }
            self.shared.turned.notified().await;
        }
        if self.queue.set_full(false) {
            tracing::info!(dir = %self.shared.dir.display(), "the journal has room again");
        }
        self.shared.keep.notify_one();
        Ok(())
    }
}

enum Wake {
    Work,
    Idle,
}

/// Runs the writer; a broken invariant in it stops the process.
pub(crate) async fn run<T: Send + 'static>(writer: Writer<T>) {
    use futures_util::FutureExt;
    let runtime = writer.shared.runtime.clone();
    if std::panic::AssertUnwindSafe(writer.run()).catch_unwind().await.is_err() {
        runtime.halt("the journal's writer panicked").await;
    }
}

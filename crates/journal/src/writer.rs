//! Writer task. It repeats these steps: it takes entries from the queue, writes them as one record, syncs the record,
//! and sends the commit to the consumer.
//!
//! Invariants: at most one record is written and not yet durable, so a crash can damage only the last record. The
//! writer sends a commit after the sync of its record. After a failed write or sync, the writer sends no further
//! commit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::Commit;
use crate::format::{BLOCK, RecordBuffer, record_bytes};
use crate::linger::Linger;
use crate::queue::{Batch, Queue};
use crate::segment::Segment;
use crate::shared::Shared;

/// Delay between the last commit and the marker that an idle writer writes. The marker proves that the commit was
/// durable. With this proof, recovery can distinguish later damage to the commit from an unfinished write.
const MARKER_DELAY: Duration = Duration::from_millis(10);

pub(crate) struct Writer<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
    commits: mpsc::Sender<Commit<T>>,
    segment: Arc<Segment>,
    /// Offset of the next record in the segment.
    offset: u64,
    /// Index of the next entry. All entries before it are durable.
    next: u64,
    /// True if a header in the journal proves that every entry is durable.
    proven: bool,
    buffer: RecordBuffer,
    linger: Linger,
}

/// Signal that the writer has to stop.
struct Stopped;

impl<T: Send + 'static> Writer<T> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Arc<Queue<T>>,
        commits: mpsc::Sender<Commit<T>>,
        proven: bool,
    ) -> Self {
        let (active, next) = {
            let state = shared.state();
            (state.live.back().expect("the journal always has an active segment").clone(), state.next)
        };
        let buffer = RecordBuffer::default();
        let linger = Linger::new(shared.runtime.monotonic());
        let (segment, offset) = (active.segment, active.end_offset);
        Writer { shared, queue, commits, segment, offset, next, proven, buffer, linger }
    }

    pub(crate) async fn run(mut self) {
        while let Some(wake) = self.wait().await {
            let outcome = match wake {
                Wake::Work => self.commit().await,
                Wake::Idle => {
                    self.write_marker().await;
                    Ok(())
                }
            };
            if let Err(Stopped) = outcome {
                break;
            }
        }
        self.queue.close_and_clear();
        if !self.proven {
            self.write_marker().await;
        }
        self.shared.state().closing = true;
        self.shared.keeper_wake.notify_one();
    }

    /// Waits for entries or for the time to write a marker. Returns `None` once the journal is closed and its queue is
    /// empty.
    async fn wait(&self) -> Option<Wake> {
        let filled = self.queue.wait();
        let filled =
            if self.proven { Some(filled.await) } else { self.shared.runtime.timeout(MARKER_DELAY, filled).await };
        match filled {
            Some(true) => Some(Wake::Work),
            Some(false) => None,
            None => Some(Wake::Idle),
        }
    }

    async fn commit(&mut self) -> Result<(), Stopped> {
        let mut bytes_max = self.shared.options.batch_bytes_max;
        if self.shared.state().ready.is_empty() {
            // No other segment is ready, so the writer first fills the active segment.
            bytes_max = bytes_max.min(self.bytes_left());
        }
        let Batch { entries, body_bytes } = self.queue.take(bytes_max);
        while record_bytes(body_bytes) > self.bytes_left() {
            self.activate_next_segment().await?;
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
        self.proven = false;
        self.publish_position();
        // If the consumer has dropped the receiver of the commits, no task responds to the callers, so the writer
        // stops.
        self.commits.send(Commit { first_index, entries, took }).await.map_err(|_| Stopped)?;
        if let Some(pause) = self.linger.after_commit(count, self.shared.runtime.monotonic()) {
            self.shared.runtime.sleep(pause).await;
        }
        Ok(())
    }

    /// Writes a marker, a record without entries. The marker always fits into the segment, because
    /// [`Writer::bytes_left`] reserves a block for it.
    async fn write_marker(&mut self) {
        self.buffer.begin();
        let _duration = self.write().await;
        self.proven = true;
        self.publish_position();
        self.shared.state().proven_below = self.next;
        self.shared.keeper_wake.notify_one();
    }

    /// Returns the number of bytes that a record with entries may occupy in the rest of the segment.
    fn bytes_left(&self) -> u64 {
        self.segment.length.saturating_sub(self.offset + BLOCK)
    }

    /// Writes the record in the buffer and waits until it is durable. Returns the duration of the write and the sync.
    async fn write(&mut self) -> Duration {
        let record = self.buffer.finish(self.segment.salt, self.offset, self.next, self.next);
        let begun = self.shared.runtime.monotonic();
        let mut outcome = self.segment.file.write_at(self.offset, record).await;
        if outcome.is_ok() {
            outcome = self.segment.file.sync_data().await;
        }
        if let Err(error) = outcome {
            let segment = self.segment.path.display();
            self.shared.runtime.halt(&format!("the journal cannot write or sync the segment {segment}: {error}")).await;
        }
        self.offset += record.len() as u64;
        let took = self.shared.runtime.monotonic().since(begun);
        let mut state = self.shared.state();
        state.commit_last = took;
        state.records += 1;
        took
    }

    fn publish_position(&self) {
        let mut state = self.shared.state();
        let first_of_segment = state.live.back().is_some_and(|active| active.end_offset == BLOCK);
        state.record_written(self.offset, self.next);
        drop(state);
        if first_of_segment {
            // The keeper can now remove the segments before this segment.
            self.shared.keeper_wake.notify_one();
        }
    }

    /// Makes the next segment the active segment. Waits until that segment is ready.
    async fn activate_next_segment(&mut self) -> Result<(), Stopped> {
        if self.offset == BLOCK {
            // The active segment is empty, but too short for this record, because the keeper prepared the segment when
            // `segment_bytes` was smaller. The writer writes a marker into the segment, so that every segment before
            // the new active segment contains a record. Recovery can then detect damage to the previous segment.
            self.write_marker().await;
        }
        // The writer notifies the keeper only once. On a full disk, the keeper tries again by itself to prepare a
        // segment, and wakes the writer after each attempt.
        self.shared.keeper_wake.notify_one();
        loop {
            {
                let mut state = self.shared.state();
                if state.activate_next() {
                    self.segment = state.live.back().expect("the journal always has an active segment").segment.clone();
                    self.offset = BLOCK;
                    break;
                }
                if state.is_disk_full && self.queue.set_full(true) {
                    let dir = self.shared.dir.display();
                    tracing::warn!(%dir, "the disk is full; appends fail until it has space for a journal segment");
                }
                if state.is_disk_full && self.queue.is_closed() {
                    return Err(Stopped);
                }
            }
            self.shared.segment_ready.notified().await;
        }
        if self.queue.set_full(false) {
            tracing::info!(dir = %self.shared.dir.display(), "the journal has a new segment; appends succeed again");
        }
        self.shared.keeper_wake.notify_one();
        Ok(())
    }
}

enum Wake {
    Work,
    Idle,
}

/// Runs the writer. A panic of the writer stops the process, because an invariant is broken.
pub(crate) async fn run<T: Send + 'static>(writer: Writer<T>) {
    use futures_util::FutureExt;
    let runtime = writer.shared.runtime.clone();
    if std::panic::AssertUnwindSafe(writer.run()).catch_unwind().await.is_err() {
        runtime.halt("the journal writer panicked").await;
    }
}

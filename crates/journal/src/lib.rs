//! Durable log. It stores entries in order and reports each entry once it is on disk.
//!
//! Many callers call [`Journal::append`]. One thread, the writer, collects their entries, writes them as one record,
//! syncs the record once, and sends a [`Commit`]. The consumer applies the commit and responds to each caller through
//! the ticket that came with the caller's entry. While one sync runs, the queue collects the entries of the next
//! record. A higher load therefore makes larger records, and the disk's latency does not limit the number of entries
//! per second. Under load, the writer collects entries for one more millisecond if this delay does not lower the rate
//! of entries.
//!
//! The journal stores entries in preallocated files, the segments. It reuses a segment once [`Journal::release`] has
//! released all entries of the segment.
//!
//! The journal does not interpret entries and has no index of their content. If the disk replaces durable records at
//! the end by zeros, the journal detects the loss if it was idle after these records, or if the zeros reach far enough
//! into a reused file. Otherwise the records look like records that the journal never wrote. The journal also cannot
//! detect that another program deleted its newest files. A consumer therefore stores [`Journal::id`] and the index of
//! the last entry that the consumer has applied. It rejects a journal whose [`Opened::next`] is not after that index.
//!
//! Invariants:
//! - The journal sends a [`Commit`] after the sync that made its entries durable. Indexes have no gap, and the first
//!   entry has index 1.
//! - The journal returns a durable entry exactly as the caller appended it, or reports its loss as [`Damage`], with the
//!   exception above. The journal never skips or truncates an entry.
//! - After a crash, an entry that was not durable may be missing. Then all later entries are also missing.
//! - After a failed write or sync the process stops. The journal sends no commit that depends on that write.

mod error;
mod format;
mod keeper;
mod linger;
mod lock;
mod proof;
mod queue;
mod reader;
mod recover;
mod segment;
mod shared;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use runtime::{Disk, OpenMode, Runtime, TaskSet};
use tokio::sync::mpsc;

pub use error::{AppendError, Damage, OpenError, ReadError};
pub use lock::FolderLock;
pub use reader::Reader;

use crate::error::{io_error, is_full};
use crate::format::{BLOCK, ENTRY_OVERHEAD, SegmentHeader, record_bytes};
use crate::proof::ProofFile;
use crate::queue::Queue;
use crate::recover::Recovered;
use crate::shared::{LiveSegment, Shared, State};

/// Handle of a journal; cheap to clone. When the caller drops the last handle, the journal writes the queued entries,
/// sends their commits and ends its tasks, as it does after a call of [`Journal::close`].
pub struct Journal<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
    open: Arc<CloseOnDrop<T>>,
}

pub struct Opened<T> {
    pub journal: Journal<T>,
    /// Receiver of the commits. The consumer must receive commits until the channel ends, because the writer waits
    /// while the channel is full. If the consumer drops the receiver, the journal closes.
    pub commits: mpsc::Receiver<Commit<T>>,
    /// Index of the oldest retained entry.
    pub first: u64,
    /// Index of the next entry to append. A reader can read the entries from `first` up to `next`, exclusive.
    pub next: u64,
    /// Lock of the journal's folder, for a consumer that changes other files beside this folder.
    pub lock: FolderLock,
}

/// Entries that became durable together.
#[derive(Debug)]
pub struct Commit<T> {
    /// Index of the first entry. Each further entry has the next index.
    pub first_index: u64,
    /// Entries, each with the ticket that the caller passed to [`Journal::append`]. The list is never empty.
    pub entries: Vec<(Bytes, T)>,
    /// Time from the start of the write to the end of the sync.
    pub took: Duration,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Length of a segment in bytes; a multiple of 4096. The default is 64 MiB. With a small value, the journal uses
    /// many files, and the writer often waits for the next file. With a large value, the journal frees disk space late
    /// and scans more bytes when it opens. Existing segments retain their length.
    pub segment_bytes: u64,
    /// Maximum size of an entry in bytes. The default is 8 MiB.
    pub entry_bytes_max: usize,
    /// Maximum size in bytes of a record with more than one entry. The default is 1 MiB. With a small value, the writer
    /// syncs more often under load. With a large value, each entry waits longer until the writer has written and synced
    /// the whole record.
    pub batch_bytes_max: u64,
    /// Maximum number of bytes in the queue of the writer. The default is 32 MiB. While the queue is full,
    /// [`Journal::append`] waits. The option limits the use of memory.
    pub queue_bytes_max: u32,
    /// Maximum number of entries in the queue of the writer. The default is 131,072. The option limits the use of
    /// memory if entries are small.
    pub queue_entries_max: u32,
    /// Maximum number of commits that the consumer has not yet received. At this number, the writer waits for the
    /// consumer. The default is 16.
    pub commits_max: usize,
    /// Maximum number of released segments that the journal retains for reuse. The default is 4. The journal deletes
    /// further released segments.
    pub spare_segments_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            entry_bytes_max: 8 << 20,
            batch_bytes_max: 1 << 20,
            queue_bytes_max: 32 << 20,
            queue_entries_max: 1 << 17,
            commits_max: 16,
            spare_segments_max: 4,
        }
    }
}

/// Values for metrics. The journal does not read all values at the same instant, so they may be inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Index of the oldest retained entry.
    pub first: u64,
    pub next: u64,
    /// Number of segments with entries, including the segment that the writer fills.
    pub segments: usize,
    /// Bytes that all segment files occupy on disk, including spare files and unused space.
    pub disk_bytes: u64,
    /// Time from the start of the last write to the end of its sync.
    pub commit_last: Duration,
    /// Number of records that the writer has written since the start, including markers.
    pub records: u64,
    pub queue_entries: usize,
    pub queue_bytes: u64,
    /// True while appends fail with [`AppendError::Full`].
    pub full: bool,
}

impl<T: Send + 'static> Journal<T> {
    /// Opens the journal in the folder `dir`. Creates the folder and the journal if they are missing. Only the user of
    /// this process has access to the folder and its files afterwards. `tasks` owns the journal's two tasks.
    ///
    /// This function blocks its thread while it reads every retained record.
    ///
    /// # Errors
    /// Returns [`OpenError::Damaged`] if a durable entry is lost; the journal then changes no file. Returns
    /// [`OpenError::Locked`] if another process has the journal open.
    pub async fn open(
        runtime: &Runtime,
        tasks: &TaskSet,
        dir: &Path,
        options: Options,
    ) -> Result<Opened<T>, OpenError> {
        options.check()?;
        let disk = runtime.disk();
        disk.create_dir_all(dir).await.map_err(io_error("create", dir))?;
        let lock = FolderLock::take(runtime, dir).await?;
        runtime.restrict_all(dir).await.map_err(io_error("restrict the access to", dir))?;
        let listing = recover::list(&*disk, dir).await?;
        let recovered = match listing.segments.as_slice() {
            [] => create(runtime, &lock, dir, &options, listing.files_named).await?,
            numbers => {
                let proof_path = proof::path(dir);
                let proofs = proof::read(&*disk, dir).await.map_err(io_error("read", &proof_path))?;
                recover::recover(&*disk, dir, numbers, &proofs, options.record_bytes_max()).await?
            }
        };
        let files_named = listing.files_named + 1;
        let spares = usable_spares(&*disk, listing.spares, &options).await?;
        for path in listing.fresh {
            disk.remove(&path).await.map_err(io_error("remove", &path))?;
        }

        let Recovered { journal_id, live, ready, next, proven } = recovered;
        let proof_path = proof::path(dir);
        let proof = ProofFile::open(&*disk, dir, journal_id).await.map_err(io_error("open", &proof_path))?;
        let state = State::new(live, ready, spares, files_named, next);
        let first = state.first();
        let (shared, [writer_alive, keeper_alive]) = Shared::new(runtime, dir.to_owned(), options, journal_id, state);
        let queue = Arc::new(Queue::new(&shared.options));
        let (commits, receiver) = mpsc::channel(shared.options.commits_max);
        let writer = writer::Writer::new(shared.clone(), queue.clone(), commits, proven);
        let [writer_lock, keeper_lock] = [lock.clone(), lock.clone()];
        let keeper_shared = shared.clone();
        tasks.spawn_thread("journal writer", async move {
            writer::run(writer).await;
            drop((writer_lock, writer_alive));
        });
        tasks.spawn_thread("journal keeper", async move {
            keeper::run(&keeper_shared, &keeper_lock, proof).await;
            drop((keeper_lock, keeper_alive));
        });
        let open = Arc::new(CloseOnDrop { shared: shared.clone(), queue: queue.clone() });
        let journal = Journal { shared, queue, open };
        Ok(Opened { journal, commits: receiver, first, next, lock })
    }

    /// Queues an entry for the writer. Waits while the queue is full. The caller may treat the entry as durable once
    /// the journal has sent its [`Commit`], and not before.
    ///
    /// Cancel-safe: if the caller drops the future, the journal does not queue the entry. The caller cannot withdraw a
    /// queued entry. If the journal drops the ticket without a commit, the entry may or may not be durable.
    ///
    /// # Errors
    /// Returns an [`AppendError`] if the journal did not queue the entry.
    pub async fn append(&self, entry: Bytes, ticket: T) -> Result<(), AppendError> {
        let bytes_max = self.shared.options.entry_bytes_max;
        if entry.len() > bytes_max {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max });
        }
        self.queue.push(entry, ticket).await
    }

    /// Writes the queued entries, sends their commits, and returns when the journal's tasks have ended. The folder is
    /// then unlocked, unless the consumer has retained [`Opened::lock`]. The consumer must continue to receive commits
    /// until then.
    pub async fn close(&self) {
        self.open.close();
        self.shared.tasks.closed().await;
    }
}

impl<T> Journal<T> {
    /// Returns a reader that starts at entry `from`. The journal must still retain this entry.
    #[must_use]
    pub fn reader(&self, from: u64) -> Reader {
        Reader::new(self.shared.clone(), from)
    }

    /// Releases the entries with an index below `below`. The consumer calls this function once the effects of these
    /// entries are durable in another place.
    pub fn release(&self, below: u64) {
        self.shared.release(below);
    }

    /// Returns the journal's id, a random number that the journal drew at its creation. A journal that replaces this
    /// journal has another id.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.shared.journal_id
    }

    /// Adds the journal's metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Time from the start of the write of a journal record to the end of its disk sync";
        registry.register("reveille_log_commit_duration_seconds", help, self.shared.commit_seconds.clone());
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let (queue_entries, queue_bytes) = self.queue.depth();
        let full = self.queue.is_full();
        let state = self.shared.state();
        let segments = state.live.iter().map(|live| &live.segment).chain(&state.ready);
        let spare_bytes = state.spares.len() as u64 * self.shared.options.segment_bytes;
        Stats {
            first: state.first(),
            next: state.next,
            segments: state.live.len(),
            disk_bytes: segments.map(|segment| segment.length).sum::<u64>() + spare_bytes,
            commit_last: state.commit_last,
            records: state.records,
            queue_entries,
            queue_bytes,
            full,
        }
    }
}

impl<T> Clone for Journal<T> {
    fn clone(&self) -> Self {
        Journal { shared: self.shared.clone(), queue: self.queue.clone(), open: self.open.clone() }
    }
}

impl Options {
    fn record_bytes_max(&self) -> u64 {
        record_bytes(self.entry_bytes_max.saturating_add(ENTRY_OVERHEAD)).max(self.batch_bytes_max)
    }

    fn check(&self) -> Result<(), OpenError> {
        let body_bytes_max = self.entry_bytes_max.saturating_add(ENTRY_OVERHEAD);
        if u32::try_from(body_bytes_max).is_err() {
            return Err(OpenError::Options("entry_bytes_max must be below 4 GiB"));
        }
        if !self.segment_bytes.is_multiple_of(BLOCK) {
            return Err(OpenError::Options("segment_bytes must be a multiple of 4096"));
        }
        // The smallest segment contains a header, one record and a marker.
        if self.segment_bytes < BLOCK + record_bytes(body_bytes_max) + BLOCK {
            return Err(OpenError::Options("segment_bytes is too small for an entry of entry_bytes_max bytes"));
        }
        if self.batch_bytes_max > self.segment_bytes - 2 * BLOCK || self.batch_bytes_max > u64::from(u32::MAX) {
            return Err(OpenError::Options("batch_bytes_max must be below 4 GiB and at most segment_bytes minus 8192"));
        }
        if self.queue_bytes_max == 0 || self.queue_entries_max == 0 || self.commits_max == 0 {
            return Err(OpenError::Options("queue_bytes_max, queue_entries_max and commits_max must not be zero"));
        }
        Ok(())
    }
}

/// Guard that closes the journal when the caller drops the last handle. Only handles own this guard.
struct CloseOnDrop<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
}

impl<T> CloseOnDrop<T> {
    fn close(&self) {
        self.queue.close();
        // The writer may be waiting for a segment because the disk is full, so this call wakes the writer.
        self.shared.segment_ready.notify_one();
    }
}

impl<T> Drop for CloseOnDrop<T> {
    fn drop(&mut self) {
        self.close();
    }
}

async fn create(
    runtime: &Runtime,
    lock: &FolderLock,
    dir: &Path,
    options: &Options,
    files_named: u64,
) -> Result<Recovered, OpenError> {
    sync_ancestors(&*runtime.disk(), dir).await?;
    let journal_id = runtime.random_u128();
    let header = SegmentHeader {
        journal_id,
        number: 1,
        salt: runtime.random(),
        synced_below: 1,
        length: options.segment_bytes,
        filled: 0,
    };
    let fresh = keeper::fresh_path(dir, files_named + 1);
    let segment = keeper::prepare(&*runtime.disk(), lock, dir, &header, None, &fresh).await.map_err(|error| {
        if is_full(&error) {
            OpenError::Full { segment_bytes: options.segment_bytes }
        } else {
            io_error("create a segment in", dir)(error)
        }
    })?;
    let live = VecDeque::from([LiveSegment { segment: Arc::new(segment), first_index: 1, end_offset: BLOCK }]);
    Ok(Recovered { journal_id, live, ready: VecDeque::new(), next: 1, proven: true })
}

/// Makes the directory entries of the journal's folder and of its parent folders durable, because the journal may have
/// created each of these folders.
async fn sync_ancestors(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match disk.sync_dir(ancestor).await {
            // This process cannot have created a directory entry in a folder that it has no permission to open.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced.map_err(io_error("sync", ancestor))?,
        }
    }
    Ok(())
}

/// Returns the spare files that have the configured length, but at most `spare_segments_max` of them. Removes the other
/// spare files.
async fn usable_spares(disk: &dyn Disk, spares: Vec<PathBuf>, options: &Options) -> Result<Vec<PathBuf>, OpenError> {
    let mut usable = Vec::new();
    for path in spares {
        let file = disk.open(&path, OpenMode::Read).await.map_err(io_error("open", &path))?;
        let length = file.len().await.map_err(io_error("measure", &path))?;
        if length == options.segment_bytes && usable.len() < options.spare_segments_max {
            usable.push(path);
        } else {
            disk.remove(&path).await.map_err(io_error("remove", &path))?;
        }
    }
    Ok(usable)
}

//! Durable log. It stores entries in order and reports each entry once it is on disk.
//!
//! Many callers call [`Journal::append`]. One thread writes the gathered entries as one record, syncs once for all of
//! them, and sends a [`Commit`]. The consumer applies the commit and responds to each caller through the ticket that
//! came with the caller's entry. While one sync runs, the next record gathers, so the rate follows the load and not the
//! disk's latency. Under load, a record gathers for one more millisecond if that does not lower the rate.
//!
//! Entries are stored in preallocated segments. A segment is reused once [`Journal::release`] has released all of its
//! entries.
//!
//! The journal does not interpret entries and keeps no index. It cannot detect that its newest segments were removed as
//! a whole. A consumer therefore stores [`Journal::id`] and the index that it has applied, and rejects a journal whose
//! [`Opened::next`] is not after that index.
//!
//! Invariants:
//! - A [`Commit`] is sent after the sync that made it durable. Indexes have no gap, and the first entry has index 1.
//! - A durable entry is returned exactly as it was appended, or its loss is reported as [`Damage`]. It is never skipped
//!   or cut off.
//! - After a crash, an entry that was not durable may be missing. Then all entries after it are missing, too.
//! - After a failed write or sync the process stops. No commit that depends on that write is sent.

mod error;
mod format;
mod keeper;
mod linger;
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
pub use reader::Reader;

use crate::format::{BLOCK, ENTRY_OVERHEAD, SegmentHeader, record_bytes};
use crate::queue::Queue;
use crate::recover::{Recovered, io_error};
use crate::shared::{LiveSegment, Shared, State};

/// Handle of a journal; cheap to clone. When the last handle is dropped, the journal drains, syncs and ends, as after
/// [`Journal::close`].
pub struct Journal<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
    open: Arc<CloseOnDrop<T>>,
}

pub struct Opened<T> {
    pub journal: Journal<T>,
    /// Commits. The consumer must receive them until the channel ends: while it does not, nothing is written. If the
    /// receiver is dropped, the journal closes.
    pub commits: mpsc::Receiver<Commit<T>>,
    /// Index of the oldest retained entry.
    pub first: u64,
    /// Index that the next entry will get. Entries from `first` up to `next`, exclusive, can be read now.
    pub next: u64,
}

/// Group of entries that became durable together.
#[derive(Debug)]
pub struct Commit<T> {
    /// Index of the first entry; the others follow by one.
    pub first_index: u64,
    /// Entries with their tickets; never empty.
    pub entries: Vec<(Bytes, T)>,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Length of a segment; a multiple of 4096. Default 64 MiB. Too small: many files and many waits for the next one.
    /// Too large: disk space is freed late, and starts scan more. Existing segments keep their length.
    pub segment_bytes: u64,
    /// Size of the largest entry. Default 8 MiB.
    pub entry_bytes_max: usize,
    /// Largest size of a record, unless a single entry is larger. Default 1 MiB. Too small: more syncs under load. Too
    /// large: the first entry of a record waits long for the last one.
    pub batch_bytes_max: u64,
    /// Bytes that may wait to be written. Default 32 MiB. When they are used up, [`Journal::append`] waits. Bounds
    /// memory.
    pub queue_bytes_max: u32,
    /// Entries that may wait to be written. Default 131,072. Bounds memory when entries are small.
    pub queue_entries_max: u32,
    /// Commits that the consumer may lag behind before the writer waits for it. Default 16.
    pub commits_max: usize,
    /// Released segments that are kept for reuse in addition to those in use. Default 4. Further ones are deleted.
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

/// Snapshot for metrics. The values may change while it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Index of the oldest retained entry.
    pub first: u64,
    pub next: u64,
    /// Segments with entries, including the active one.
    pub segments: usize,
    /// Bytes that all segment files occupy on disk, used or not.
    pub disk_bytes: u64,
    /// Time from the start of the last write to the end of its sync.
    pub commit_last: Duration,
    /// Records written since the start, markers included.
    pub records: u64,
    pub queue_entries: usize,
    pub queue_bytes: u64,
    /// True if appends fail with [`AppendError::Full`].
    pub full: bool,
}

impl<T: Send + 'static> Journal<T> {
    /// Opens the journal in `dir`, and creates both if they are missing. Its two tasks belong to `tasks`.
    ///
    /// Blocks its thread while it reads every retained record.
    ///
    /// # Errors
    /// Returns [`OpenError::Damaged`] if a durable entry is lost; nothing on disk is changed then.
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
        let lock = lock(&*disk, dir).await?;
        let listing = recover::list(&*disk, dir).await?;
        let recovered = match listing.segments.as_slice() {
            [] => create(runtime, dir, &options, listing.files_named).await?,
            numbers => recover::recover(&*disk, dir, numbers).await?,
        };
        let files_named = listing.files_named + 1;
        let spares = usable_spares(&*disk, listing.spares, &options).await?;
        for path in listing.fresh {
            disk.remove(&path).await.map_err(io_error("remove", &path))?;
        }

        let Recovered { journal_id, live, ready, next, proven } = recovered;
        let state = State::new(live, ready, spares, files_named, next);
        let first = state.first();
        let (shared, [writer_alive, keeper_alive]) = Shared::new(runtime, dir.to_owned(), options, journal_id, state);
        let queue = Arc::new(Queue::new(&shared.options));
        let (commits, receiver) = mpsc::channel(shared.options.commits_max);
        let writer = writer::Writer::new(shared.clone(), queue.clone(), commits, proven);
        let lock: Arc<dyn Send + Sync> = Arc::from(lock);
        let keeper_lock = lock.clone();
        let keeper_shared = shared.clone();
        tasks.spawn_thread("journal writer", async move {
            writer::run(writer).await;
            drop((lock, writer_alive));
        });
        tasks.spawn_thread("journal keeper", async move {
            keeper::run(&keeper_shared).await;
            drop((keeper_lock, keeper_alive));
        });
        let open = Arc::new(CloseOnDrop { shared: shared.clone(), queue: queue.clone() });
        let journal = Journal { shared, queue, open };
        Ok(Opened { journal, commits: receiver, first, next })
    }

    /// Queues an entry, after waiting for capacity if necessary. The entry is durable when its [`Commit`] is sent, not
    /// before.
    ///
    /// Cancel-safe: if the future is dropped, nothing is queued. A queued entry cannot be withdrawn. If the ticket is
    /// dropped without a commit, the entry may or may not be durable.
    ///
    /// # Errors
    /// See [`AppendError`]; the entry was not queued.
    pub async fn append(&self, entry: Bytes, ticket: T) -> Result<(), AppendError> {
        let bytes_max = self.shared.options.entry_bytes_max;
        if entry.len() > bytes_max {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max });
        }
        self.queue.push(entry, ticket).await
    }

    /// Writes the queued entries, sends their commits, and returns when the journal's tasks have ended and its folder
    /// is unlocked. The consumer must continue to receive until then.
    pub async fn close(&self) {
        self.open.close();
        self.shared.tasks.closed().await;
    }
}

impl<T> Journal<T> {
    /// Returns a reader that starts at entry `from`, which must be retained.
    #[must_use]
    pub fn reader(&self, from: u64) -> Reader {
        Reader::new(self.shared.clone(), from)
    }

    /// Releases the entries below `below`. Call it once their effects are durable elsewhere.
    pub fn release(&self, below: u64) {
        self.shared.release(below);
    }

    /// Returns the random id that was drawn when the journal was created. A journal that replaces it has another id.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.shared.journal_id
    }

    /// Adds the journal's metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Time from the start of a record's write to the end of its sync";
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
    fn check(&self) -> Result<(), OpenError> {
        let body_bytes_max = self.entry_bytes_max.saturating_add(ENTRY_OVERHEAD);
        if u32::try_from(body_bytes_max).is_err() {
            return Err(OpenError::Options("entry_bytes_max must be below 4 GiB"));
        }
        if !self.segment_bytes.is_multiple_of(BLOCK) {
            return Err(OpenError::Options("segment_bytes must be a multiple of 4096"));
        }
        // A segment holds its header, one record and a marker.
        if self.segment_bytes < BLOCK + record_bytes(body_bytes_max) + BLOCK {
            return Err(OpenError::Options("segment_bytes must be large enough for an entry of entry_bytes_max"));
        }
        if self.batch_bytes_max > self.segment_bytes - 2 * BLOCK || self.batch_bytes_max > u64::from(u32::MAX) {
            return Err(OpenError::Options("batch_bytes_max must be at least 8192 less than segment_bytes"));
        }
        if self.queue_bytes_max == 0 || self.queue_entries_max == 0 || self.commits_max == 0 {
            return Err(OpenError::Options("queue_bytes_max, queue_entries_max and commits_max must not be zero"));
        }
        Ok(())
    }
}

/// Closes the journal when the last handle is dropped. Only handles own it.
struct CloseOnDrop<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
}

impl<T> CloseOnDrop<T> {
    fn close(&self) {
        self.queue.close();
        // The writer may be waiting for disk space.
        self.shared.segment_ready.notify_one();
    }
}

impl<T> Drop for CloseOnDrop<T> {
    fn drop(&mut self) {
        self.close();
    }
}

async fn lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Send + Sync>, OpenError> {
    let path = dir.join("lock");
    disk.lock(&path).await.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { lock: path },
        _ => io_error("lock", &path)(error),
    })
}

async fn create(runtime: &Runtime, dir: &Path, options: &Options, files_named: u64) -> Result<Recovered, OpenError> {
    sync_ancestors(&*runtime.disk(), dir).await?;
    let journal_id = runtime.random_u128();
    let header =
        SegmentHeader { journal_id, number: 1, salt: runtime.random(), synced_below: 1, length: options.segment_bytes };
    let fresh = keeper::fresh_path(dir, files_named + 1);
    let segment = keeper::prepare(&*runtime.disk(), dir, &header, None, &fresh).await.map_err(|error| {
        if keeper::is_full(&error) {
            OpenError::Full { segment_bytes: options.segment_bytes }
        } else {
            io_error("create a segment in", dir)(error)
        }
    })?;
    let live = VecDeque::from([LiveSegment { segment: Arc::new(segment), first_index: 1, end_offset: BLOCK }]);
    Ok(Recovered { journal_id, live, ready: VecDeque::new(), next: 1, proven: true })
}

/// Makes the folder's directory entry durable, and those of the parent folders that were created with it.
async fn sync_ancestors(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match disk.sync_dir(ancestor).await {
            // This user cannot have created a folder that this user may not open.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced.map_err(io_error("sync", ancestor))?,
        }
    }
    Ok(())
}

/// Returns the spare files that have the configured length, up to the limit, and removes the others.
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

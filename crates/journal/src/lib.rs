//! The durable log: entries in, and told back once they are on disk, in order.
//!
//! Many callers [`Journal::append`]; one thread writes what has gathered as one record, syncs once for all of them, and
//! sends a [`Commit`]; the consumer applies it and answers each caller through the ticket that came with its entry.
//! While one sync runs the next record gathers, so the rate follows the load and not the disk's latency. Under load it
//! gathers for a millisecond more, if that costs no rate.
//!
//! Entries live in preallocated segments, which are used again once [`Journal::release`] says that nobody needs them.
//!
//! It does not know what an entry means, keeps no index, and cannot tell that its newest segments were taken away as a
//! whole: a consumer keeps [`Journal::id`] and the index it has applied, and refuses a journal whose
//! [`Opened::next`] is not after that.
//!
//! Always true here:
//! - a [`Commit`] is sent after the sync that made it durable, and indexes have no gap; the first entry of all is 1;
//! - what was durable is given back exactly, or its loss is told as [`Damage`]: it is never skipped or cut off;
//! - what was not durable may be there after a crash, or not, but then none after it is;
//! - after a failed write or sync the process ends, and nobody is told anything that hangs on it.

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
use crate::shared::{Book, Held, Shared};

/// A handle; cheap to clone. When the last one is dropped the journal drains, syncs and ends, as by [`Journal::close`].
pub struct Journal<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
    open: Arc<CloseOnDrop<T>>,
}

pub struct Opened<T> {
    pub journal: Journal<T>,
    /// To be received until it ends: while it is not, nothing is written. If it is dropped the journal closes.
    pub commits: mpsc::Receiver<Commit<T>>,
    /// The oldest entry held.
    pub first: u64,
    /// The index that the next entry will get. Those from `first` up to it, exclusive, can be read now.
    pub next: u64,
}

/// Entries that have become durable together.
#[derive(Debug)]
pub struct Commit<T> {
    /// The index of the first; the others follow by one.
    pub first_index: u64,
    /// Never empty.
    pub entries: Vec<(Bytes, T)>,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A segment's length; a multiple of 4096. Too small: many files, many waits for the next. Too large: space is
    /// given back late, and starts scan more. Segments that exist keep theirs.
    pub segment_bytes: u64,
    /// The largest entry.
    pub entry_bytes_max: usize,
    /// What one record takes up at most, unless a single entry is larger. Too small: more syncs under load. Too large:
    /// the last of a record wait long for the first.
    pub batch_bytes_max: u64,
    /// What may wait to be written; more makes [`Journal::append`] wait. Bounds memory.
    pub queue_bytes_max: u32,
    /// As `queue_bytes_max`, for entries so small that their number counts.
    pub queue_entries_max: u32,
    /// Commits that the consumer may be behind before the writer waits for it.
    pub commits_max: usize,
    /// Released segments that are kept to be used again, besides those in use; others give their space back.
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

/// For metrics. Changes while it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// The oldest entry held, and the one after the last durable one.
    pub first: u64,
    pub next: u64,
    /// Segments with entries, including the one being written.
    pub segments: usize,
    /// What all segment files take up on disk, used or not.
    pub disk_bytes: u64,
    /// From the beginning of the last write to the end of its sync.
    pub commit_last: Duration,
    /// Records written since the start, markers included.
    pub records: u64,
    pub queue_entries: usize,
    pub queue_bytes: u64,
    /// Appends are refused with [`AppendError::Full`].
    pub full: bool,
}

impl<T: Send + 'static> Journal<T> {
    /// Opens the journal in `dir`, making both if missing. Its two tasks belong to `tasks`.
    ///
    /// Blocks its thread while it reads every record that is held.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if something that was durable is gone; nothing on disk is changed then.
    /// [`OpenError::Locked`] if another process has it open.
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

        let Recovered { journal_id, held, ready, next, marked } = recovered;
        let book = Book::new(held, ready, spares, files_named, next);
        let first = book.first();
        let (shared, [writer_alive, keeper_alive]) = Shared::new(runtime, dir.to_owned(), options, journal_id, book);
        let queue = Arc::new(Queue::new(&shared.options));
        let (commits, receiver) = mpsc::channel(shared.options.commits_max);
        let writer = writer::Writer::new(shared.clone(), queue.clone(), commits, marked);
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

    /// Queues an entry, after waiting for room if need be. It is durable when its [`Commit`] comes, not before.
    ///
    /// Nothing is queued if the future is dropped. Once queued, the entry cannot be taken back; if the ticket is
    /// dropped without a commit, it is not known whether the entry is durable.
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

    /// Writes what is queued, tells the consumer, and returns when the journal's tasks have ended and its folder is
    /// free. The consumer must go on receiving meanwhile.
    pub async fn close(&self) {
        self.open.close();
        self.shared.tasks.closed().await;
    }
}

impl<T> Journal<T> {
    /// Reads from entry `from` on, which must be held.
    #[must_use]
    pub fn reader(&self, from: u64) -> Reader {
        Reader::new(self.shared.clone(), from)
    }

    /// Entries below `below` are not needed any more, because what they did is durable elsewhere.
    pub fn release(&self, below: u64) {
        self.shared.release(below);
    }

    /// Drawn when the journal was made; another one in its place has another.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.shared.journal_id
    }

    /// Adds what is counted here to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "From the beginning of a record's write to the end of its sync";
        registry.register("reveille_log_commit_duration_seconds", help, self.shared.commit_seconds.clone());
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let (queue_entries, queue_bytes) = self.queue.depth();
        let full = self.queue.is_full();
        let book = self.shared.book();
        let segments = book.held.iter().map(|held| &held.segment).chain(&book.ready);
        let spare_bytes = book.spares.len() as u64 * self.shared.options.segment_bytes;
        Stats {
            first: book.first(),
            next: book.next,
            segments: book.held.len(),
            disk_bytes: segments.map(|segment| segment.length).sum::<u64>() + spare_bytes,
            commit_last: book.commit_last,
            records: book.records,
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
        // Its header, one record, and a marker.
        if self.segment_bytes < BLOCK + record_bytes(body_bytes_max) + BLOCK {
            return Err(OpenError::Options("segment_bytes must leave room for an entry of entry_bytes_max"));
        }
        if self.batch_bytes_max > self.segment_bytes - 2 * BLOCK || self.batch_bytes_max > u64::from(u32::MAX) {
            return Err(OpenError::Options("batch_bytes_max must be smaller than segment_bytes, by 8192"));
        }
        if self.queue_bytes_max == 0 || self.queue_entries_max == 0 || self.commits_max == 0 {
            return Err(OpenError::Options("queue_bytes_max, queue_entries_max and commits_max must not be zero"));
        }
        Ok(())
    }
}

/// Held by handles only.
struct CloseOnDrop<T> {
    shared: Arc<Shared>,
    queue: Arc<Queue<T>>,
}

impl<T> CloseOnDrop<T> {
    fn close(&self) {
        self.queue.close();
        // The writer may be waiting for room on the disk.
        self.shared.turned.notify_one();
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
            io_error("make a segment in", dir)(error)
        }
    })?;
    let held = VecDeque::from([Held { segment: Arc::new(segment), first_index: 1, end_offset: BLOCK }]);
    Ok(Recovered { journal_id, held, ready: VecDeque::new(), next: 1, marked: true })
}

/// Makes the folder's own name durable, and those of the folders above that were made with it.
async fn sync_ancestors(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match disk.sync_dir(ancestor).await {
            // What this user may not open, this user has not made.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced.map_err(io_error("sync", ancestor))?,
        }
    }
    Ok(())
}

/// Those of the length in use; the others are removed.
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

//! Spool for the results of a batch, between the task that reads lines and the response.
//!
//! Many clients write a whole request before they read the response. If the server waited for such a client to read,
//! the server and the client would wait for each other. The spool therefore accepts results while the client reads
//! nothing. The first [`Options::batch_memory_max`] bytes stay in memory, and later results go to a file without a
//! name.
//!
//! Invariants: results leave the spool in the order of their arrival. After a failed write to the file, the spool adds
//! further results to memory, and accepts only the results of lines that the server has already read.
//!
//! docs/decisions/0198-spool-unread-results-of-a-batch.md gives the reasons for the design.

mod disk_thread;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use runtime::{DiskFile, Runtime};
use tokio::sync::Notify;

use crate::Options;
use disk_thread::DiskThread;

/// Maximum number of bytes that one read of a spool's file returns.
const READ_BYTES: u64 = 64 << 10;
/// Interval at which a writer checks whether other batches have released space for files.
const SPACE_CHECK: Duration = Duration::from_millis(500);

/// Spools of all batches: their limits, their thread for disk calls, and the size of their files.
pub(crate) struct Spools {
    runtime: Runtime,
    disk_thread: DiskThread,
    folder: PathBuf,
    memory_max: usize,
    files_max: u64,
    /// Number of bytes that all spools together have reserved for their files.
    files: AtomicU64,
}

impl Spools {
    pub(crate) fn new(runtime: &Runtime, options: &Options) -> Self {
        Spools {
            runtime: runtime.clone(),
            disk_thread: DiskThread::new(runtime),
            folder: options.batch_folder.clone(),
            memory_max: options.batch_memory_max,
            files_max: options.batch_files_max,
            files: AtomicU64::new(0),
        }
    }

    /// Creates a spool, and returns its writer and its reader.
    pub(crate) fn open(self: &Arc<Self>) -> (Writer, Reader) {
        let (readable, writable) = (Notify::new(), Notify::new());
        let shared = Arc::new(Shared { spools: self.clone(), queue: Mutex::default(), readable, writable });
        (Writer { shared: shared.clone() }, Reader { shared })
    }

    /// Reserves `more` bytes for a spool's file, and returns true. Returns false, and reserves nothing, if the files of
    /// all spools would exceed their common limit.
    fn reserve(&self, more: u64) -> bool {
        let sum = |total: u64| total.checked_add(more).filter(|total| *total <= self.files_max);
        self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }
}

/// End of the spool that accepts results.
pub(crate) struct Writer {
    shared: Arc<Shared>,
}

/// End of the spool that returns results.
pub(crate) struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    spools: Arc<Spools>,
    queue: Mutex<Queue>,
    /// Signal that wakes the reader while it waits for results or for the start of the response.
    readable: Notify,
    /// Signal that wakes the writer while it waits for space in the files.
    writable: Notify,
}

/// Unread results. The oldest are in `first`, the next in the file, and the newest in `last`.
#[derive(Default)]
struct Queue {
    first: VecDeque<Bytes>,
    /// Number of bytes in `first`.
    first_bytes: usize,
    file: Option<Arc<dyn DiskFile>>,
    /// Byte offset in the file at which the unread results start. They end at `file_end`.
    file_start: u64,
    file_end: u64,
    /// Number of bytes that the spool has reserved for its file. `Spools::files` includes this number.
    file_reserved: u64,
    last: VecDeque<Bytes>,
    /// True after a failed write to the file. The spool then writes no further results to the file.
    is_broken: bool,
    /// Number of bytes of all results that the writer has added, including the results that the reader has taken.
    bytes: u64,
    /// True if the client may receive the response.
    is_released: bool,
    /// True if every line of the batch has its result.
    is_complete: bool,
    /// True if the writer is gone, so that no further results arrive.
    is_closed: bool,
    is_reader_gone: bool,
}

/// Reason for a failure of [`Writer::push`].
#[derive(Debug)]
pub(crate) enum PushError {
    /// The client is gone, so the results cannot reach it.
    ReaderGone,
    /// The write to the file failed. The spool contains the results, but it accepts no results of further lines.
    Unwritable(io::Error),
}

enum Place {
    Memory,
    /// File, with the byte offset at which the writer must write the results.
    File(u64),
    Wait,
}

impl Writer {
    /// Adds results to the spool. Waits only while the files of all batches together have reached their limit. If
    /// `is_disk_full` is true, the spool does not write to the file, and returns the error of a failed write instead.
    /// Therefore unread results do not use the disk space that the store keeps in reserve.
    pub(crate) async fn push(&self, results: Bytes, is_disk_full: bool) -> Result<(), PushError> {
        let shared = &*self.shared;
        loop {
            let place = {
                let mut queue = shared.queue();
                if queue.is_reader_gone {
                    return Err(PushError::ReaderGone);
                }
                let place = queue.place(results.len(), &shared.spools);
                if let Place::Memory = place {
                    queue.bytes += results.len() as u64;
                    queue.add_to_memory(results.clone());
                }
                place
            };
            match place {
                Place::Memory => break,
                Place::File(offset) => {
                    let written = if is_disk_full {
                        Err(io::Error::new(io::ErrorKind::StorageFull, "the store's disk is nearly full"))
                    } else {
                        shared.write(offset, results.clone()).await
                    };
                    let mut queue = shared.queue();
                    queue.bytes += results.len() as u64;
                    if let Err(error) = written {
                        queue.is_broken = true;
                        queue.add_to_memory(results);
                        drop(queue);
                        shared.readable.notify_one();
                        return Err(PushError::Unwritable(error));
                    }
                    queue.file_end = offset + results.len() as u64;
                    break;
                }
                Place::Wait => {
                    let _is_late = shared.spools.runtime.timeout(SPACE_CHECK, shared.writable.notified()).await;
                }
            }
        }
        shared.readable.notify_one();
        Ok(())
    }

    /// Permits the server to start the response.
    pub(crate) fn release(&self) {
        self.shared.queue().is_released = true;
        self.shared.readable.notify_one();
    }

    /// Records that every line has its result, and permits the server to start the response.
    pub(crate) fn complete(&self) {
        self.shared.queue().is_complete = true;
        self.release();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_closed = true;
        queue.is_released = true;
        drop(queue);
        self.shared.readable.notify_one();
    }
}

impl Reader {
    /// Waits until the response may start. If every line already has its result, returns the number of bytes of all
    /// results.
    pub(crate) async fn released(&self) -> Option<u64> {
        loop {
            {
                let queue = self.shared.queue();
                if queue.is_released {
                    return queue.is_complete.then_some(queue.bytes);
                }
            }
            self.shared.readable.notified().await;
        }
    }

    /// Returns true if the reader has taken the results of all lines.
    pub(crate) fn is_drained(&self) -> bool {
        let queue = self.shared.queue();
        let is_empty = queue.first.is_empty() && queue.file_start == queue.file_end && queue.last.is_empty();
        queue.is_complete && is_empty
    }

    /// Waits for the next results. Returns `None` after the last results.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if the batch ended before every line had its result.
    pub(crate) async fn next(&self) -> Option<io::Result<Bytes>> {
        let shared = &*self.shared;
        loop {
            let unread = {
                let mut queue = shared.queue();
                if let Some(results) = queue.first.pop_front() {
                    queue.first_bytes -= results.len();
                    shared.writable.notify_one();
                    return Some(Ok(results));
                }
                if queue.file_start < queue.file_end {
                    let file = queue.file.clone().expect("a file with unread results exists");
                    Some((file, queue.file_start, (queue.file_end - queue.file_start).min(READ_BYTES)))
                } else if let Some(results) = queue.last.pop_front() {
                    return Some(Ok(results));
                } else if queue.is_closed {
                    let interrupted = || io::Error::other("the batch ended before every line had its result");
                    return (!queue.is_complete).then(|| Err(interrupted()));
                } else {
                    None
                }
            };
            let Some((file, offset, length)) = unread else {
                shared.readable.notified().await;
                continue;
            };
            let results = shared.read(file, offset, length).await;
            if results.is_ok() {
                shared.queue().file_start = offset + length;
                shared.writable.notify_one();
            }
            return Some(results);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_reader_gone = true;
        drop(queue);
        self.shared.writable.notify_one();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of this lock panics")
    }

    async fn write(&self, offset: u64, results: Bytes) -> io::Result<()> {
        let file = self.queue().file.clone();
        let (disk, folder) = (self.spools.runtime.disk(), self.spools.folder.clone());
        let written = self.spools.disk_thread.run(async move {
            let file = match file {
                Some(file) => file,
                None => disk.open_unnamed(&folder).await?,
            };
            file.write_at(offset, &results).await.map(|()| file)
        });
        self.queue().file = Some(written.await.unwrap_or_else(stopped)?);
        Ok(())
    }

    async fn read(&self, file: Arc<dyn DiskFile>, offset: u64, length: u64) -> io::Result<Bytes> {
        let length = usize::try_from(length).expect("READ_BYTES fits into an address");
        let read = self.spools.disk_thread.run(async move {
            let mut results = vec![0; length];
            file.read_at(offset, &mut results).await.map(|()| Bytes::from(results))
        });
        let results = read.await.unwrap_or_else(stopped);
        results.inspect_err(|error| {
            tracing::warn!(%error, "cannot read the results of a batch; the batch ends without them");
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let reserved = self.queue().file_reserved;
        self.spools.files.fetch_sub(reserved, Ordering::Relaxed);
    }
}

fn stopped<T>() -> io::Result<T> {
    Err(io::Error::other("the thread for disk calls ended"))
}

impl Queue {
    /// Chooses memory or the file as the place for `len` further bytes of results. If it chooses the file, it reserves
    /// space for these bytes. Returns [`Place::Wait`] if the files of all spools have reached their limit.
    fn place(&mut self, len: usize, spools: &Spools) -> Place {
        let is_file_read = self.file_start == self.file_end;
        if self.is_broken {
            return Place::Memory;
        }
        let bytes = self.first_bytes + len;
        if is_file_read && (bytes <= spools.memory_max || self.first.is_empty()) {
            return Place::Memory;
        }
        if is_file_read {
            (self.file_start, self.file_end) = (0, 0);
        }
        let end = self.file_end + len as u64;
        let growth = end.saturating_sub(self.file_reserved);
        if !spools.reserve(growth) {
            return Place::Wait;
        }
        self.file_reserved += growth;
        Place::File(self.file_end)
    }

    fn add_to_memory(&mut self, results: Bytes) {
        if self.is_broken {
            self.last.push_back(results);
        } else {
            self.first_bytes += results.len();
            self.first.push_back(results);
        }
    }
}

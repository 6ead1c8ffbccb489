//! Disk port: positional reads and writes, preallocation, and the difference between written and durable data.
//!
//! docs/decisions/0001-make-disk-calls-blocking-futures.md gives the reasons for the design.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;

/// Mode of [`Disk::open`]: the operations that it allows, and whether the file must exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Opens an existing file for reads only. Fails with `NotFound` if the file does not exist.
    Read,
    /// Opens an existing file for reads and writes. Fails with `NotFound` if the file does not exist.
    ReadWrite,
    /// Creates a file for reads and writes. Fails with `AlreadyExists` if the file exists.
    CreateNew,
}

/// Directory tree on a disk. On a real disk, each call blocks its thread, and the returned future is ready at the first
/// poll.
///
/// Bytes survive a crash if a successful [`DiskFile::sync_data`] followed their write. Names survive a crash if a
/// successful [`Disk::sync_dir`] followed their change. A crash may keep, truncate or lose any other data.
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory and its missing parents. Only the user of this process has access to the new directories.
    /// Succeeds if the directory exists.
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Opens the file at `path`. Only the user of this process has access to a new file.
    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>>;
    /// Creates a file without a name on the volume of the directory `dir`, for temporary data. The file disappears
    /// when its last handle is closed, and therefore also in a crash. Only this process can read it.
    fn open_unnamed<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>>;
    /// Removes the access of the group and of other users from the file or directory `path`. Returns true if such a user
    /// had access, and false if `path` does not exist. Fails with `PermissionDenied` if the access cannot be removed.
    fn restrict<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<bool>>;
    /// Returns the sorted names of the files in a directory. Omits subdirectories.
    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>>;
    /// Renames a file. If `to` exists, the call replaces it atomically.
    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Removes a file. Fails with `NotFound` if the file does not exist.
    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Makes durable all changes of names in `dir` that callers made before this call.
    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Returns the number of bytes that an unprivileged user can still write on the volume of `path`.
    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>>;
    /// Locks the directory of `path` and the file `path` for this process until the caller drops the lock. Creates the
    /// file if it does not exist. Fails with `WouldBlock` if another process holds one of the two locks. The directory
    /// therefore stays locked if another program removes the file.
    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn DiskLock>>>;
}

/// Lock of [`Disk::lock`]. The drop of this value unlocks the directory and the file.
pub trait DiskLock: Send + Sync + 'static {
    /// Fails if another program has removed, moved or replaced the locked file or its directory. Another process may
    /// then lock the file or the directory that has the path now.
    fn verify(&self) -> BoxFuture<'_, io::Result<()>>;
}

/// Open file of a [`Disk`].
#[expect(clippy::len_without_is_empty, reason = "`len` is a call that can fail, and no caller needs `is_empty`")]
pub trait DiskFile: Send + Sync + 'static {
    /// Returns the length of the file in bytes.
    fn len(&self) -> BoxFuture<'_, io::Result<u64>>;
    /// Fills `into` with the bytes from `offset` on. Fails with `UnexpectedEof` if the file ends before `into` is full.
    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Writes all of `bytes` from `offset` on. The bytes are not durable before a [`DiskFile::sync_data`].
    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Sets the length of the file. If the file grows, the call fills the new part with zeros that occupy disk space. A
    /// later write over these zeros therefore cannot fail for lack of space.
    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Makes all bytes durable that callers wrote before this call. After an error, the caller cannot know which bytes
    /// since the last `Ok` are durable, and a later call does not make these bytes durable.
    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>>;
}

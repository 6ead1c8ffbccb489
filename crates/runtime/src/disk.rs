//! Disk port: positional reads and writes, preallocation, and the difference between written and durable data.
//!
//! docs/decisions/0001-make-disk-calls-blocking-futures.md gives the reasons for the design.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    Read,
    /// Fails with `NotFound` if the file does not exist.
    ReadWrite,
    /// Fails with `AlreadyExists` if the file exists.
    CreateNew,
}

/// Directory tree. On a real disk, each call blocks its thread, and its future is ready at the first poll.
///
/// A crash keeps the bytes that a later successful [`DiskFile::sync_data`] covers, and the names that a later
/// successful [`Disk::sync_dir`] covers. A crash may keep, truncate or lose everything else.
pub trait Disk: Send + Sync + 'static {
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>>;
    /// Lists the names of the files in a directory, sorted and without subdirectories.
    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>>;
    /// Renames a file. The call replaces an existing `to` atomically.
    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Returns the bytes that an ordinary user can still write on the volume of `path`.
    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>>;
    /// Locks `path` for this process until the guard is dropped, and creates the file if it is missing. Fails with
    /// `WouldBlock` if another process holds the lock.
    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Send + Sync>>>;
}

#[expect(clippy::len_without_is_empty, reason = "the length is a call that can fail, and no caller needs is_empty")]
pub trait DiskFile: Send + Sync + 'static {
    fn len(&self) -> BoxFuture<'_, io::Result<u64>>;
    /// Fills `into` with the bytes from `offset` on. Fails with `UnexpectedEof` if the file ends before that.
    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>>;
    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Sets the length. A growing file is filled with zeros that occupy disk space, so that overwriting them cannot
    /// fail for lack of space.
    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Makes everything that was written before this call durable. After an error, all bytes since the last `Ok` are in
    /// an unknown state, and another call does not help.
    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>>;
}

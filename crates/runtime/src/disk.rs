//! Files, as a log and a store need them: positions, preallocation, and the difference between written and durable.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    Read,
    /// Fails with `NotFound` if there is none.
    ReadWrite,
    /// Fails with `AlreadyExists` if there is one.
    CreateNew,
}

/// A folder tree. In the real world each call blocks its thread and is ready at its first poll.
///
/// What a crash leaves: bytes covered by a later [`DiskFile::sync_data`] that returned `Ok`, and names covered by a
/// later [`Disk::sync_dir`] that did. Everything else may be there, in part, or not.
pub trait Disk: Send + Sync + 'static {
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>>;
    /// The names of the files in a folder (folders left out), sorted.
    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>>;
    /// Replaces `to`, if there is one, in one step.
    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Bytes that an ordinary user may still write on the volume of `path`.
    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>>;
    /// Holds `path` (made if missing) for this process until the guard is dropped; `WouldBlock` if another has it.
    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Send + Sync>>>;
}

#[expect(clippy::len_without_is_empty, reason = "a file's length is a call that can fail; nobody asks for emptiness")]
pub trait DiskFile: Send + Sync + 'static {
    fn len(&self) -> BoxFuture<'_, io::Result<u64>>;
    /// Fills `into` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>>;
    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Sets the length; a longer file is filled with zeros that take up space, so that overwriting them cannot fail
    /// for want of it.
    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Everything written before this call is durable once it returns `Ok`. After an error nothing is known of the
    /// bytes since the last `Ok`, and calling again does not help.
    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>>;
}

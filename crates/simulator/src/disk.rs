//! Simulated disk. It implements [`runtime::Disk`] over a [`Volume`], in simulated time.
//!
//! A sync takes effect when it returns. Every other operation takes effect at its first poll, and returns after a
//! random duration. The operations of a member that went down never return.

pub(crate) mod contents;
pub(crate) mod volume;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::{Disk, DiskFile, DiskLock, OpenMode};

use crate::disk::volume::{InodeId, Volume};
use crate::executor::{Core, DownReason, MemberIndex, Shared, Sleep};
use crate::faults::Incident;
use crate::trace::{Event, digest};

/// Access to a member's disk, valid until the member goes down.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    shared: Arc<Shared>,
    member: MemberIndex,
    boot: u64,
}

/// Description of an operation for the trace.
struct Operation<'a> {
    name: &'static str,
    path: &'a Path,
    offset: u64,
    len: u64,
    digest: u64,
}

impl<'a> Operation<'a> {
    fn on(name: &'static str, path: &'a Path) -> Self {
        Operation { name, path, offset: 0, len: 0, digest: 0 }
    }
}

impl SimulatedDisk {
    pub(crate) fn new(shared: Arc<Shared>, member: MemberIndex, boot: u64) -> Self {
        SimulatedDisk { shared, member, boot }
    }

    /// Runs `effect`, and returns its result after a random time.
    async fn operate<T>(
        &self,
        operation: Operation<'_>,
        effect: impl FnOnce(&mut Core, MemberIndex) -> io::Result<T>,
    ) -> io::Result<T> {
        let started = self.begin(operation, |core, member| {
            let result = effect(core, member);
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
                core.incident(member, Incident::DiskFull, "");
            }
            let time = core.faults.operation_time.clone();
            (result, core.random.duration(&time))
        });
        let Some((result, time)) = started else { return std::future::pending().await };
        self.pass(time).await;
        result
    }

    /// Starts an operation. Returns `None` if the member went down before the operation, or if the power fails during
    /// the operation.
    fn begin<T>(&self, operation: Operation<'_>, effect: impl FnOnce(&mut Core, MemberIndex) -> T) -> Option<T> {
        let (result, loses_power) = {
            let mut guard = self.shared.lock();
            let core = &mut *guard;
            if !core.is_current(self.member, self.boot) {
                return None;
            }
            let Operation { name, path, offset, len, digest } = operation;
            let member = &mut core.members[self.member];
            let path = path.to_str().unwrap_or("(a path that is not UTF-8)");
            let event = Event::Disk { member: &member.name, operation: name, path, offset, len, digest };
            core.trace.record(core.now, &event);
            member.volume.operations += 1;
            let loses_power = member.volume.crash_at.is_some_and(|at| member.volume.operations >= at);
            (effect(core, self.member), loses_power)
        };
        if loses_power {
            self.shared.take_down(self.member, DownReason::Crash);
            return None;
        }
        Some(result)
    }

    async fn pass(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let at = self.shared.lock().now + time;
        Sleep::new(self.shared.clone(), self.member, self.boot, at).await;
    }

    fn open_now(&self, core: &mut Core, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let volume = &mut core.members[self.member].volume;
        let inode = match mode {
            OpenMode::Read | OpenMode::ReadWrite => volume.find(path)?,
            OpenMode::CreateNew => volume.create(path)?,
        };
        volume.add_handle(inode);
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), inode, writable }))
    }

    fn lock_now(&self, core: &mut Core, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let volume = &mut core.members[self.member].volume;
        let inode = volume.find(path).or_else(|_| volume.create(path))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        if !volume.lock(&folder) {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("the folder {} is already locked", folder.display()),
            ));
        }
        volume.add_handle(inode);
        Ok(Box::new(LockGuard { disk: self.clone(), folder, path: path.to_owned(), inode }))
    }

    /// Runs `effect` on the volume. Does nothing if the member has gone down, even if the member has started again.
    fn with_volume(&self, effect: impl FnOnce(&mut Volume)) {
        let mut core = self.shared.lock();
        if core.is_current(self.member, self.boot) {
            effect(&mut core.members[self.member].volume);
        }
    }
}

fn volume(core: &mut Core, member: MemberIndex) -> &mut Volume {
    &mut core.members[member].volume
}

fn io_error(operation: &str) -> io::Error {
    io::Error::other(format!("simulated input/output error: {operation}"))
}

impl Disk for SimulatedDisk {
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let operation = Operation::on("create_dir_all", path);
        Box::pin(self.operate(operation, |core, member| volume(core, member).make_folders(path)))
    }

    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        Box::pin(self.operate(Operation::on("open", path), move |core, _| self.open_now(core, path, mode)))
    }

    fn open_unnamed<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        Box::pin(self.operate(Operation::on("open_unnamed", dir), move |core, _| {
            let path = dir.join(".unnamed");
            let file = self.open_now(core, &path, OpenMode::CreateNew)?;
            core.members[self.member].volume.remove(&path)?;
            Ok(file)
        }))
    }

    /// Does nothing, because a simulated disk has only one user.
    fn restrict<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, io::Result<bool>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>> {
        Box::pin(self.operate(Operation::on("list", dir), |core, member| volume(core, member).list(dir)))
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let operation =
            Operation { digest: digest(to.as_os_str().as_encoded_bytes()), ..Operation::on("rename", from) };
        Box::pin(self.operate(operation, |core, member| volume(core, member).rename(from, to)))
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(self.operate(Operation::on("remove", path), |core, member| volume(core, member).remove(path)))
    }

    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(self.operate(Operation::on("sync_dir", dir), |core, member| volume(core, member).sync_folder(dir)))
    }

    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        let operation = Operation::on("free_bytes", path);
        Box::pin(self.operate(operation, |core, member| Ok(volume(core, member).free_bytes())))
    }

    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn DiskLock>>> {
        Box::pin(self.operate(Operation::on("lock", path), |core, _| self.lock_now(core, path)))
    }
}

struct LockGuard {
    disk: SimulatedDisk,
    folder: PathBuf,
    path: PathBuf,
    inode: InodeId,
}

impl DiskLock for LockGuard {
    /// Takes no simulated time and leaves no trace, because the call changes nothing.
    fn verify(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let is_ours = {
                let core = self.disk.shared.lock();
                let is_current = core.is_current(self.disk.member, self.disk.boot);
                is_current.then(|| core.members[self.disk.member].volume.find(&self.path).ok() == Some(self.inode))
            };
            match is_ours {
                Some(true) => Ok(()),
                Some(false) => Err(io::Error::other(format!("{} was removed or replaced", self.path.display()))),
                None => std::future::pending().await,
            }
        })
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.disk.with_volume(|volume| {
            volume.unlock(&self.folder);
            volume.remove_handle(self.inode);
        });
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    path: PathBuf,
    inode: InodeId,
    writable: bool,
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.disk.with_volume(|volume| volume.remove_handle(self.inode));
    }
}

impl SimulatedFile {
    fn operation(&self, name: &'static str, offset: u64, len: u64) -> Operation<'_> {
        Operation { offset, len, ..Operation::on(name, &self.path) }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
    }

    fn write_now(&self, core: &mut Core, member: MemberIndex, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        let probability = core.faults.write_fail;
        if core.random.chance(probability) {
            core.incident(member, Incident::FailedWrite, &self.path.to_string_lossy());
            volume(core, member).write_some(self.inode, offset, bytes)?;
            return Err(io_error("write"));
        }
        volume(core, member).write(self.inode, offset, bytes)
    }

    fn allocate_now(&self, core: &mut Core, member: MemberIndex, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let probability = core.faults.write_fail;
        if core.random.chance(probability) {
            core.incident(member, Incident::FailedWrite, &self.path.to_string_lossy());
            return Err(io_error("allocate"));
        }
        volume(core, member).allocate(self.inode, len)
    }

    fn read_now(&self, core: &mut Core, member: MemberIndex, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let probability = core.faults.read_fail;
        if core.random.chance(probability) {
            core.incident(member, Incident::FailedRead, &self.path.to_string_lossy());
            return Err(io_error("read"));
        }
        volume(core, member).read(self.inode, offset, into)
    }

    async fn sync(&self) -> io::Result<()> {
        let started = self.disk.begin(self.operation("sync_data", 0, 0), |core, member| {
            let slow = core.faults.sync_slow;
            let slow = core.random.chance(slow);
            if slow {
                core.incident(member, Incident::SlowSync, &self.path.to_string_lossy());
            }
            let time = if slow { core.faults.sync_slow_time.clone() } else { core.faults.sync_time.clone() };
            (volume(core, member).last_write(self.inode), core.random.duration(&time))
        });
        let Some((covered, time)) = started else { return std::future::pending().await };
        self.disk.pass(time).await;
        let ended = self.disk.begin(self.operation("synced", 0, 0), |core, member| {
            let probability = core.faults.sync_fail;
            if !core.random.chance(probability) {
                volume(core, member).sync(self.inode, covered);
                return Ok(());
            }
            core.incident(member, Incident::FailedSync, &self.path.to_string_lossy());
            for (incident, detail) in volume(core, member).fail_sync(self.inode, covered) {
                core.incident(member, incident, &detail);
            }
            Err(io_error("sync"))
        });
        match ended {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> BoxFuture<'_, io::Result<u64>> {
        let operation = self.operation("len", 0, 0);
        Box::pin(self.disk.operate(operation, |core, member| Ok(volume(core, member).len(self.inode))))
    }

    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>> {
        let operation = self.operation("read_at", offset, into.len() as u64);
        Box::pin(self.disk.operate(operation, move |core, member| self.read_now(core, member, offset, into)))
    }

    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        let operation = Operation { digest: digest(bytes), ..self.operation("write_at", offset, bytes.len() as u64) };
        Box::pin(self.disk.operate(operation, move |core, member| self.write_now(core, member, offset, bytes)))
    }

    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>> {
        let operation = self.operation("allocate", 0, len);
        Box::pin(self.disk.operate(operation, move |core, member| self.allocate_now(core, member, len)))
    }

    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(self.sync())
    }
}

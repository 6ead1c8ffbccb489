//! Runtime of the real machine.
//!
//! docs/decisions/0150-wake-tokios-workers-regularly.md gives the reasons for the design.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use instants::Timestamp;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::time::{ClockId, clock_gettime};

use crate::permissions::{self, DIRECTORY_MODE, FILE_MODE};
use crate::{Disk, DiskFile, DiskLock, Monotonic, OpenMode, Place, TaskEnd, TaskHandle, World};

/// Interval between two wakeups of a worker by [`wake_workers`]. A blocking task therefore delays the timers and
/// sockets of other tasks by at most this interval.
const WAKE_PERIOD: Duration = Duration::from_millis(100);

pub(crate) struct RealWorld {
    tokio: tokio::runtime::Handle,
    disk: Arc<RealDisk>,
    /// Guard of the thread that wakes the workers. The thread ends when the guard is dropped.
    _waker: mpsc::Sender<()>,
}

impl RealWorld {
    pub(crate) fn new() -> Self {
        let tokio = tokio::runtime::Handle::current();
        RealWorld { _waker: wake_workers(&tokio), tokio, disk: Arc::new(RealDisk) }
    }
}

/// Starts a thread that wakes a worker regularly, so that a blocking task cannot stop timers and sockets.
///
/// An idle tokio worker polls timers and sockets. If an event wakes this worker and its next task blocks, tokio does
/// not wake another worker (tokio 1.54, `transition_from_parked`). All timers and sockets, and therefore the heartbeats
/// of sessions, would then wait for the blocking task, even if other workers are idle. The spawn of a task from a
/// thread outside the tokio runtime wakes another worker.
fn wake_workers(tokio: &tokio::runtime::Handle) -> mpsc::Sender<()> {
    let (waker, dropped) = mpsc::channel();
    // A runtime with a single worker has no other worker to wake.
    if tokio.metrics().num_workers() > 1 {
        let tokio = tokio.clone();
        let wake = move || {
            while dropped.recv_timeout(WAKE_PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                drop(tokio.spawn(async {}));
            }
        };
        std::thread::Builder::new()
            .name("waker".to_owned())
            .spawn(wake)
            .expect("the operating system can start a thread");
    }
    waker
}

fn boot_clock() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl World for RealWorld {
    #[expect(clippy::disallowed_methods, reason = "only the runtime reads clocks")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_start(boot_clock())
    }

    #[expect(clippy::disallowed_methods, reason = "only the runtime uses timers")]
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // Tokio's timer has a resolution of one millisecond and pauses while the machine is suspended. The loop
            // therefore checks the clock after each sleep.
            loop {
                let left = at.since_start().saturating_sub(boot_clock());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(Duration::from_secs(60))).await;
            }
        })
    }

    fn random(&self) -> u64 {
        RANDOM.with_borrow_mut(Buffered::next)
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        match place {
            Place::Shared => spawn_shared(&self.tokio, name, future),
            Place::Thread => spawn_thread(&self.tokio, name, future, || {}),
            Place::Background => spawn_thread(&self.tokio, name, future, lower_priority),
        }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    fn halt(&self, reason: &str) {
        tracing::error!(reason, "stopping the process, because further work could break a guarantee");
        // No destructor may run, because it could flush data or send a response although the state of the process is
        // unknown.
        std::process::abort();
    }
}

fn spawn_shared(tokio: &tokio::runtime::Handle, name: &'static str, future: BoxFuture<'static, ()>) -> TaskHandle {
    let task = tokio.spawn(future);
    let abort = task.abort_handle();
    let end = async move {
        match task.await {
            Ok(()) => TaskEnd::Finished,
            Err(error) if error.is_panic() => {
                tracing::error!(task = name, "task panicked");
                TaskEnd::Panicked
            }
            Err(_) => TaskEnd::Aborted,
        }
    };
    TaskHandle { end: Box::pin(end), abort: Box::new(move || abort.abort()) }
}

/// Difference between the niceness of a thread with a low priority and the niceness of the process. If another thread of
/// the process needs the same processor, Linux gives the thread with the low priority a tenth of the processor's time.
const NICENESS: i32 = 10;

/// Lowers the priority of the calling thread. On Linux, other threads of the process keep their priority.
pub fn lower_priority() {
    // On Linux, this function changes only the calling thread.
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::warn!(%error, "cannot lower the priority of a thread");
    }
}

fn spawn_thread(
    tokio: &tokio::runtime::Handle,
    name: &'static str,
    future: BoxFuture<'static, ()>,
    prepare: fn(),
) -> TaskHandle {
    let (ended, end) = tokio::sync::oneshot::channel();
    let tokio = tokio.clone();
    let body = move || {
        prepare();
        let future = std::panic::AssertUnwindSafe(future).catch_unwind();
        let outcome = match tokio.block_on(future) {
            Ok(()) => TaskEnd::Finished,
            Err(_) => {
                tracing::error!(task = name, "task panicked");
                TaskEnd::Panicked
            }
        };
        let _no_receiver = ended.send(outcome);
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("the operating system can start a thread");
    TaskHandle { end: Box::pin(end.map(|end| end.unwrap_or(TaskEnd::Aborted))), abort: Box::new(|| {}) }
}

/// Buffer of random numbers from the kernel. One system call fills the buffer with many numbers.
struct Buffered {
    numbers: [u64; 64],
    left: usize,
}

impl Buffered {
    fn next(&mut self) -> u64 {
        if self.left == 0 {
            let mut bytes = [0; 512];
            getrandom::fill(&mut bytes).expect("the kernel's random source always works after Linux has booted");
            for (number, bytes) in self.numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *number = u64::from_ne_bytes(*bytes);
            }
            self.left = self.numbers.len();
        }
        self.left -= 1;
        // `take` removes the number from the buffer, so that no caller gets the same number again.
        std::mem::take(&mut self.numbers[self.left])
    }
}

thread_local! {
    static RANDOM: RefCell<Buffered> = const { RefCell::new(Buffered { numbers: [0; 64], left: 0 }) };
}

struct RealDisk;

/// Interval between two tries of a disk call for which no file descriptor is free.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(50);

/// Repeats a disk call while no file descriptor is free. The lack is temporary, because connections use descriptors and
/// free them again. If the disk call failed, the store would have to stop the process.
///
/// docs/decisions/0194-replace-idle-connections-without-a-key.md gives the reasons for the design.
#[expect(clippy::disallowed_methods, reason = "a disk call may block its thread, so the thread may sleep")]
fn with_descriptor<T>(call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let lacks_descriptor = |error: &io::Error| {
        let errno = rustix::io::Errno::from_io_error(error);
        matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
    };
    let mut is_logged = false;
    loop {
        match call() {
            Err(error) if lacks_descriptor(&error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(%error, "a disk call waits for a file descriptor; raise the hard limit of open files");
                }
                std::thread::sleep(DESCRIPTOR_WAIT);
            }
            result => return result,
        }
    }
}

fn done<'a, T: Send + 'a>(result: io::Result<T>) -> BoxFuture<'a, io::Result<T>> {
    Box::pin(ready(result))
}

impl Disk for RealDisk {
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        done(DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path))
    }

    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read).create_new(mode == OpenMode::CreateNew).mode(FILE_MODE);
        let file = with_descriptor(|| options.open(path));
        done(file.map(|file| Arc::new(RealFile(file)) as Arc<dyn DiskFile>))
    }

    fn open_unnamed<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        done(with_descriptor(|| open_unnamed(dir)).map(|file| Arc::new(RealFile(file)) as Arc<dyn DiskFile>))
    }

    fn restrict<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<bool>> {
        done(permissions::restrict(path))
    }

    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>> {
        done(with_descriptor(|| list_files(dir)))
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        done(fs::rename(from, to))
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        done(fs::remove_file(path))
    }

    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        done(with_descriptor(|| File::open(dir)).and_then(|dir| dir.sync_all()))
    }

    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        let volume = rustix::fs::statvfs(path).map_err(io::Error::from);
        done(volume.map(|volume| volume.f_bavail.saturating_mul(volume.f_frsize)))
    }

    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn DiskLock>>> {
        done(with_descriptor(|| RealLock::new(path)).map(|lock| Box::new(lock) as Box<dyn DiskLock>))
    }
}

/// Creates a file and removes its name at once. The function does not use `O_TMPFILE`, because not every file system
/// supports this flag.
fn open_unnamed(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!(".unnamed-{:016x}", RANDOM.with_borrow_mut(Buffered::next)));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn list_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Lock of a directory and of a file in it. The lock of the directory excludes other processes even if an operator
/// removes the file. The lock of the file excludes processes of earlier builds, which lock only the file.
struct RealLock {
    directory: Locked,
    file: Locked,
}

impl RealLock {
    fn new(path: &Path) -> io::Result<Self> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = Locked::new(directory, File::open(directory)?)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(path)?;
        Ok(RealLock { directory, file: Locked::new(path, file)? })
    }
}

impl DiskLock for RealLock {
    fn verify(&self) -> BoxFuture<'_, io::Result<()>> {
        done(self.directory.verify().and_then(|()| self.file.verify()))
    }
}

/// Locked file or directory. The open handle keeps the lock and the inode, so no other file can get the same inode.
struct Locked {
    path: PathBuf,
    inode: (u64, u64),
    _handle: File,
}

impl Locked {
    fn new(path: &Path, handle: File) -> io::Result<Self> {
        rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Locked { path: path.to_owned(), inode: inode(&handle.metadata()?), _handle: handle })
    }

    fn verify(&self) -> io::Result<()> {
        let path = self.path.display();
        match fs::metadata(&self.path) {
            Ok(metadata) if inode(&metadata) == self.inode => Ok(()),
            Ok(_) => Err(io::Error::other(format!("{path} was replaced"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::other(format!("{path} was removed or moved")))
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot read the metadata of {path}: {error}"))),
        }
    }
}

/// Returns the device and the number of an inode.
fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> BoxFuture<'_, io::Result<u64>> {
        done(self.0.metadata().map(|metadata| metadata.len()))
    }

    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>> {
        done(self.0.read_exact_at(into, offset))
    }

    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        done(self.0.write_all_at(bytes, offset))
    }

    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>> {
        done(allocate(&self.0, len))
    }

    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>> {
        done(self.0.sync_data())
    }
}

/// Sets the length of the file to `len` bytes, and writes zeros into the new part. If the function only reserved disk
/// space for the new part, the first write into this part would make the next `fdatasync` also commit the file system's
/// journal. Preallocation must avoid this commit.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    const CHUNK: usize = 1 << 20;
    let present = file.metadata()?.len();
    if len <= present {
        return file.set_len(len);
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), present, len - present) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = vec![0; CHUNK];
    let mut at = present;
    while at < len {
        let chunk = usize::try_from(len - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.write_all_at(&zeros[..chunk], at)?;
        // The function syncs after each chunk, because one large sync at the end would delay the syncs of other files.
        file.sync_data()?;
        at += chunk as u64;
    }
    file.sync_all()
}

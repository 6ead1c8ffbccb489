//! Tests of the runtime on the real machine.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use reveille_runtime::{OpenMode, Runtime, TaskEnd, TaskSet};
use rustix::process::{Resource, getrlimit};

fn on_tokio<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

#[test]
fn sleep_never_returns_early() {
    on_tokio(async |runtime| {
        for millis in [0, 1, 3, 7] {
            let until = runtime.monotonic() + Duration::from_millis(millis);
            runtime.sleep_until(until).await;
            assert!(runtime.monotonic() >= until);
        }
    });
}

#[test]
fn open_when_reachable_repeats_only_retryable_errors() {
    on_tokio(async |runtime| {
        let mut responses = vec![Err("rejected"), Ok(7), Err("silent"), Err("silent")];
        let mut open = async || responses.pop().unwrap();
        let is_retryable = |error: &&str| *error == "silent";
        assert_eq!(runtime.open_when_reachable(&mut open, is_retryable).await, Ok(7));
        assert_eq!(runtime.open_when_reachable(&mut open, is_retryable).await, Err("rejected"));
    });
}

#[test]
fn timeout_drops_pending_future_but_returns_ready_output() {
    on_tokio(async |runtime| {
        assert_eq!(runtime.timeout(Duration::from_millis(5), std::future::pending::<()>()).await, None);
        let long = Duration::from_secs(3_600);
        assert_eq!(runtime.timeout(long, std::future::ready(7)).await, Some(7));
    });
}

#[test]
fn disk_call_waits_until_a_file_descriptor_is_free() {
    // The test runs in a separate process that may open at most this number of files, because the test uses up all file
    // descriptors of its process.
    const OPEN_FILES_MAX: u64 = 61;
    if getrlimit(Resource::Nofile).current != Some(OPEN_FILES_MAX) {
        let limited = format!(
            "ulimit -Sn {OPEN_FILES_MAX} && exec \"$0\" --exact disk_call_waits_until_a_file_descriptor_is_free"
        );
        let mut child = Command::new("bash");
        let output = child.args(["-c", &limited]).arg(std::env::current_exe().unwrap()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    on_tokio(async |runtime| {
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let later = runtime.monotonic() + Duration::from_millis(200);
        let sleeper = runtime.clone();
        drop(runtime.spawn("release", async move {
            sleeper.sleep_until(later).await;
            drop(files);
        }));
        runtime.disk().open(&folder.path().join("file"), OpenMode::CreateNew).await.unwrap();
        assert!(runtime.monotonic() >= later);
    });
}

#[test]
fn task_set_reports_panic_and_continues_other_tasks() {
    on_tokio(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        tasks.spawn("panics", async { panic!("deliberate") });
        tasks.spawn_thread("panics on a thread", async { panic!("deliberate") });
        tasks.spawn("finishes", async {});
        tasks.spawn_thread("finishes on a thread", async {});
        let ends: Vec<TaskEnd> = tasks.join().await.into_iter().map(|(_, end)| end).collect();
        assert_eq!(ends, [TaskEnd::Panicked, TaskEnd::Panicked, TaskEnd::Finished, TaskEnd::Finished]);
    });
}

#[test]
fn dropped_task_set_ends_its_tasks() {
    struct DropSignal(Option<tokio::sync::oneshot::Sender<()>>, Arc<AtomicBool>);
    impl Drop for DropSignal {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
            let _received = self.0.take().unwrap().send(());
        }
    }
    on_tokio(async |runtime| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let dropped = Arc::new(AtomicBool::new(false));
        let guard = DropSignal(Some(sender), dropped.clone());
        let tasks = TaskSet::new(&runtime);
        tasks.spawn("waits forever", async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        drop(tasks);
        receiver.await.unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    });
}

/// Heartbeats must continue while a user's code blocks a worker thread.
#[test]
fn blocking_task_does_not_stop_timers() {
    on_tokio(async |runtime| {
        for _ in 0..3 {
            let (tasks, ticks, blocked) = (TaskSet::new(&runtime), Arc::<AtomicU32>::default(), Duration::from_secs(1));
            let (counting, ticking) = (ticks.clone(), runtime.clone());
            tasks.spawn("ticks", async move {
                loop {
                    ticking.sleep(Duration::from_millis(10)).await;
                    counting.fetch_add(1, Ordering::Relaxed);
                }
            });
            let world = runtime.clone();
            let blocking = runtime.detached("blocks", async move {
                // After the sleep, the worker thread that polls the timers runs this task next. The task therefore
                // blocks this thread.
                world.sleep(Duration::from_millis(15)).await;
                let before = ticks.load(Ordering::Relaxed);
                #[expect(clippy::disallowed_methods, reason = "the test blocks a worker on purpose")]
                std::thread::sleep(blocked);
                ticks.load(Ordering::Relaxed) - before
            });
            let ticked = blocking.await.unwrap();
            assert!(ticked > 5, "{ticked} ticks in {blocked:?}");
        }
    });
}

#[test]
fn disk_keeps_written_bytes_and_file_names() {
    on_tokio(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let disk = runtime.disk();
        let inner = folder.path().join("a/b");
        disk.create_dir_all(&inner).await.unwrap();
        let path = inner.join("log");
        let file = disk.open(&path, OpenMode::CreateNew).await.unwrap();
        file.allocate(8_192).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 8_192);
        file.write_at(100, b"kept").await.unwrap();
        file.sync_data().await.unwrap();
        let again = disk.open(&path, OpenMode::CreateNew).await;
        assert_eq!(again.err().unwrap().kind(), ErrorKind::AlreadyExists);

        let moved = inner.join("moved");
        disk.rename(&path, &moved).await.unwrap();
        disk.sync_dir(&inner).await.unwrap();
        assert_eq!(disk.list(&inner).await.unwrap(), ["moved"]);
        let file = disk.open(&moved, OpenMode::Read).await.unwrap();
        let mut bytes = [9; 6];
        file.read_at(99, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"\0kept\0");
        assert_eq!(file.read_at(8_190, &mut bytes).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(disk.free_bytes(&inner).await.unwrap() > 0);

        let lock = inner.join("LOCK");
        let held = disk.lock(&lock).await.unwrap();
        assert_eq!(disk.lock(&lock).await.err().unwrap().kind(), ErrorKind::WouldBlock);
        drop(held);
        drop(disk.lock(&lock).await.unwrap());
        disk.remove(&moved).await.unwrap();
        assert_eq!(disk.open(&moved, OpenMode::ReadWrite).await.err().unwrap().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn disk_lock_excludes_others_after_the_removal_of_its_file() {
    on_tokio(async |runtime| {
        let (folder, disk) = (tempfile::tempdir().unwrap(), runtime.disk());
        let path = folder.path().join("lock");
        let lock = disk.lock(&path).await.unwrap();
        lock.verify().await.unwrap();

        std::fs::remove_file(&path).unwrap();
        assert_eq!(disk.lock(&path).await.err().unwrap().kind(), ErrorKind::WouldBlock);
        assert!(!path.exists(), "a rejected lock creates no file");
        assert!(lock.verify().await.unwrap_err().to_string().ends_with("was removed or moved"));
        std::fs::write(&path, "").unwrap();
        assert_eq!(disk.lock(&path).await.err().unwrap().kind(), ErrorKind::WouldBlock);
        assert!(lock.verify().await.unwrap_err().to_string().ends_with("was replaced"));
        drop(lock);
        disk.lock(&path).await.unwrap().verify().await.unwrap();
    });
}

#[test]
fn disk_lock_follows_a_moved_folder_and_detects_the_move() {
    on_tokio(async |runtime| {
        let (folder, disk) = (tempfile::tempdir().unwrap(), runtime.disk());
        let [outer, moved] = ["outer", "moved"].map(|name| folder.path().join(name));
        disk.create_dir_all(&outer.join("inner")).await.unwrap();
        let path = outer.join("inner/lock");
        let lock = disk.lock(&path).await.unwrap();
        std::fs::rename(&outer, &moved).unwrap();
        assert!(lock.verify().await.is_err());
        assert_eq!(disk.lock(&moved.join("inner/lock")).await.err().unwrap().kind(), ErrorKind::WouldBlock);

        disk.create_dir_all(&outer.join("inner")).await.unwrap();
        disk.lock(&path).await.expect("the new folder has a lock of its own");
        assert!(lock.verify().await.unwrap_err().to_string().ends_with("inner was replaced"));
    });
}

#[test]
fn disk_lock_is_rejected_if_an_earlier_build_locked_the_file() {
    on_tokio(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let earlier = File::create(&path).unwrap();
        earlier.try_lock().unwrap();
        let rejected = runtime.disk().lock(&path).await.err().unwrap();
        assert_eq!(rejected.kind(), ErrorKind::WouldBlock);
        drop(earlier);
        runtime.disk().lock(&path).await.expect("a rejected lock locks nothing");
    });
}

#[test]
fn unnamed_file_keeps_its_bytes_but_has_no_entry_in_its_folder() {
    on_tokio(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let disk = runtime.disk();
        let file = disk.open_unnamed(folder.path()).await.unwrap();
        assert_eq!(disk.list(folder.path()).await.unwrap(), [""; 0]);
        file.write_at(3, b"kept").await.unwrap();
        let mut bytes = [0; 4];
        file.read_at(3, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"kept");
        let error = disk.open_unnamed(&folder.path().join("none")).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn new_files_and_folders_give_other_users_no_access() {
    // No other test of this file depends on the umask.
    rustix::process::umask(rustix::fs::Mode::empty());
    on_tokio(async |runtime| {
        let (folder, disk) = (tempfile::tempdir().unwrap(), runtime.disk());
        let [outer, inner] = ["outer", "outer/inner"].map(|name| folder.path().join(name));
        let [file, lock] = ["file", "lock"].map(|name| inner.join(name));
        disk.create_dir_all(&inner).await.unwrap();
        disk.open(&file, OpenMode::CreateNew).await.unwrap();
        drop(disk.lock(&lock).await.unwrap());
        let _unnamed = disk.open_unnamed(&inner).await.unwrap();
        assert_eq!([&outer, &inner, &file, &lock].map(|path| mode(path)), [0o700, 0o700, 0o600, 0o600]);
        // Linux shows a file without a name as a link in /proc/self/fd. Its metadata are the metadata of the file.
        let handles = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let unnamed = |handle: &PathBuf| {
            std::fs::read_link(handle)
                .is_ok_and(|file| file.starts_with(&inner) && file.to_string_lossy().contains("unnamed"))
        };
        assert_eq!(handles.filter(unnamed).map(|handle| mode(&handle)).collect::<Vec<_>>(), [0o600]);
    });
}

#[test]
fn restriction_removes_the_access_of_other_users() {
    on_tokio(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let [file, private, missing] = ["file", "private", "missing"].map(|name| data.join(name));
        std::fs::create_dir(&data).unwrap();
        for (path, mode) in [(&file, 0o775), (&private, 0o400)] {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        std::fs::set_permissions(&data, Permissions::from_mode(0o2775)).unwrap();
        runtime.restrict(&data, [missing.clone()]).await.unwrap();
        assert_eq!([&data, &file, &private].map(|path| mode(path)), [0o700, 0o775, 0o400]);
        runtime.restrict_all(&data).await.unwrap();
        assert_eq!([&data, &file, &private].map(|path| mode(path)), [0o700, 0o600, 0o400]);
        assert!(!runtime.disk().restrict(&file).await.unwrap() && !runtime.disk().restrict(&missing).await.unwrap());
    });
}

#[test]
fn random_numbers_do_not_repeat() {
    on_tokio(async |runtime| {
        let numbers: std::collections::BTreeSet<u64> = (0..1_000).map(|_| runtime.random()).collect();
        assert_eq!(numbers.len(), 1_000);
    });
}

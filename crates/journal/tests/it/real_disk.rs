use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use journal::{AppendError, Journal, OpenError, Opened, Options, ReadError};
use runtime::{Runtime, TaskSet};

use crate::support::{History, end, read_all, small};

#[tokio::test]
async fn reopened_journal_contains_all_entries() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    for _ in 0..4 {
        let tasks = TaskSet::new(&runtime);
        let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
        for sizes in [vec![8, 100, 5000], vec![12_000], vec![9; 60]] {
            for response in history.append(&journal, sizes).await {
                response.await.unwrap();
            }
        }
        end(&journal, tasks).await;
    }
    assert_eq!(history.state().durable, 4 * 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_share_disk_syncs() {
    const WRITERS: u64 = 64;
    const EACH: u64 = 40;
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
    let tasks = TaskSet::new(&runtime);
    let opened = Journal::open(&runtime, &tasks, dir.path(), Options { segment_bytes: 16 << 20, ..Options::default() });
    let Opened { journal, mut commits, .. } = opened.await.unwrap();
    tasks.spawn("consumer", async move {
        while let Some(commit) = commits.recv().await {
            for (index, (_, ticket)) in (commit.first_index..).zip(commit.entries) {
                let ticket: tokio::sync::oneshot::Sender<u64> = ticket;
                ticket.send(index).unwrap();
            }
        }
    });
    let writers = (0..WRITERS).map(|writer| {
        let journal = journal.clone();
        let write = async move {
            let mut last = 0;
            for _ in 0..EACH {
                let (ticket, response) = tokio::sync::oneshot::channel();
                journal.append(Bytes::from(vec![u8::try_from(writer).unwrap(); 1000]), ticket).await.unwrap();
                let index = response.await.unwrap();
                assert!(index > last, "entries of one writer stay in order");
                last = index;
            }
        };
        runtime.spawn("client", write).end
    });
    join_all(writers).await;
    let stats = journal.stats();
    assert_eq!(stats.next, WRITERS * EACH + 1);
    assert!(stats.records < WRITERS * EACH / 4, "{} records for {} entries", stats.records, WRITERS * EACH);
    journal.close().await;
    tasks.join().await;
}

#[tokio::test]
async fn opening_an_open_journal_returns_an_error_with_the_next_step() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let rejected = Journal::<()>::open(&runtime, &tasks, dir.path(), small()).await.err().unwrap();
    assert!(matches!(rejected, OpenError::Locked { .. }), "{rejected}");
    assert!(rejected.to_string().contains("stop that process, or choose another data folder"), "{rejected}");
    end(&journal, tasks).await;

    // A handle of a closed journal does not lock the folder.
    let tasks = TaskSet::new(&runtime);
    let again = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    end(&again, tasks).await;
    drop(journal);
}

#[tokio::test]
async fn journal_writes_queued_entries_after_its_last_handle_is_dropped() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let responses = history.append(&journal, [100; 10]).await;
    drop(journal);
    tasks.join().await;
    assert_eq!(history.state().durable, 10);
    drop(responses);
}

#[tokio::test]
async fn closed_journal_rejects_entries() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    end(&journal, tasks).await;
    let (ticket, _response) = tokio::sync::oneshot::channel();
    assert_eq!(journal.append(Bytes::from_static(b"late"), ticket).await, Err(AppendError::Closed));
}

#[tokio::test]
async fn journal_rejects_only_entries_above_the_size_limit() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    // An empty queue accepts an entry that is larger than the limit of the queue.
    let options = Options { queue_bytes_max: 1000, ..small() };
    let journal = history.open(&runtime, &tasks, dir.path(), options).await.unwrap();
    let (ticket, _response) = tokio::sync::oneshot::channel();
    let rejected = journal.append(Bytes::from(vec![0; 12_001]), ticket).await;
    assert_eq!(rejected, Err(AppendError::TooLarge { bytes: 12_001, bytes_max: 12_000 }));
    for response in history.append(&journal, [12_000, 12_000]).await {
        response.await.unwrap();
    }
    end(&journal, tasks).await;
}

#[tokio::test]
async fn journal_reuses_released_segments() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    for _ in 0..40 {
        for response in history.append(&journal, [5000, 5000, 5000]).await {
            let index = response.await.unwrap();
            history.release(&journal, index.saturating_sub(2));
        }
    }
    let stats = journal.stats();
    assert!(stats.first > 100, "{stats:?}");
    end(&journal, tasks).await;
    // If the journal reused no segment, the folder would contain 40 or more files.
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert!(files <= 8, "{files} files");

    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    assert_eq!(journal.stats().next, 121);
    let released = journal.reader(1).next().await.unwrap_err();
    assert!(matches!(released, ReadError::Released { index: 1, .. }), "{released}");
    end(&journal, tasks).await;
}

#[tokio::test]
async fn journal_retains_entries_that_a_reader_has_not_read() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let mut reader = journal.reader(1);
    assert_eq!(reader.next().await.unwrap(), None);
    for _ in 0..20 {
        for response in history.append(&journal, [5000, 5000]).await {
            let index = response.await.unwrap();
            history.release(&journal, index);
        }
    }
    assert_eq!(journal.stats().first, 1);
    for index in 1..=40 {
        assert_eq!(reader.next().await.unwrap().unwrap().0, index);
    }
    assert_eq!(reader.next().await.unwrap(), None);
    drop(reader);
    // The drop of the reader has woken the task that recycles released segments. The test waits until this task has
    // removed segments.
    while journal.stats().first < 30 {
        runtime.sleep(Duration::from_millis(1)).await;
    }
    end(&journal, tasks).await;
}

#[tokio::test]
async fn journal_with_changed_size_limits_retains_its_entries() {
    let (dir, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let large = Options { segment_bytes: 32 * 4096, entry_bytes_max: 100_000, ..small() };
    let large_of = |entry: usize| [entry, 8, entry];
    for (options, sizes) in [(small(), [8, 8, 8]), (large, large_of(100_000)), (small(), [9000, 12_000, 8])] {
        let tasks = TaskSet::new(&runtime);
        let journal = history.open(&runtime, &tasks, dir.path(), options).await.unwrap();
        for response in history.append(&journal, sizes).await {
            response.await.unwrap();
        }
        end(&journal, tasks).await;
    }
    let tasks = TaskSet::new(&runtime);
    let journal = history.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    assert_eq!(read_all(&journal, 1).await.len(), 9);
    end(&journal, tasks).await;
}

#[tokio::test]
async fn opening_a_journal_with_invalid_options_fails() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
    let tasks = TaskSet::new(&runtime);
    for options in [
        Options { segment_bytes: 5000, ..small() },
        Options { entry_bytes_max: 8 * 4096, ..small() },
        Options { batch_bytes_max: 8 * 4096, ..small() },
        Options { commits_max: 0, ..small() },
    ] {
        let rejected = Journal::<()>::open(&runtime, &tasks, dir.path(), options).await.err().unwrap();
        assert!(matches!(rejected, OpenError::Options(_)), "{rejected}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn journal_gives_other_users_no_access() {
    let (folder, runtime, history) = (tempfile::tempdir().unwrap(), Runtime::real(), History::default());
    let dir = folder.path().join("journal");
    for _ in 0..2 {
        let tasks = TaskSet::new(&runtime);
        let journal = history.open(&runtime, &tasks, &dir, small()).await.unwrap();
        for response in history.append(&journal, [5000; 20]).await {
            response.await.unwrap();
        }
        let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        for path in files.chain([dir.clone()]) {
            let mode = match std::fs::metadata(&path) {
                Ok(metadata) => metadata.permissions().mode(),
                // The journal has given a prepared segment its name, or has deleted a segment.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            assert_eq!(mode & 0o777, if path == dir { 0o700 } else { 0o600 }, "{}", path.display());
        }
        end(&journal, tasks).await;
        // The next start finds a folder to which an earlier build or an operator gave everybody access.
        for name in ["", "lock", "segment-00000000000000000001.journal"] {
            std::fs::set_permissions(dir.join(name), Permissions::from_mode(0o777)).unwrap();
        }
    }
}

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use journal::{AppendError, Journal, OpenError, Opened, Options, ReadError};
use runtime::{Runtime, TaskSet};

use crate::support::{Record, end, read_all, small};

#[tokio::test]
async fn entries_are_there_after_a_close_and_an_open() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    for _ in 0..4 {
        let tasks = TaskSet::new(&runtime);
        let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
        for sizes in [vec![8, 100, 5000], vec![12_000], vec![9; 60]] {
            for answer in record.append(&journal, sizes).await {
                answer.await.unwrap();
            }
        }
        end(&journal, tasks).await;
    }
    assert_eq!(record.state().durable, 4 * 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_a_sync() {
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
                let (ticket, answer) = tokio::sync::oneshot::channel();
                journal.append(Bytes::from(vec![u8::try_from(writer).unwrap(); 1000]), ticket).await.unwrap();
                let index = answer.await.unwrap();
                assert!(index > last, "one writer's entries keep their order");
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
async fn a_second_open_is_refused_and_says_what_to_do() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let refused = Journal::<()>::open(&runtime, &tasks, dir.path(), small()).await.err().unwrap();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains("stop it, or choose another data folder"), "{refused}");
    end(&journal, tasks).await;

    // A handle that lives on does not hold the folder.
    let tasks = TaskSet::new(&runtime);
    let again = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    end(&again, tasks).await;
    drop(journal);
}

#[tokio::test]
async fn dropping_the_last_handle_writes_what_is_queued_and_ends() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let answers = record.append(&journal, [100; 10]).await;
    drop(journal);
    tasks.join().await;
    assert_eq!(record.state().durable, 10);
    drop(answers);
}

#[tokio::test]
async fn a_closed_journal_refuses_entries() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    end(&journal, tasks).await;
    let (ticket, _answer) = tokio::sync::oneshot::channel();
    assert_eq!(journal.append(Bytes::from_static(b"late"), ticket).await, Err(AppendError::Closed));
}

#[tokio::test]
async fn an_entry_above_the_limit_is_refused_and_one_at_the_limit_is_kept() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    // An entry larger than the whole queue may still wait in it, alone.
    let options = Options { queue_bytes_max: 1000, ..small() };
    let journal = record.open(&runtime, &tasks, dir.path(), options).await.unwrap();
    let (ticket, _answer) = tokio::sync::oneshot::channel();
    let refused = journal.append(Bytes::from(vec![0; 12_001]), ticket).await;
    assert_eq!(refused, Err(AppendError::TooLarge { bytes: 12_001, bytes_max: 12_000 }));
    for answer in record.append(&journal, [12_000, 12_000]).await {
        answer.await.unwrap();
    }
    end(&journal, tasks).await;
}

#[tokio::test]
async fn released_segments_are_used_again_and_the_rest_stays_readable() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    for _ in 0..40 {
        for answer in record.append(&journal, [5000, 5000, 5000]).await {
            let index = answer.await.unwrap();
            record.release(&journal, index.saturating_sub(2));
        }
    }
    let stats = journal.stats();
    assert!(stats.first > 100, "{stats:?}");
    end(&journal, tasks).await;
    // Without recycling there would be 40 or more.
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert!(files <= 8, "{files} files");

    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    assert_eq!(journal.stats().next, 121);
    let gone = journal.reader(1).next().await.unwrap_err();
    assert!(matches!(gone, ReadError::Released { index: 1, .. }), "{gone}");
    end(&journal, tasks).await;
}

#[tokio::test]
async fn a_reader_keeps_what_it_has_not_read() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    let mut reader = journal.reader(1);
    assert_eq!(reader.next().await.unwrap(), None);
    for _ in 0..20 {
        for answer in record.append(&journal, [5000, 5000]).await {
            let index = answer.await.unwrap();
            record.release(&journal, index);
        }
    }
    assert_eq!(journal.stats().first, 1);
    for index in 1..=40 {
        assert_eq!(reader.next().await.unwrap().unwrap().0, index);
    }
    assert_eq!(reader.next().await.unwrap(), None);
    drop(reader);
    // Not a wait for a time: for the keeper, which was told.
    while journal.stats().first < 30 {
        runtime.sleep(Duration::from_millis(1)).await;
    }
    end(&journal, tasks).await;
}

#[tokio::test]
async fn other_limits_apply_from_the_next_segment_on() {
    let (dir, runtime, record) = (tempfile::tempdir().unwrap(), Runtime::real(), Record::default());
    let large = Options { segment_bytes: 32 * 4096, entry_bytes_max: 100_000, ..small() };
    let large_of = |entry: usize| [entry, 8, entry];
    for (options, sizes) in [(small(), [8, 8, 8]), (large, large_of(100_000)), (small(), [9000, 12_000, 8])] {
        let tasks = TaskSet::new(&runtime);
        let journal = record.open(&runtime, &tasks, dir.path(), options).await.unwrap();
        for answer in record.append(&journal, sizes).await {
            answer.await.unwrap();
        }
        end(&journal, tasks).await;
    }
    let tasks = TaskSet::new(&runtime);
    let journal = record.open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    assert_eq!(read_all(&journal, 1).await.len(), 9);
    end(&journal, tasks).await;
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
    let tasks = TaskSet::new(&runtime);
    for options in [
        Options { segment_bytes: 5000, ..small() },
        Options { entry_bytes_max: 8 * 4096, ..small() },
        Options { batch_bytes_max: 8 * 4096, ..small() },
        Options { commits_max: 0, ..small() },
    ] {
        let refused = Journal::<()>::open(&runtime, &tasks, dir.path(), options).await.err().unwrap();
        assert!(matches!(refused, OpenError::Options(_)), "{refused}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use journal::{AppendError, Journal, OpenError, Options};
use runtime::{OpenMode, TaskSet};
use simulator::{Faults, Incident, Simulation, run_seeds};
use tokio::sync::oneshot;

use crate::support::{DIR, History, end, small};

#[test]
fn journal_rejects_appends_only_while_the_disk_is_full() {
    let coverage = run_seeds("journal-full", 0..60, |sim| {
        let history = History::default();
        let outside = sim.outside();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        // The disk has space for two and a half segments.
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = {
            let (history, volume) = (history.clone(), volume.clone());
            async move {
                let tasks = TaskSet::new(&a);
                let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                let mut responses = Vec::new();
                while !journal.stats().full {
                    responses.extend(history.append(&journal, [9000]).await);
                    a.sleep(Duration::from_millis(1)).await;
                }
                let (ticket, _response) = oneshot::channel();
                let rejected = journal.append(Bytes::from_static(b"more"), ticket).await;
                assert_eq!(rejected, Err(AppendError::Full));
                assert!(rejected.unwrap_err().is_retryable());
                // The record of each entry occupies 12 KiB. The writer filled the two segments on the disk before an
                // append failed.
                assert!(history.state().durable >= 4, "{} durable", history.state().durable);

                volume.set_capacity(small().segment_bytes * 100);
                for response in responses {
                    response.await.expect("queued entries are written once there is space");
                }
                for response in history.append(&journal, [9000; 3]).await {
                    response.await.unwrap();
                }
                assert!(!journal.stats().full);
                end(&journal, tasks).await;
            }
        };
        sim.run_until(async {
            let done = outside.timeout(Duration::from_secs(60), sim.call("a", work)).await;
            assert_eq!(done, Some(Some(())), "the journal recovers without a restart");
        });
    });
    coverage.assert_happened(&[Incident::DiskFull]);
}

#[test]
fn release_of_entries_frees_space_on_a_full_disk() {
    run_seeds("journal-full-release", 0..20, |sim| {
        let history = History::default();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = async move {
            let tasks = TaskSet::new(&a);
            let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            let mut responses = Vec::new();
            while !journal.stats().full {
                responses.extend(history.append(&journal, [9000]).await);
                a.sleep(Duration::from_millis(1)).await;
            }
            let durable = history.state().durable as u64;
            history.release(&journal, durable);
            for response in responses {
                response.await.expect("queued entries are written once there is space");
            }
            end(&journal, tasks).await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn journal_closes_while_it_waits_for_disk_space() {
    run_seeds("journal-full-close", 0..20, |sim| {
        let history = History::default();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = {
            let history = history.clone();
            async move {
                let tasks = TaskSet::new(&a);
                let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                while !journal.stats().full {
                    let _responses = history.append(&journal, [9000]).await;
                    a.sleep(Duration::from_millis(1)).await;
                }
                end(&journal, tasks).await;
                let tasks = TaskSet::new(&a);
                let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                end(&journal, tasks).await;
            }
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn opening_a_new_journal_reports_a_full_disk() {
    run_seeds("journal-full-open", 0..5, |sim| {
        let a = sim.member("a");
        sim.volume("a").set_capacity(4096);
        let work = async move {
            let tasks = TaskSet::new(&a);
            let rejected = Journal::<()>::open(&a, &tasks, Path::new(DIR), small()).await.err().unwrap();
            assert!(matches!(rejected, OpenError::Full { .. }), "{rejected}");
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn journal_closes_after_its_consumer_is_dropped() {
    run_seeds("journal-consumer", 0..10, |sim| {
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let opened = Journal::open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            drop(opened.commits);
            let (ticket, response) = oneshot::channel::<()>();
            opened.journal.append(Bytes::from_static(b"entry"), ticket).await.unwrap();
            assert!(response.await.is_err(), "a dropped ticket ends the wait for a commit");
            tasks.join().await;
            let (ticket, _response) = oneshot::channel();
            let rejected = opened.journal.append(Bytes::from_static(b"entry"), ticket).await;
            assert_eq!(rejected, Err(AppendError::Closed));
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn queue_stays_within_its_limit_if_the_consumer_is_slow() {
    run_seeds("journal-slow", 0..20, |sim| {
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let mut opened = Journal::open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            let journal = opened.journal.clone();
            let sent = a.spawn("sender", async move {
                for number in 0..200_u64 {
                    journal.append(Bytes::from(vec![0; 3000]), number).await.unwrap();
                }
            });
            a.sleep(Duration::from_secs(5)).await;
            let stats = opened.journal.stats();
            // The writer has written the entries of three or four commits, with three entries each. The consumer has
            // not received these commits. The queue is at its limit of 40,000 bytes.
            assert!(stats.queue_entries <= 13 && stats.next <= 13, "{stats:?}");
            let mut received = 0;
            while received < 200 {
                let commit = opened.commits.recv().await.unwrap();
                for (_, number) in commit.entries {
                    assert_eq!(number, received, "commits arrive in order");
                    received += 1;
                }
            }
            sent.end.await;
            opened.journal.close().await;
            tasks.join().await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn writer_waits_one_millisecond_to_combine_entries_under_load() {
    run_seeds("journal-linger", 0..5, |sim| {
        let quick = Duration::from_micros(50)..=Duration::from_micros(50);
        sim.set_faults(Faults { sync_time: quick, ..Faults::default() });
        let history = History::default();
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let options = Options { segment_bytes: 2 << 20, entry_bytes_max: 1000, ..Options::default() };
            let journal = history.open(&a, &tasks, Path::new(DIR), options).await.unwrap();
            let mut responses = Vec::new();
            for _ in 0..2_500 {
                responses.extend(history.append(&journal, [100; 4]).await);
                a.sleep(Duration::from_micros(200)).await;
            }
            for response in responses {
                response.await.unwrap();
            }
            let records = journal.stats().records;
            assert!(records < 1_250, "{records} records for 10,000 entries in half a second");
            end(&journal, tasks).await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn journal_stops_the_process_if_its_lock_file_is_removed() {
    for is_replaced in [false, true] {
        let sim = Simulation::new(u64::from(is_replaced));
        let (a, history, lock) = (sim.member("a"), History::default(), Path::new(DIR).join("lock"));
        let work = async move {
            let tasks = TaskSet::new(&a);
            let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            a.disk().remove(&lock).await.unwrap();
            if is_replaced {
                a.disk().open(&lock, OpenMode::CreateNew).await.unwrap();
            }
            // The journal has no work, so only its own timer can reveal the removal.
            a.sleep(Duration::from_secs(10)).await;
            drop(journal);
        };
        let ended = sim.run_until(sim.call("a", work));
        assert_eq!(ended, None, "the process stops before the work ends");
        let halts = sim.halts("a");
        assert!(halts.len() == 1 && halts[0].contains("/data/journal/lock was removed"), "{halts:?}");

        let (again, history) = (sim.restart("a"), History::default());
        sim.run_until(async {
            let tasks = TaskSet::new(&again);
            let journal = history.open(&again, &tasks, Path::new(DIR), small()).await.unwrap();
            end(&journal, tasks).await;
        });
    }
}

#[test]
fn journal_renames_no_file_after_its_lock_file_was_removed() {
    let prepared_none = Cell::new(0);
    run_seeds("journal-lock", 0..50, |sim| {
        let (a, history, lock) = (sim.member("a"), History::default(), Path::new(DIR).join("lock"));
        let volume = sim.volume("a");
        let segments = |files: BTreeSet<String>| files.into_iter().filter(|name| name.starts_with("segment-")).count();
        let before = Arc::new(Mutex::new(None));
        let work = {
            let (volume, before) = (volume.clone(), before.clone());
            async move {
                let tasks = TaskSet::new(&a);
                let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                // The journal prepares its next segment at the same time.
                a.sleep(Duration::from_micros(a.random() % 1_500)).await;
                *before.lock().unwrap() = Some(segments(volume.files(DIR)));
                a.disk().remove(&lock).await.unwrap();
                a.sleep(Duration::from_secs(10)).await;
                drop(journal);
            }
        };
        assert_eq!(sim.run_until(sim.call("a", work)), None, "the process stops before the work ends");
        assert_eq!(sim.halts("a").len(), 1);
        let before = before.lock().unwrap().unwrap();
        assert_eq!(segments(volume.files(DIR)), before, "the journal named a segment after the removal");
        prepared_none.set(prepared_none.get() + usize::from(before == 1));
    });
    let prepared_none = prepared_none.get();
    assert!((5..45).contains(&prepared_none), "{prepared_none} journals had no second segment at the removal");
}

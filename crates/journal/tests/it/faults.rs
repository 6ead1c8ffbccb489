use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use journal::{AppendError, Journal, OpenError, Options};
use runtime::TaskSet;
use simulator::{Faults, Incident, run_seeds};
use tokio::sync::oneshot;

use crate::support::{DIR, Record, end, small};

#[test]
fn a_full_disk_refuses_appends_until_space_is_free_and_loses_nothing() {
    let coverage = run_seeds("journal-full", 0..60, |sim| {
        let record = Record::default();
        let outside = sim.outside();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        // Room for two segments and a half.
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = {
            let (record, volume) = (record.clone(), volume.clone());
            async move {
                let tasks = TaskSet::new(&a);
                let journal = record.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                let mut answers = Vec::new();
                while !journal.stats().full {
                    answers.extend(record.append(&journal, [9000]).await);
                    a.sleep(Duration::from_millis(1)).await;
                }
                let (ticket, _answer) = oneshot::channel();
                let refused = journal.append(Bytes::from_static(b"more"), ticket).await;
                assert_eq!(refused, Err(AppendError::Full));
                assert!(refused.unwrap_err().is_retryable());
                // One record per 12 KiB: both segments were used up before anything was refused.
                assert!(record.state().durable >= 4, "{} durable", record.state().durable);

                volume.set_capacity(small().segment_bytes * 100);
                for answer in answers {
                    answer.await.expect("what was queued is written once there is room");
                }
                for answer in record.append(&journal, [9000; 3]).await {
                    answer.await.unwrap();
                }
                assert!(!journal.stats().full);
                end(&journal, tasks).await;
            }
        };
        sim.run_until(async {
            let done = outside.timeout(Duration::from_secs(60), sim.call("a", work)).await;
            assert_eq!(done, Some(Some(())), "it recovers without a restart");
        });
    });
    coverage.assert_happened(&[Incident::DiskFull]);
}

#[test]
fn released_entries_make_room_on_a_full_disk() {
    run_seeds("journal-full-release", 0..20, |sim| {
        let record = Record::default();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = async move {
            let tasks = TaskSet::new(&a);
            let journal = record.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            let mut answers = Vec::new();
            while !journal.stats().full {
                answers.extend(record.append(&journal, [9000]).await);
                a.sleep(Duration::from_millis(1)).await;
            }
            let durable = record.state().durable as u64;
            record.release(&journal, durable);
            for answer in answers {
                answer.await.expect("what was queued is written once there is room");
            }
            end(&journal, tasks).await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn a_journal_that_waits_for_room_can_be_closed() {
    run_seeds("journal-full-close", 0..20, |sim| {
        let record = Record::default();
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        volume.set_capacity(small().segment_bytes * 5 / 2);
        let work = {
            let record = record.clone();
            async move {
                let tasks = TaskSet::new(&a);
                let journal = record.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                while !journal.stats().full {
                    let _answers = record.append(&journal, [9000]).await;
                    a.sleep(Duration::from_millis(1)).await;
                }
                end(&journal, tasks).await;
                let tasks = TaskSet::new(&a);
                let journal = record.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                end(&journal, tasks).await;
            }
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn a_disk_without_room_for_the_first_segment_is_told() {
    run_seeds("journal-full-open", 0..5, |sim| {
        let a = sim.member("a");
        sim.volume("a").set_capacity(4096);
        let work = async move {
            let tasks = TaskSet::new(&a);
            let refused = Journal::<()>::open(&a, &tasks, Path::new(DIR), small()).await.err().unwrap();
            assert!(matches!(refused, OpenError::Full { .. }), "{refused}");
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn a_consumer_that_is_gone_closes_the_journal() {
    run_seeds("journal-consumer", 0..10, |sim| {
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let opened = Journal::open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            drop(opened.commits);
            let (ticket, answer) = oneshot::channel::<()>();
            opened.journal.append(Bytes::from_static(b"entry"), ticket).await.unwrap();
            assert!(answer.await.is_err(), "nobody answers, and nobody waits for ever");
            tasks.join().await;
            let (ticket, _answer) = oneshot::channel();
            let refused = opened.journal.append(Bytes::from_static(b"entry"), ticket).await;
            assert_eq!(refused, Err(AppendError::Closed));
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn a_consumer_that_is_slow_bounds_what_is_queued() {
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
            // Three commits of three entries are written and not received; the queue holds its 40,000 bytes.
            assert!(stats.queue_entries <= 13 && stats.next <= 13, "{stats:?}");
            let mut received = 0;
            while received < 200 {
                let commit = opened.commits.recv().await.unwrap();
                for (_, number) in commit.entries {
                    assert_eq!(number, received, "in order, however long it took");
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
fn under_load_a_record_gathers_the_entries_of_a_millisecond() {
    run_seeds("journal-linger", 0..5, |sim| {
        let quick = Duration::from_micros(50)..=Duration::from_micros(50);
        sim.set_faults(Faults { sync_time: quick, ..Faults::default() });
        let record = Record::default();
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let options = Options { segment_bytes: 2 << 20, entry_bytes_max: 1000, ..Options::default() };
            let journal = record.open(&a, &tasks, Path::new(DIR), options).await.unwrap();
            let mut answers = Vec::new();
            for _ in 0..2_500 {
                answers.extend(record.append(&journal, [100; 4]).await);
                a.sleep(Duration::from_micros(200)).await;
            }
            for answer in answers {
                answer.await.unwrap();
            }
            let records = journal.stats().records;
            assert!(records < 1_250, "{records} records for 10,000 entries in half a second");
            end(&journal, tasks).await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

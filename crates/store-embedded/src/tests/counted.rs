//! Tests of the counts of runs: a store of an earlier build, and counts of more hours than the memory holds.

use std::time::Duration;

use domain::occurrence::Run;
use domain::{Attempt, AttemptResult, Facet, Hour, Occurrence, Revision, RunOrigin, RunState, Timestamp};
use store::{Change, CountPage, CountRead, Insert, OwnerWrite, Store};
use store_conformance::Subject as _;

use super::{Killed, an_insert, on_real, options};
use crate::checkpoint::Checkpoint;

/// Number of hours. Each has three rows of counts.
const HOURS: u32 = 6_000;

/// Writes one run in each hour from the number `from` on.
async fn write_hours(store: &dyn Store, insert: &Insert, from: u32) {
    let poller = insert.schedule.poller;
    let term = store.take(vec![poller.shard()]).await.unwrap()[0];
    let write = |number: u32| {
        let nominal = Hour(i64::from(number)).start();
        let occurrence = Occurrence { nominal, revision: Revision(0), ..insert.due.occurrence };
        let result = AttemptResult::Answered(200);
        let duration = Duration::from_millis(u64::from(number));
        let attempt = Attempt { number: 1, started_at: nominal, duration, result, delay: None, excerpt: None };
        let run =
            Run { tenant: insert.schedule.tenant, occurrence, state: RunState::Succeeded, attempts: vec![attempt] };
        let origin = Some(RunOrigin { host: Some("a.example".to_owned()), labels: Vec::new() });
        OwnerWrite { term, poller, change: Change::Run { run, then: None, ends: false, origin } }
    };
    // The counts of these runs exceed the bound of the memory within a journal entry.
    let results = store.write((from..from + HOURS).map(write).collect()).await.unwrap();
    assert!(results.iter().all(Result::is_ok));
}

async fn counts(store: &dyn Store, insert: &Insert, facet: Facet) -> CountPage {
    let (tenant, from, until) = (insert.schedule.tenant, Hour(0), Hour::of(Timestamp::MAX));
    store.counts(CountRead { tenant, facet, from, until }).await.unwrap()
}

#[test]
fn counts_of_many_hours_move_to_the_index() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let insert = an_insert(1);
        // The store makes no checkpoint, so a replay counts all runs again.
        let subject = Killed::new(runtime.clone(), dir.path(), options(1 << 30));
        let mut store = subject.open().await;
        store.insert(vec![insert.clone()]).await.unwrap();
        for round in 0..2 {
            write_hours(&*store, &insert, round * HOURS).await;
            for facet in Facet::ALL {
                let page = counts(&*store, &insert, facet).await;
                let hours: Vec<i64> = page.hours.iter().map(|(hour, _)| hour.0).collect();
                assert_eq!(hours, (0..i64::from((round + 1) * HOURS)).collect::<Vec<_>>(), "{facet:?}");
                let runs = |counts: &domain::Counts| {
                    counts.groups().values().flat_map(|tallies| tallies.values()).map(|tally| tally.runs).sum::<u64>()
                };
                assert!(page.hours.iter().all(|(_, counts)| runs(counts) == 1), "{facet:?}");
            }
            subject.close(store).await;
            store = subject.open().await;
        }
        subject.close(store).await;
    });
}

#[test]
fn store_of_an_earlier_build_counts_from_its_opening() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let insert = an_insert(1);
        let subject = Killed::new(runtime.clone(), dir.path(), options(1 << 20));
        let store = subject.open().await;
        assert_eq!(counts(&*store, &insert, Facet::All).await.counted_from, Hour(0), "a new store counts all runs");
        subject.close(store).await;
        let data = subject.data(1);
        let mut checkpoint = Checkpoint::read(&runtime, &data).await.unwrap().unwrap();
        checkpoint.counted_from = None;
        checkpoint.write(&runtime, &data).await.unwrap();
        let before = runtime.now();
        let mut store = subject.open().await;
        let page = counts(&*store, &insert, Facet::All).await;
        let possible = [before, runtime.now()].map(Hour::from_start);
        assert!(possible.contains(&page.counted_from), "{page:?}");
        subject.close(store).await;
        store = subject.open().await;
        assert_eq!(counts(&*store, &insert, Facet::All).await, page, "a later opening changes nothing");
        subject.close(store).await;
    });
}

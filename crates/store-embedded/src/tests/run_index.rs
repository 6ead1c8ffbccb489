//! Tests of the rows that list runs by time: their build in a store of an earlier build, and reads of damaged and of
//! removed rows.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use domain::occurrence::Run;
use domain::{Attempt, AttemptResult, Occurrence, Revision, RunFilter, RunOutline, RunState, RunStateKind, Timestamp};
use runtime::{Runtime, TaskSet};
use store::runs::EXAMINED_MAX;
use store::{Change, Insert, Order, OwnerWrite, RunList, RunRead, Store, StoreError};
use store_conformance::Subject as _;

use super::{Killed, an_insert, on_real, options};
use crate::checkpoint::{Checkpoint, RunIndex};
use crate::codec::key;
use crate::codec::timed::{Class, Progress};
use crate::index::lsm::LsmIndex;
use crate::index::{Family, Index as _, Sequence};
use crate::open::INDEX_DIR;
use crate::{EmbeddedStore, Options};

const RUNS: u32 = 5_000;

/// Returns `RUNS` final runs of the schedule of `insert`. Each third run failed.
fn runs_of(insert: &Insert) -> Vec<Run> {
    let of = insert.due.occurrence;
    let run = |number: u32| {
        let nominal = Timestamp::from_millis(of.nominal.as_millis() + i64::from(number));
        let state = if number.is_multiple_of(3) { RunState::Failed } else { RunState::Succeeded };
        let occurrence = Occurrence { nominal, revision: Revision(number), ..of };
        let attempt = Attempt {
            number: 1,
            started_at: nominal,
            duration: std::time::Duration::ZERO,
            result: AttemptResult::Answered(if state == RunState::Failed { 503 } else { 200 }),
            delay: None,
            excerpt: None,
        };
        Run { tenant: insert.schedule.tenant, occurrence, state, attempts: vec![attempt] }
    };
    (0..RUNS).map(run).collect()
}

async fn write(store: &dyn Store, insert: &Insert, runs: &[Run]) {
    let poller = insert.schedule.poller;
    let term = store.take(vec![poller.shard()]).await.unwrap()[0];
    for runs in runs.chunks(1_000) {
        let change = |run: &Run| Change::Run { run: run.clone(), then: None, ends: false, origin: None };
        let writes = runs.iter().map(|run| OwnerWrite { term, poller, change: change(run) }).collect();
        assert!(store.write(writes).await.unwrap().iter().all(Result::is_ok));
    }
}

/// Returns the first page of runs in a state, with the oldest run first.
fn read_of(insert: &Insert, state: Option<RunStateKind>) -> RunRead {
    let filter = RunFilter { state, ..RunFilter::default() };
    let (from, until) = (Timestamp::MIN, Timestamp::from_millis(i64::MAX));
    let tenant = insert.schedule.tenant;
    RunRead { tenant, schedules: None, from, until, filter, order: Order::Oldest, after: None, limit: 400 }
}

/// Returns the runs of all pages, and the number of unreadable runs. Waits while the index is incomplete.
async fn list(store: &dyn Store, mut read: RunRead) -> (Vec<Run>, usize) {
    let (mut found, mut unreadable) = (Vec::new(), 0);
    loop {
        let list = match store.list_runs(read.clone()).await {
            Err(StoreError::Unindexed(_)) => continue,
            list => list.unwrap(),
        };
        found.extend(list.runs);
        unreadable += list.unreadable;
        read.after = list.next;
        if list.next.is_none() {
            return (found, unreadable);
        }
    }
}

/// Removes the rows that list runs by time from a closed store, and changes the checkpoint. The store then looks like a
/// store that an earlier build wrote. Writes also the rows `changed` of small rows.
async fn make_runs_unlisted(runtime: &Runtime, dir: &Path, options: &Options, changed: &[(Vec<u8>, Vec<u8>)]) {
    let mut checkpoint = Checkpoint::read(runtime, dir).await.unwrap().unwrap();
    let index = LsmIndex::open(&dir.join(INDEX_DIR), options).unwrap();
    let mut keys = Vec::new();
    let take = &mut |key: &[u8], _: &_| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    index.scan(Family::Points, b"o", b"p", Sequence::LATEST, take).unwrap();
    assert!(keys.len() > 1_000, "there are too few rows to remove: {}", keys.len());
    let at = Sequence::new(checkpoint.synced, 60_000);
    keys.iter().for_each(|key| index.remove(Family::Points, key, at));
    changed.iter().for_each(|(key, value)| index.put(Family::Points, key, value, at));
    index.seal(Family::Points);
    index.flush(Sequence::new(checkpoint.synced + 1, 0)).await.unwrap();
    checkpoint.run_index = RunIndex::Missing;
    checkpoint.write(runtime, dir).await.unwrap();
}

async fn opened(runtime: &Runtime, dir: &Path, options: &Options) -> (Arc<EmbeddedStore>, TaskSet) {
    let tasks = TaskSet::new(runtime);
    let store = EmbeddedStore::open(runtime, &tasks, dir, options.clone()).await.unwrap();
    (Arc::new(store), tasks)
}

async fn closed((store, tasks): (Arc<EmbeddedStore>, TaskSet)) {
    store.close().await;
    drop(store);
    tasks.join().await;
}

/// Kills the store during the build of its index. If `checkpoint_bytes` is large, a replay then applies all entries of
/// the build again. Otherwise the index already contains a part of the rows.
fn check_build(checkpoint_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let (options, insert) = (options(checkpoint_bytes), an_insert(1));
        let runs = runs_of(&insert);
        let (last, earlier) = runs.split_last().unwrap();
        let subject = Killed::new(runtime.clone(), dir.path(), options.clone());
        let first = opened(&runtime, &subject.data(0), &options).await;
        first.0.insert(vec![insert.clone()]).await.unwrap();
        // The build before this one stored a first record of the last run. This build stores the final record.
        let mut retried = last.clone();
        retried.state = RunState::Retrying;
        write(&*first.0, &insert, earlier).await;
        write(&*first.0, &insert, &[retried]).await;
        closed(first).await;
        make_runs_unlisted(&runtime, &subject.data(0), &options, &[]).await;

        let store = subject.open().await;
        write(&*store, &insert, std::slice::from_ref(last)).await;
        let progress = || {
            let life = subject.life.lock().unwrap();
            life.open.as_ref().unwrap().0.rows.run_index_progress(Sequence::LATEST).unwrap()
        };
        while progress().is_none() {
            tokio::task::yield_now().await;
        }
        assert_ne!(progress(), Some(Progress::Complete));
        let early = store.list_runs(read_of(&insert, None)).await;
        assert!(matches!(early, Err(StoreError::Unindexed(_))), "the index is incomplete: {early:?}");
        subject.close(store).await;
        for start in 0..2 {
            let store = subject.open().await;
            assert!(list(&*store, read_of(&insert, None)).await == (runs.clone(), 0), "in start {start}");
            let failed: Vec<Run> = runs.iter().filter(|run| run.state == RunState::Failed).cloned().collect();
            let listed = list(&*store, read_of(&insert, Some(RunStateKind::Failed))).await;
            assert!(listed == (failed, 0), "in start {start}");
            subject.close(store).await;
        }
        subject.end().await;
    });
}

#[test]
fn store_lists_runs_of_an_earlier_build_after_a_replay() {
    check_build(1 << 30);
}

#[test]
fn store_lists_runs_of_an_earlier_build_after_a_flush() {
    check_build(100_000);
}

/// Returns the key of a run, and the value of a run whose first bytes are valid.
fn damaged(run: &Run) -> (Vec<u8>, Vec<u8>) {
    let mut value = Vec::new();
    stored::run::put(&mut value, run);
    value.push(7);
    (key::run(&run.occurrence).to_vec(), value)
}

#[test]
fn damaged_run_hides_no_other_run() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let (options, insert) = (options(100_000), an_insert(1));
        let mut runs = runs_of(&insert);
        let store = opened(&runtime, dir.path(), &options).await;
        store.0.insert(vec![insert.clone()]).await.unwrap();
        write(&*store.0, &insert, &runs).await;
        closed(store).await;
        // The index omits a run that is damaged before the build of the index.
        make_runs_unlisted(&runtime, dir.path(), &options, &[damaged(&runs[7])]).await;
        runs.remove(7);
        let store = opened(&runtime, dir.path(), &options).await;
        assert!(list(&*store.0, read_of(&insert, None)).await == (runs.clone(), 0));
        // A page omits and counts a run that is damaged later.
        let (key, value) = damaged(&runs[90]);
        let occurrence = runs.remove(90).occurrence;
        store.0.rows.index.put(Family::Points, &key, &value, Sequence::from_u64(Sequence::LATEST.as_u64() - 1));
        assert!(list(&*store.0, read_of(&insert, None)).await == (runs.clone(), 1));
        let by_schedule = RunRead { schedules: Some(vec![occurrence.incarnation]), ..read_of(&insert, None) };
        assert_eq!(list(&*store.0, by_schedule).await.1, 2, "the engine cannot read both damaged runs");
        closed(store).await;
    });
}

#[test]
fn read_of_removed_rows_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let (options, insert) = (options(1 << 30), an_insert(1));
        let runs = runs_of(&insert);
        let store = opened(&runtime, dir.path(), &options).await;
        store.0.insert(vec![insert.clone()]).await.unwrap();
        write(&*store.0, &insert, &runs).await;
        let (last, removed) = runs.split_last().unwrap();
        let at = Sequence::from_u64(Sequence::LATEST.as_u64() - 1);
        for run in removed {
            let key = Class::of_first(&RunOutline::of(run)).key(run.tenant, &run.occurrence);
            store.0.rows.index.remove(Family::Points, &key, at);
        }
        let (mut read, mut calls) = (read_of(&insert, None), 0);
        let found = loop {
            let RunList { runs, next, examined, .. } = store.0.list_runs(read.clone()).await.unwrap();
            assert!(examined <= EXAMINED_MAX, "{examined} rows");
            calls += 1;
            match next {
                Some(next) => {
                    assert_eq!(runs, [], "the rows of all other runs are removed");
                    read.after = Some(next);
                }
                None => break runs,
            }
        };
        assert_eq!(found, std::slice::from_ref(last));
        assert!(calls >= 5, "{calls} calls read {RUNS} rows");
        closed(store).await;
    });
}

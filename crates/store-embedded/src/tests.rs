//! Tests that kill a store on a real disk, at moments that the tests choose. After a restart, the replay of the journal
//! must restore all acknowledged writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use domain::{DueKey, Incarnation, Occurrence, Revision, Schedule, ScheduleId, TenantId, Timestamp};
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use runtime::{Runtime, TaskSet};
use store::listing::{self, By, Listing, ListingOrder};
use store::memory::{MemoryOptions, MemoryStore};
use store::{Cancellation, Insert, Store};
use store_conformance::{CASES, Subject, differential};

use crate::checkpoint::Checkpoint;
use crate::codec::tests::a_schedule;
use crate::index::lsm::{self, LsmIndex};
use crate::index::{Family, Index as _, Sequence};
use crate::memory::Usages;
use crate::open::INDEX_DIR;
use crate::{EmbeddedStore, IndexKind, Options};

mod counted;
mod run_index;

/// Subject of the conformance suite. The subject kills its store instead of closing the store. Each open uses the files
/// that were on disk at the previous kill.
struct Killed {
    runtime: Runtime,
    dir: PathBuf,
    options: Options,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    number: u32,
    open: Option<(Arc<EmbeddedStore>, TaskSet)>,
}

impl Killed {
    fn new(runtime: Runtime, dir: &Path, options: Options) -> Self {
        Killed { runtime, dir: dir.to_owned(), options, life: Mutex::default() }
    }

    fn data(&self, number: u32) -> PathBuf {
        self.dir.join(format!("life-{number}"))
    }

    async fn end(&self) {
        let (number, open) = {
            let mut life = self.life.lock().unwrap();
            life.number += 1;
            (life.number, life.open.take())
        };
        let Some((store, tasks)) = open else { return };
        {
            // The copy of the folder has the state of one instant, like the disk after a kill. The journal may delete a
            // released segment during the copy. In that case the loop copies the folder again.
            let _alone = store.shared.maintenance.write().await;
            let (from, to) = (self.data(number - 1), self.data(number));
            loop {
                let before = files(&from);
                let copied = lsm::copy_tree(&from, &to);
                if before == files(&from) {
                    break copied.unwrap();
                }
                std::fs::remove_dir_all(&to).unwrap();
            }
        }
        store.close().await;
        check_usage(&store);
        drop(store);
        tasks.join().await;
    }
}

/// Checks that the store's numbers of schedules and bytes equal the result of a count of all rows.
fn check_usage(store: &EmbeddedStore) {
    let mut counted = Usages::default();
    counted.complete(&store.rows, Sequence::LATEST).unwrap();
    let memory = store.memory.lock().unwrap();
    for tenant in (0..8).map(TenantId) {
        assert_eq!(memory.usages.of(tenant), counted.of(tenant), "{tenant:?}");
    }
}

fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { assert!(found.insert(path)) }
    }
    found
}

impl Subject for Killed {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let number = self.life.lock().unwrap().number;
            let tasks = TaskSet::new(&self.runtime);
            let store = EmbeddedStore::open(&self.runtime, &tasks, &self.data(number), self.options.clone()).await;
            let store = Arc::new(store.expect("a kill damages no file"));
            self.life.lock().unwrap().open = Some((store.clone(), tasks));
            store as Arc<dyn Store>
        })
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        drop(store);
        Box::pin(self.end())
    }
}

/// Options with which the store flushes `Family::Rows` often and the other families rarely or never. When a replay
/// applies an entry, the index may therefore already contain rows of later entries.
fn options(checkpoint_bytes: u64) -> Options {
    let mut options = Options { index: IndexKind::Lsm, free_bytes_floor: 0, ..Options::default() };
    options.journal.segment_bytes = 1 << 20;
    options.journal.entry_bytes_max = 512 << 10;
    options.journal.batch_bytes_max = 256 << 10;
    options.entry_bytes = 64 << 10;
    Options { memtable_bytes: 1_500, checkpoint_bytes, ..options }
}

fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

#[test]
fn acknowledged_writes_survive_a_kill_of_the_process() {
    for checkpoint_bytes in [1_000, 1 << 30] {
        for name in ["data_survives_a_reopen", "reopened_store_continues_from_its_state"] {
            let case = CASES.iter().find(|case| case.name == name).expect("the suite has this case");
            let dir = tempfile::tempdir().unwrap();
            on_real(async |runtime| {
                let subject = Killed::new(runtime, dir.path(), options(checkpoint_bytes));
                case.run(&subject).await;
                subject.end().await;
            });
        }
    }
}

fn an_insert(number: u128) -> Insert {
    let incarnation = Incarnation::new(Timestamp::from_millis(1_700_000_000_000), number);
    let id = ScheduleId::from_incarnation(incarnation);
    let schedule = Schedule { id, incarnation, revision: Revision(0), ..a_schedule() };
    let nominal = schedule.next.expect("the schedule is active");
    let occurrence = Occurrence { incarnation, nominal, revision: schedule.revision, replay: 0 };
    let due = DueKey { position: nominal, occurrence, attempt: 1, target: schedule.spec.target.key() };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

#[test]
fn usage_that_the_store_maintains_equals_a_count_of_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let subject = Killed::new(runtime, dir.path(), options(1 << 30));
        let store = subject.open().await;
        let inserts: Vec<Insert> = (0..2_500).map(an_insert).collect();
        let mark = |at: usize| Cancellation {
            tenant: inserts[at].schedule.tenant,
            id: inserts[at].schedule.id.clone(),
            author: None,
        };
        let marks = vec![mark(3), mark(1_700)];
        store.insert(inserts.clone()).await.unwrap();
        store.append_cancellations(marks).await.unwrap();
        let tenant = inserts[0].schedule.tenant;
        let usage = store.usage(vec![tenant]).await.unwrap()[0];
        assert_eq!((usage.active, usage.cancelled), (2_498, 2));
        let rows = subject.life.lock().unwrap().open.as_ref().unwrap().0.rows.clone();
        let mut counted = Usages::default();
        counted.complete(&rows, Sequence::LATEST).unwrap();
        assert_eq!(counted.of(tenant), usage);
        subject.close(store).await;
    });
}

/// The index flushes rows before the next checkpoint. They prove that their journal entries were durable.
#[test]
fn store_does_not_open_if_its_journal_lacks_entries_of_flushed_rows() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let options = options(1 << 30);
        let subject = Killed::new(runtime.clone(), dir.path(), options.clone());
        let store = subject.open().await;
        let index = subject.life.lock().unwrap().open.as_ref().unwrap().0.rows.index.clone();
        let mut number = 0;
        while index.flushed_to().is_none_or(|flushed| flushed.entry() < 3) {
            store.insert(vec![an_insert(number)]).await.unwrap();
            number += 1;
        }
        subject.close(store).await;
        let data = subject.data(1);
        // The disk loses the journal's records and its proof of their end.
        std::fs::remove_file(data.join("journal/durable")).unwrap();
        for segment in files(&data.join("journal")) {
            if segment.extension().is_some_and(|extension| extension == "journal") {
                let mut bytes = std::fs::read(&segment).unwrap();
                bytes[4096..].fill(0);
                std::fs::write(&segment, bytes).unwrap();
            }
        }
        let tasks = TaskSet::new(&runtime);
        let opened = EmbeddedStore::open(&runtime, &tasks, &data, options).await;
        let error = opened.err().expect("the journal lacks entries").to_string();
        assert!(error.contains("the journal lacks the last"), "{error}");
        assert!(error.contains("entries that the index contains"), "{error}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn embedded_store_matches_memory_store_after_process_kills(
        operations in differential::operations(40),
        checkpoint_bytes in prop_oneof![Just(1_000), Just(10_000), Just(1 << 30)],
    ) {
        let dir = tempfile::tempdir().unwrap();
        on_real(async |runtime| {
            let model = MemoryStore::new(runtime.clone(), MemoryOptions::default());
            let subject = Killed::new(runtime, dir.path(), options(checkpoint_bytes));
            differential::compare(&subject, &model, &operations).await;
            subject.end().await;
        });
    }
}

/// Turns the store into a store of an earlier build. Its index has no listings, and its checkpoint records that the
/// listings are incomplete.
async fn make_unlisted(runtime: &Runtime, dir: &Path, options: &Options) {
    let mut checkpoint = Checkpoint::read(runtime, dir).await.unwrap().unwrap();
    let index = LsmIndex::open(&dir.join(INDEX_DIR), options).unwrap();
    for kind in [b'l', b'b'] {
        let mut keys = Vec::new();
        let take = &mut |key: &[u8], _: &_| {
            keys.push(key.to_vec());
            std::ops::ControlFlow::Continue(())
        };
        index.scan(Family::Points, &[kind], &[kind + 1], Sequence::LATEST, take).unwrap();
        assert!(keys.len() > 10, "there are too few rows to remove: {}", keys.len());
        let at = Sequence::new(checkpoint.synced, 60_000);
        keys.iter().for_each(|key| index.remove(Family::Points, key, at));
    }
    index.seal(Family::Points);
    index.flush(Sequence::new(checkpoint.synced + 1, 0)).await.unwrap();
    checkpoint.is_listed = false;
    checkpoint.write(runtime, dir).await.unwrap();
}

#[test]
fn store_adds_schedules_of_an_earlier_build_to_its_listings() {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        // With these options, the last entries are only in the journal, so that the next open replays them.
        let options = options(4_000);
        let open = async || {
            let tasks = TaskSet::new(&runtime);
            let store = EmbeddedStore::open(&runtime, &tasks, dir.path(), options.clone()).await.unwrap();
            (Arc::new(store), tasks)
        };
        let (store, tasks) = open().await;
        let (mut all, mut blue, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..300_u64 {
            let mut insert = an_insert(number.into());
            let schedule = Arc::make_mut(&mut insert.schedule);
            if !number.is_multiple_of(2) {
                schedule.spec.labels.clear();
            }
            let (tenant, id, incarnation) = (schedule.tenant, schedule.id.clone(), schedule.incarnation);
            store.insert(vec![insert]).await.unwrap();
            all.push(incarnation);
            blue.extend(number.is_multiple_of(2).then_some(incarnation));
            if number.is_multiple_of(5) {
                store.append_cancellations(vec![Cancellation { tenant, id, author: None }]).await.unwrap();
                cancelled.push(incarnation);
            }
        }
        store.close().await;
        drop(store);
        tasks.join().await;
        make_unlisted(&runtime, dir.path(), &options).await;
        for _ in 0..2 {
            let (store, tasks) = open().await;
            let listed = async |by| {
                let listing =
                    Listing { tenant: TenantId(7), by, order: ListingOrder::default(), after: None, limit: 1_000 };
                let page = listing::page(&*store, &listing, || async {}).await.unwrap();
                page.schedules.iter().map(|schedule| schedule.incarnation).collect::<Vec<_>>()
            };
            assert_eq!(listed(By::All).await, all);
            assert_eq!(listed(By::Label { name: "team", value: "blue" }).await, blue);
            assert_eq!(listed(By::Status(domain::Status::Cancelled)).await, cancelled);
            store.close().await;
            tasks.join().await;
        }
        let checkpoint = Checkpoint::read(&runtime, dir.path()).await.unwrap().unwrap();
        assert!(checkpoint.is_listed, "the schedules are listed only once");
    });
}

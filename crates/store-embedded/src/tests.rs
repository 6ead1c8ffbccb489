//! What a kill leaves on a real disk, at a moment that the tests choose: a start replays it to what was answered.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use proptest::prelude::*;
use runtime::{Runtime, TaskSet};
use store::Store;
use store::conformance::{CASES, Subject, differential};
use store::memory::{MemoryOptions, MemoryStore};

use crate::index::lsm;
use crate::{EmbeddedStore, IndexKind, Options};

/// A store that is never closed in peace: each opening works on what the one before had on disk when it was stopped.
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
            // No file comes or goes meanwhile, as in the moment of a kill.
            let _alone = store.shared.maintenance.write().await;
            lsm::copy_tree(&self.data(number - 1), &self.data(number)).unwrap();
        }
        store.close().await;
        drop(store);
        tasks.join().await;
    }
}

impl Subject for Killed {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let number = self.life.lock().unwrap().number;
            let tasks = TaskSet::new(&self.runtime);
            let store = EmbeddedStore::open(&self.runtime, &tasks, &self.data(number), self.options.clone()).await;
            let store = Arc::new(store.expect("a kill damages nothing"));
            self.life.lock().unwrap().open = Some((store.clone(), tasks));
            store as Arc<dyn Store>
        })
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        drop(store);
        Box::pin(self.end())
    }
}

/// Rows are flushed often, the other families seldom or never, checkpoints as given: so families are flushed at
/// different moments, and a replay meets rows of its own future.
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
fn what_was_answered_outlives_a_kill() {
    for checkpoint_bytes in [1_000, 1 << 30] {
        for name in ["everything_is_there_after_a_reopen", "a_reopened_store_goes_on_where_it_was"] {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_agrees_over_kills(
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

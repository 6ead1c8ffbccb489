//! Conformance suite of the store port, with each kind of index, on a real disk and on a simulated disk.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use proptest::prelude::*;
use runtime::Runtime;
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};
use store_conformance::{Case, Subject, differential};
use store_embedded::{IndexKind, Options};

use crate::support::{Home, on_real, small};

/// Subject of the suite: an embedded store in one folder.
struct Embedded {
    runtime: Runtime,
    dir: PathBuf,
    options: Options,
    home: Mutex<Option<Home>>,
}

impl Embedded {
    fn new(runtime: Runtime, dir: impl Into<PathBuf>, options: Options) -> Self {
        Embedded { runtime, dir: dir.into(), options, home: Mutex::new(None) }
    }

    /// Closes the store that a case left open. The test calls this method before the runtime ends.
    async fn end(&self) {
        let home = self.home.lock().unwrap().take();
        if let Some(home) = home {
            home.close().await;
        }
    }
}

impl Subject for Embedded {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let home = Home::open(&self.runtime, &self.dir, self.options.clone()).await;
            let store = home.store.clone();
            *self.home.lock().unwrap() = Some(home);
            store as Arc<dyn Store>
        })
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        drop(store);
        Box::pin(self.end())
    }
}

/// Options with small memtables. Most calls therefore find rows in memory, in flushed tables and in merged tables.
fn tiny(index: IndexKind) -> Options {
    Options { memtable_bytes: 4_000, checkpoint_bytes: 20_000, ..small(index) }
}

fn on_disk(case: Case<dyn Subject>, options: Options) {
    let dir = tempfile::tempdir().unwrap();
    on_real(async |runtime| {
        let subject = Embedded::new(runtime, dir.path(), options);
        case.run(&subject).await;
        subject.end().await;
    });
}

mod lsm {
    use super::*;

    store_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_disk(case, small(IndexKind::Lsm));
    }
}

mod lsm_with_tiny_memtables {
    use super::*;

    store_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_disk(case, tiny(IndexKind::Lsm));
    }
}

mod map_on_a_simulated_disk {
    use super::*;

    store_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        if case.name == "moving_cursor_loses_no_insert_log_entry" {
            // The case reads the insert log in a loop without a pause. Simulated time does not advance during a read
            // from memory, so the loop would never end.
            return;
        }
        for seed in 0..2 {
            let sim = simulator::Simulation::new(seed);
            let options = small(IndexKind::Map);
            sim.run_until(async { case.run(&Embedded::new(sim.member("a"), "/data", options)).await });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn embedded_store_with_lsm_index_matches_memory_store(operations in differential::operations(30)) {
        let dir = tempfile::tempdir().unwrap();
        on_real(async |runtime| {
            let model = MemoryStore::new(runtime.clone(), MemoryOptions::default());
            let subject = Embedded::new(runtime, dir.path(), tiny(IndexKind::Lsm));
            differential::compare(&subject, &model, &operations).await;
            subject.end().await;
        });
    }

    #[test]
    fn embedded_store_with_map_index_matches_memory_store(
        operations in differential::operations(30), seed in any::<u64>()
    ) {
        let sim = simulator::Simulation::new(seed);
        sim.run_until(async {
            let model = MemoryStore::new(sim.member("model"), MemoryOptions::default());
            let subject = Embedded::new(sim.member("a"), "/data", tiny(IndexKind::Map));
            differential::compare(&subject, &model, &operations).await;
        });
    }
}

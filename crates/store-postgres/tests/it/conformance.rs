//! Conformance suite of the store port, with the store on PostgreSQL.

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use proptest::prelude::*;
use runtime::Runtime;
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};
use store_conformance::{Case, Subject, differential};

use crate::support::{Home, database, on_real};

/// Subject of the conformance suite: a PostgreSQL store in a new database.
struct InDatabase {
    runtime: Runtime,
    url: String,
    home: Mutex<Option<Home>>,
}

impl InDatabase {
    fn new(runtime: Runtime, url: String) -> Self {
        InDatabase { runtime, url, home: Mutex::new(None) }
    }

    /// Closes the store if a case has left it open.
    async fn end(&self) {
        let home = self.home.lock().unwrap().take();
        if let Some(home) = home {
            home.close().await;
        }
    }
}

impl Subject for InDatabase {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let home = Home::open(&self.runtime, &self.url).await;
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

store_conformance::conformance_tests!(run);

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| {
        let subject = InDatabase::new(runtime, url);
        case.run(&subject).await;
        subject.end().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn postgres_store_matches_memory_store(operations in differential::operations(30)) {
        let url = database();
        on_real(async |runtime| {
            // With these options the model behaves like the PostgreSQL engine: the creator moves a row that is at or
            // before `closed`, and a cancellation takes effect at once.
            let options = MemoryOptions { applies_marks: true, ..MemoryOptions::weak() };
            let model = MemoryStore::new(runtime.clone(), options);
            let subject = InDatabase::new(runtime, url);
            differential::compare(&subject, &model, &operations).await;
            subject.end().await;
        });
    }
}

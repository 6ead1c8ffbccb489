//! A database of a test's own, and a store in it.

use std::sync::{Arc, OnceLock};

use engines::postgres::{Postgres, shared};
use runtime::{Runtime, TaskEnd, TaskSet};
use store_postgres::{OpenError, Options, PostgresStore, migrate};

/// The URL of a database with the schema and nothing in it: a copy of one that was migrated once.
pub(crate) fn database() -> String {
    static TEMPLATE: OnceLock<String> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| migrated(shared()));
    shared().copy_database(template.rsplit_once('/').unwrap().1).unwrap()
}

/// The URL of a new database of `server` with the schema.
pub(crate) fn migrated(server: &Postgres) -> String {
    let url = server.create_database().unwrap();
    let here = url.clone();
    // A thread of its own, as the caller may be within an executor.
    std::thread::scope(|scope| {
        let migrating =
            scope.spawn(move || on_real(async |runtime| migrate(&runtime, &here, &Options::default()).await));
        migrating.join().unwrap().unwrap();
    });
    url
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

/// A store with its tasks.
pub(crate) struct Home {
    pub(crate) store: Arc<PostgresStore>,
    tasks: TaskSet,
}

impl Home {
    pub(crate) async fn try_open(runtime: &Runtime, url: &str, options: Options) -> Result<Self, OpenError> {
        let tasks = TaskSet::new(runtime);
        let store = PostgresStore::open(runtime, &tasks, url, options).await?;
        Ok(Home { store: Arc::new(store), tasks })
    }

    pub(crate) async fn open(runtime: &Runtime, url: &str) -> Self {
        Home::try_open(runtime, url, Options::default()).await.unwrap()
    }

    pub(crate) async fn close(self) {
        self.store.close();
        drop(self.store);
        for (name, end) in self.tasks.join().await {
            assert_eq!(end, TaskEnd::Finished, "{name}");
        }
    }
}

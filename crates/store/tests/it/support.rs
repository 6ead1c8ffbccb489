//! The engine in memory as a subject of the suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use store::Store;
use store::conformance::Subject;
use store::memory::{MemoryOptions, MemoryStore};

/// A place whose data outlives each opening.
pub(crate) struct Memory {
    runtime: Runtime,
    data: MemoryStore,
    /// What is wrong with every store that is opened here.
    pub(crate) break_it: fn(MemoryStore) -> Arc<dyn Store>,
    open: Mutex<bool>,
}

impl Memory {
    pub(crate) fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let data = MemoryStore::new(runtime.clone(), options);
        Memory { runtime, data, break_it: |store| Arc::new(store), open: Mutex::new(false) }
    }
}

impl Subject for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let already = std::mem::replace(&mut *self.open.lock().expect("nothing panics in here"), true);
            assert!(!already, "a place is opened once at a time");
            (self.break_it)(self.data.reopen(self.runtime.clone()))
        }
        .boxed()
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        async move {
            assert_eq!(Arc::strong_count(&store), 1, "no one else holds a store that is closed");
            *self.open.lock().expect("nothing panics in here") = false;
        }
        .boxed()
    }
}

pub(crate) fn weak_and_slow() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(20)), ..MemoryOptions::weak() }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().build().expect("tokio starts");
    tokio.block_on(async { test(Runtime::real()).await })
}

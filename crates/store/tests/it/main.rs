//! The engine in memory keeps the port's promises, in both forms.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use store::Store;
use store::conformance::{Case, Subject};
use store::memory::{MemoryOptions, MemoryStore};

mod atomic {
    use super::*;

    store::conformance_tests!(run);

    fn run(case: Case) {
        run_on(case, MemoryOptions::default());
    }
}

mod weak {
    use super::*;

    store::conformance_tests!(run);

    fn run(case: Case) {
        run_on(case, MemoryOptions::weak());
    }
}

fn run_on(case: Case, options: MemoryOptions) {
    let machine = tokio::runtime::Builder::new_current_thread().build().expect("tokio starts");
    machine.block_on(async { case.run(&Memory { options, kept: Mutex::default() }).await });
}

struct Memory {
    options: MemoryOptions,
    kept: Mutex<Option<MemoryStore>>,
}

impl Subject for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let runtime = Runtime::real();
            let mut kept = self.kept.lock().expect("no case panics in here");
            let store = match &*kept {
                Some(kept) => kept.reopen(runtime),
                None => MemoryStore::new(runtime, self.options.clone()),
            };
            *kept = Some(store.reopen(Runtime::real()));
            Arc::new(store) as Arc<dyn Store>
        }
        .boxed()
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        async move { drop(store) }.boxed()
    }
}

//! Options of the tree in memory, and the implementation of the trait `Subject` through which the conformance suites
//! test this tree.

use std::sync::Arc;
use std::time::Duration;

use coordination_conformance::tree;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reveille_coordination::memory::{MemoryOptions, MemoryTrees};
use runtime::Runtime;

pub(crate) fn slow() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(8)), ..MemoryOptions::default() }
}

pub(crate) fn with_real_runtime<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("tokio starts");
    tokio.block_on(async { test(Runtime::real()).await })
}

/// Implementation of the suites' trait `Subject` for the tree in memory.
pub(crate) struct MemoryForest {
    runtime: Runtime,
    trees: MemoryTrees,
}

impl MemoryForest {
    pub(crate) fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        MemoryForest { trees: MemoryTrees::new(runtime.clone(), options), runtime }
    }

    pub(crate) fn trees(&self) -> &MemoryTrees {
        &self.trees
    }
}

impl tree::Subject for MemoryForest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn tree::Process>> {
        async { Arc::new(self.trees.reopen(self.runtime.clone())) as Arc<dyn tree::Process> }.boxed()
    }
}

//! The engine in memory as a subject of the suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination::conformance::{ElectorSubject, Subject, tree};
use coordination::memory::{MemoryElector, MemoryOptions, MemoryOwnership, MemoryTrees};
use coordination::recipes::TreeOwnership;
use coordination::tree::{Acl, NodePath};
use coordination::{Elector, Ownership};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

pub(crate) struct Memory {
    runtime: Runtime,
    options: MemoryOptions,
    ownership: MemoryOwnership,
    electors: Mutex<BTreeMap<String, MemoryElector>>,
    wrap: Box<dyn Fn(MemoryOwnership) -> Arc<dyn Ownership> + Send + Sync>,
    wrap_elector: Box<dyn Fn(MemoryElector) -> Arc<dyn Elector> + Send + Sync>,
}

impl Memory {
    pub(crate) fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let ownership = MemoryOwnership::new(runtime.clone(), options.clone());
        let wrap = Box::new(|ownership| Arc::new(ownership) as Arc<dyn Ownership>);
        let wrap_elector = Box::new(|elector| Arc::new(elector) as Arc<dyn Elector>);
        Memory { runtime, options, ownership, electors: Mutex::default(), wrap, wrap_elector }
    }

    /// Breaks every engine that is opened here.
    pub(crate) fn broken(
        self,
        wrap: impl Fn(MemoryOwnership) -> Arc<dyn Ownership> + Send + Sync + 'static,
        wrap_elector: impl Fn(MemoryElector) -> Arc<dyn Elector> + Send + Sync + 'static,
    ) -> Self {
        Memory { wrap: Box::new(wrap), wrap_elector: Box::new(wrap_elector), ..self }
    }
}

impl Subject for Memory {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        async { (self.wrap)(self.ownership.reopen(self.runtime.clone())) }.boxed()
    }
}

impl ElectorSubject for Memory {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>> {
        async {
            let mut electors = self.electors.lock().expect("nothing panics in here");
            let new = || MemoryElector::new(self.runtime.clone(), self.options.clone());
            let elector = electors.entry(group.to_owned()).or_insert_with(new);
            (self.wrap_elector)(elector.reopen(self.runtime.clone()))
        }
        .boxed()
    }
}

pub(crate) fn slow() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(8)), ..MemoryOptions::default() }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("tokio starts");
    tokio.block_on(async { test(Runtime::real()).await })
}

/// The tree in memory as a subject of its suite.
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

/// Ownership over the tree in memory.
impl Subject for MemoryForest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn leases_may_grow(&self) -> bool {
        false
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        async {
            let root = NodePath::new("/cluster/one").expect("a path");
            let trees = Arc::new(self.trees.reopen(self.runtime.clone()));
            let ownership = TreeOwnership::new(&self.runtime, trees, &root, Acl::Open, Vec::new());
            Arc::new(ownership.expect("the path is short")) as Arc<dyn Ownership>
        }
        .boxed()
    }
}

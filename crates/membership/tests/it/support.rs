//! In-memory engine as a subject of the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use membership::Ownership;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership_conformance::Subject;
use runtime::Runtime;

pub(crate) struct Memory {
    runtime: Runtime,
    ownership: MemoryOwnership,
    wrap: Box<dyn Fn(MemoryOwnership) -> Arc<dyn Ownership> + Send + Sync>,
}

impl Memory {
    pub(crate) fn new(runtime: Runtime, options: EngineOptions) -> Self {
        let ownership = MemoryOwnership::new(runtime.clone(), options);
        let wrap = Box::new(|ownership| Arc::new(ownership) as Arc<dyn Ownership>);
        Memory { runtime, ownership, wrap }
    }

    /// Returns this subject with another function `wrap`, which wraps every engine that the subject opens.
    pub(crate) fn broken(self, wrap: impl Fn(MemoryOwnership) -> Arc<dyn Ownership> + Send + Sync + 'static) -> Self {
        Memory { wrap: Box::new(wrap), ..self }
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

pub(crate) fn slow() -> EngineOptions {
    EngineOptions { latency: Some(Duration::ZERO..=Duration::from_millis(8)), ..EngineOptions::default() }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("tokio starts");
    tokio.block_on(async { test(Runtime::real()).await })
}

//! The elector in memory keeps the port's promises, and the promises' tests can fail.

mod mutants;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use coordination::Elector;
use coordination::memory::{MemoryElector, MemoryOptions};
use coordination_conformance::Case;
use coordination_conformance::elector::Subject;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::support::{on_real, slow};

mod real {
    use super::*;

    coordination_conformance::elector_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
    }
}

/// Calls interleave as the seed says.
mod simulated {
    use super::*;

    coordination_conformance::elector_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&Memory::new(sim.outside(), slow())).await });
        }
    }
}

/// The elector in memory as a subject of the suite.
struct Memory {
    runtime: Runtime,
    options: MemoryOptions,
    electors: Mutex<BTreeMap<String, MemoryElector>>,
    wrap: Box<dyn Fn(MemoryElector) -> Arc<dyn Elector> + Send + Sync>,
}

impl Memory {
    fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let wrap = Box::new(|elector| Arc::new(elector) as Arc<dyn Elector>);
        Memory { runtime, options, electors: Mutex::default(), wrap }
    }

    /// Breaks every elector that is opened here.
    fn broken(self, wrap: impl Fn(MemoryElector) -> Arc<dyn Elector> + Send + Sync + 'static) -> Self {
        Memory { wrap: Box::new(wrap), ..self }
    }
}

impl Subject for Memory {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>> {
        async {
            let mut electors = self.electors.lock().expect("nothing panics in here");
            let new = || MemoryElector::new(self.runtime.clone(), self.options.clone());
            let elector = electors.entry(group.to_owned()).or_insert_with(new);
            (self.wrap)(elector.reopen(self.runtime.clone()))
        }
        .boxed()
    }
}

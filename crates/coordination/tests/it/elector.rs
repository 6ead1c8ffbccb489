//! Runs the conformance suite of electors on the elector in memory. Also tests that the suite detects deliberate bugs.

mod mutants;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use coordination_conformance::Case;
use coordination_conformance::elector::Subject;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reveille_coordination::Elector;
use reveille_coordination::memory::{MemoryElector, MemoryOptions};
use runtime::Runtime;

use crate::support::{slow, with_real_runtime};

mod real {
    use super::*;

    coordination_conformance::elector_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        with_real_runtime(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
    }
}

/// Runs the cases in a simulation. Its seed determines the interleaving of the calls.
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

/// Implementation of the suite's trait [`Subject`] for the elector in memory.
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

    /// Returns this subject with the function `wrap`, which adds a deliberate bug to each elector that the suite opens.
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
            let mut electors = self.electors.lock().expect("no code panics while it holds this mutex");
            let new = || MemoryElector::new(self.runtime.clone(), self.options.clone());
            let elector = electors.entry(group.to_owned()).or_insert_with(new);
            (self.wrap)(elector.reopen(self.runtime.clone()))
        }
        .boxed()
    }
}

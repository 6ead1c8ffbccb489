//! Runs the conformance suite on the engine in memory: in real time, and in simulations with delays and failing
//! requests.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus_conformance::{Case, Process, Subject};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

mod real {
    use super::*;

    bus_conformance::conformance_tests!(run);

    fn run(case: Case) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio.block_on(async { case.run(&Memory::new(Runtime::real(), MemoryOptions::default())).await });
    }
}

/// Runs the cases in simulations. The seed of a simulation determines the delays and the failing requests.
mod simulated {
    use super::*;

    bus_conformance::conformance_tests!(run);

    fn run(case: Case) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            let latency = Some(Duration::ZERO..=Duration::from_millis(8));
            let options = MemoryOptions { latency, ..MemoryOptions::default() };
            sim.run_until(async { case.run(&Memory::new(sim.outside(), options)).await });
        }
    }
}

struct Memory {
    runtime: Runtime,
    bus: MemoryBus,
}

impl Memory {
    fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        Memory { bus: MemoryBus::new(runtime.clone(), options), runtime }
    }
}

impl Subject for Memory {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        async { Arc::new(self.bus.reopen(self.runtime.clone())) as Arc<dyn Process> }.boxed()
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_millis(400)
    }
}

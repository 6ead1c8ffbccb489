//! Runs the conformance suite of electors on a real broker, and on the bus in memory in simulations.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use coordination::Elector;
use coordination::tree::NodePath;
use coordination_conformance::Case;
use coordination_conformance::elector::Subject;
use coordination_kafka::TopicElector;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::broker::{on_real, open};

/// Longest lease of the cases.
const LONG: Duration = Duration::from_secs(60);

mod kafka {
    use super::*;

    coordination_conformance::elector_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| {
            // All cases use one broker, so each case has groups of its own.
            let life = runtime.random();
            case.run(&Kafka { runtime, life }).await;
        });
    }

    struct Kafka {
        runtime: Runtime,
        life: u64,
    }

    impl Subject for Kafka {
        fn runtime(&self) -> Runtime {
            self.runtime.clone()
        }

        /// Members notice a change of their group up to a second later.
        fn lease(&self) -> Duration {
            Duration::from_secs(4)
        }

        fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>> {
            let group = format!("/{:x}/{group}", self.life);
            async move { open(&self.runtime, &group, LONG).await }.boxed()
        }
    }
}

/// Runs the cases in simulations. The seed of a simulation determines the delays.
mod simulated {
    use super::*;

    coordination_conformance::elector_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            let latency = Some(Duration::ZERO..=Duration::from_millis(8));
            let bus = MemoryBus::new(sim.outside(), MemoryOptions { latency, ..MemoryOptions::default() });
            sim.run_until(async { case.run(&Memory { runtime: sim.outside(), bus }).await });
        }
    }

    struct Memory {
        runtime: Runtime,
        bus: MemoryBus,
    }

    impl Subject for Memory {
        fn runtime(&self) -> Runtime {
            self.runtime.clone()
        }

        fn lease(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>> {
            async move {
                let bus = Arc::new(self.bus.reopen(self.runtime.clone()));
                let group = NodePath::new(&format!("/{group}")).unwrap();
                let elector = TopicElector::open(&self.runtime, bus, &group, LONG).await.unwrap();
                Arc::new(elector) as Arc<dyn Elector>
            }
            .boxed()
        }
    }
}

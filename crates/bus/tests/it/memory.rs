//! Runs the conformance suite on the engine in memory: in real time, and in simulations with delays and failing
//! requests.

use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, BusError, NewRecord, Offset, ProducerOptions, TopicName, TopicOptions};
use bus_conformance::{Case, Process, Subject};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join};
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

#[test]
fn delivery_timeout_begins_at_the_call_of_send() {
    let limit = Duration::from_secs(2);
    let sim = simulator::Simulation::new(0);
    sim.run_until(async {
        let bus = MemoryBus::new(sim.outside(), MemoryOptions::default());
        let topic = TopicName::new("orders").unwrap();
        bus.create_topic(&topic, TopicOptions::with_partitions(1)).await.unwrap();
        let options = ProducerOptions { delivery_timeout: limit, ..ProducerOptions::default() };
        let producer = bus.producer(options).await.unwrap();
        bus.cut(true);
        let began = sim.elapsed();
        let send = || producer.send(vec![NewRecord::new(&topic, "key", "value")]);
        let (first, second) = join(send(), send()).await;
        assert_eq!(sim.elapsed() - began, limit, "the second batch does not wait for longer");
        assert!([first, second].concat().iter().all(|outcome| matches!(outcome, Err(BusError::Disconnected(_)))));
        bus.cut(false);
        sim.sleep(limit).await;
        assert_eq!(bus.describe_topic(&topic).await.unwrap().offsets, [(Offset(0), Offset(0))]);
    });
}

//! Tests of the in-memory engine in its atomic and its weak form, and tests that the conformance suite detects bugs.

mod encrypting;
mod inbox;
mod memory;
mod mutants;
mod support;

use proptest::prelude::*;
use store::Store as _;
use store::memory::{MemoryOptions, MemoryStore};
use store_conformance::{Case, Subject, differential};

use support::{Memory, on_real, weak_and_slow};

mod atomic {
    use super::*;

    store_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
    }
}

/// Runs of the conformance suite with the weak in-memory engine. The engine may wait for random simulated times between
/// the steps of a call, so the seed determines how the steps of concurrent calls interleave.
mod weak {
    use super::*;

    store_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&Memory::new(sim.member("a"), weak_and_slow())).await });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_atomic_memory_stores_return_the_same_results(operations in differential::operations(30)) {
        agree(&operations, &MemoryOptions::default());
    }

    #[test]
    fn two_non_atomic_memory_stores_return_the_same_results(operations in differential::operations(30)) {
        agree(&operations, &MemoryOptions::weak());
    }
}

/// Compares two instances of the model. The model panics if an operation breaks a rule of the store port, so this
/// comparison also checks that the operations keep these rules.
fn agree(operations: &[differential::Operation], options: &MemoryOptions) {
    on_real(async |runtime| {
        let model = MemoryStore::new(runtime.clone(), options.clone());
        differential::compare(&Memory::new(runtime, options.clone()), &model, operations).await;
        assert_eq!(model.health(), store::Health::Ready);
    });
}

//! Tests of the in-memory engine in both forms, and tests that the suite detects bugs.

mod encrypting;
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

/// Runs of the weak engine. The seed determines how calls interleave, because their steps are separate in simulated
/// time.
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
    fn two_models_agree_atomic(operations in differential::operations(30)) {
        agree(&operations, &MemoryOptions::default());
    }

    #[test]
    fn two_models_agree_weak(operations in differential::operations(30)) {
        agree(&operations, &MemoryOptions::weak());
    }
}

/// Compares two models. This checks that the operations keep the port's rules, because the model panics if they do not.
fn agree(operations: &[differential::Operation], options: &MemoryOptions) {
    on_real(async |runtime| {
        let model = MemoryStore::new(runtime.clone(), options.clone());
        differential::compare(&Memory::new(runtime, options.clone()), &model, operations).await;
        assert_eq!(model.health(), store::Health::Ready);
    });
}

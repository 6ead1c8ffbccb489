//! The engine in memory keeps the port's promises, in both forms; and the promises' tests can fail.

mod memory;
mod mutants;
mod sealed;
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

/// Calls interleave as the seed says: their steps are apart in simulated time.
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

/// Which shows that the operations keep the port's rules (the model panics where they do not), and how to use them.
fn agree(operations: &[differential::Operation], options: &MemoryOptions) {
    on_real(async |runtime| {
        let model = MemoryStore::new(runtime.clone(), options.clone());
        differential::compare(&Memory::new(runtime, options.clone()), &model, operations).await;
        assert_eq!(model.health(), store::Health::Ready);
    });
}

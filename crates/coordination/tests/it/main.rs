//! The engine in memory keeps the port's promises, and a membership over it keeps its own; and the promises' tests can
//! fail.

mod membership;
mod mutants;
mod pitfalls;
mod recipes;
mod support;
mod tree;

use coordination::conformance::{Case, ElectorSubject};
use coordination::memory::MemoryOptions;
use support::{Memory, MemoryForest, on_real, slow};

mod real {
    use super::*;

    coordination::conformance_tests!(run);

    fn run(case: Case) {
        on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
    }

    mod electors {
        use super::*;

        coordination::elector_conformance_tests!(run);

        fn run(case: Case<dyn ElectorSubject>) {
            on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default())).await);
        }
    }

    mod on_a_tree {
        use super::*;

        coordination::conformance_tests!(run);

        fn run(case: Case) {
            on_real(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
        }
    }
}

/// Calls interleave as the seed says.
mod simulated {
    use super::*;

    coordination::conformance_tests!(run);

    fn run(case: Case) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&Memory::new(sim.outside(), slow())).await });
        }
    }

    mod electors {
        use super::*;

        coordination::elector_conformance_tests!(run);

        fn run(case: Case<dyn ElectorSubject>) {
            for seed in 0..8 {
                let sim = simulator::Simulation::new(seed);
                sim.run_until(async { case.run(&Memory::new(sim.outside(), slow())).await });
            }
        }
    }

    mod on_a_tree {
        use super::*;

        coordination::conformance_tests!(run);

        fn run(case: Case) {
            for seed in 0..8 {
                let sim = simulator::Simulation::new(seed);
                sim.run_until(async { case.run(&MemoryForest::new(sim.outside(), slow())).await });
            }
        }
    }
}

//! The recipes keep their promises on the tree in memory; and over many seeds of faults.

use coordination::conformance::{Case, tree::Subject};
use coordination::memory::MemoryOptions;

use crate::support::{MemoryForest, on_real, slow};

mod real {
    use super::*;

    coordination::recipe_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

/// Calls interleave as the seed says.
mod simulated {
    use super::*;

    coordination::recipe_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&MemoryForest::new(sim.outside(), slow())).await });
        }
    }
}

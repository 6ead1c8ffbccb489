//! Tests that the in-memory engine satisfies the contract of the port `Ownership`, and that a `Membership` that uses
//! this engine satisfies its own contract. Also tests that the conformance suite detects deliberate bugs in an engine.

mod mutants;
mod sessions;
mod support;

use membership::memory::EngineOptions;
use membership_conformance::Case;
use membership_conformance::Subject;
use support::{Memory, on_real, slow};

mod real {
    use super::*;

    membership_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&Memory::new(runtime, EngineOptions::default())).await);
    }
}

/// Runs the conformance suite in simulated time. The seed determines the order of concurrent calls.
mod simulated {
    use super::*;

    membership_conformance::conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&Memory::new(sim.outside(), slow())).await });
        }
    }
}

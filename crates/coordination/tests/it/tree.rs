//! The tree in memory keeps the port's promises, and the promises' tests can fail.

mod mutants;

use bytes::Bytes;
use coordination::memory::{MemoryOptions, MemoryTrees};
use coordination::tree::{Acl, CreateMode, NodePath, Sequence, SessionOptions, TreeError, Trees as _};
use coordination_conformance::Case;
use coordination_conformance::tree::{Subject, case};

use crate::support::{MemoryForest, on_real, slow};

#[test]
fn after_the_last_number_comes_the_least() {
    on_real(async |runtime| {
        let trees = MemoryTrees::new(runtime, MemoryOptions::default());
        let tree = trees.open(SessionOptions::default()).await.unwrap();
        trees.set_sequence(&NodePath::root(), i32::MAX);
        let path = NodePath::new("/n-").unwrap();
        let mut names = Vec::new();
        for _ in 0..2 {
            let made = tree.create(&path, Bytes::new(), CreateMode::PersistentSequential, Acl::Open).await.unwrap();
            names.push(made.path.name().to_owned());
        }
        assert_eq!(names, ["n-2147483647", "n--2147483648"]);
        let numbers = names.iter().map(|name| Sequence::after(name, "n-"));
        assert!(numbers.eq([Some(Sequence(i32::MAX)), Some(Sequence(i32::MIN))]));
    });
}

#[test]
fn a_session_that_the_engine_has_ended_finds_out_with_its_next_call() {
    on_real(async |runtime| {
        let trees = MemoryTrees::new(runtime, MemoryOptions::default());
        let (tree, other) = (
            trees.open(SessionOptions::default()).await.unwrap(),
            trees.open(SessionOptions::default()).await.unwrap(),
        );
        let path = NodePath::new("/mine").unwrap();
        tree.create(&path, Bytes::new(), CreateMode::Ephemeral, Acl::Open).await.unwrap();
        trees.expire(tree.session().id());
        assert_eq!(other.exists(&path).await, Ok(None));
        assert_eq!(tree.exists(&path).await, Err(TreeError::SessionLost));
        assert!(tree.session().state().borrow().is_lost());
    });
}

mod real {
    use super::*;

    coordination_conformance::tree_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

mod load {
    use super::*;

    coordination_conformance::load_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

/// Calls interleave as the seed says.
mod simulated {
    use super::*;

    coordination_conformance::tree_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = simulator::Simulation::new(seed);
            sim.run_until(async { case.run(&MemoryForest::new(sim.outside(), slow())).await });
        }
    }
}

/// What was not answered was done as often as not.
#[test]
fn histories_have_one_order_though_calls_fail() {
    for seed in 0..20 {
        let sim = simulator::Simulation::new(seed);
        let options = MemoryOptions { fail_one_in: Some(8), ..slow() };
        sim.run_until(async {
            let forest = MemoryForest::new(sim.outside(), options);
            case("what_is_cut_off_and_lost_is_answered_in_one_order").run(&forest).await;
        });
    }
}

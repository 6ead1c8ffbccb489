//! Runs the conformance suite of trees on the tree in memory. Also tests that the suite detects deliberate bugs.

mod mutants;

use bytes::Bytes;
use coordination_conformance::Case;
use coordination_conformance::tree::{Subject, case};
use reveille_coordination::memory::{MemoryOptions, MemoryTrees};
use reveille_coordination::tree::{Acl, CreateMode, NodePath, Sequence, SessionOptions, TreeError, Trees as _};

use crate::support::{MemoryForest, slow, with_real_runtime};

#[test]
fn smallest_sequence_number_follows_the_largest_after_overflow() {
    with_real_runtime(async |runtime| {
        let trees = MemoryTrees::new(runtime, MemoryOptions::default());
        let tree = trees.open(SessionOptions::default()).await.unwrap();
        trees.set_sequence(&NodePath::root(), i32::MAX);
        let path = NodePath::new("/n-").unwrap();
        let mut names = Vec::new();
        for _ in 0..2 {
            let created = tree.create(&path, Bytes::new(), CreateMode::PersistentSequential, Acl::Open).await.unwrap();
            names.push(created.path.name().to_owned());
        }
        assert_eq!(names, ["n-2147483647", "n--2147483648"]);
        let numbers = names.iter().map(|name| Sequence::after(name, "n-"));
        assert!(numbers.eq([Some(Sequence(i32::MAX)), Some(Sequence(i32::MIN))]));
    });
}

#[test]
fn client_detects_an_expired_session_at_its_next_call() {
    with_real_runtime(async |runtime| {
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
        with_real_runtime(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

mod load {
    use super::*;

    coordination_conformance::load_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        with_real_runtime(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

/// Runs the cases in a simulation. Its seed determines the interleaving of the calls.
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

/// If a call gets no response, the engine has executed the call in about half of the cases.
#[test]
fn calls_are_linearizable_when_some_calls_fail() {
    for seed in 0..20 {
        let sim = simulator::Simulation::new(seed);
        let options = MemoryOptions { fail_one_in: Some(8), ..slow() };
        sim.run_until(async {
            let forest = MemoryForest::new(sim.outside(), options);
            case("calls_with_cuts_and_lost_sessions_are_linearizable").run(&forest).await;
        });
    }
}

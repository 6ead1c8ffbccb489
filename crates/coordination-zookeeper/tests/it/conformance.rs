//! The tree on ZooKeeper keeps the port's promises, on one server and on an ensemble of three.

use coordination::conformance::{Case, tree::Subject};
use engines::zookeeper::{self, Zookeeper};

use crate::support::{Forest, ensemble, on_real};

fn try_out(servers: &'static Zookeeper, case: Case<dyn Subject>) {
    on_real(async |runtime| case.run(&Forest::new(runtime, servers)).await);
}

mod one {
    use super::*;

    coordination::tree_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        try_out(zookeeper::shared(), case);
    }
}

mod three {
    use super::*;

    coordination::tree_conformance_tests!(run);

    mod recipes {
        coordination::recipe_conformance_tests!(super::run);
    }

    fn run(case: Case<dyn Subject>) {
        try_out(ensemble(), case);
    }
}

/// Members and claims on an ensemble.
mod ownership {
    use super::*;

    coordination::conformance_tests!(run);

    fn run(case: Case<dyn coordination::conformance::Subject>) {
        on_real(async |runtime| case.run(&Forest::new(runtime, ensemble())).await);
    }
}

//! The tree on ZooKeeper keeps the port's promises, on one server and on an ensemble of three.

use coordination_conformance::Case;
use coordination_conformance::tree::Subject;
use test_servers::zookeeper::{self, Zookeeper};

use crate::support::{Forest, MortalForest, ensemble, on_real};

fn try_out(servers: &'static Zookeeper, case: Case<dyn Subject>) {
    on_real(async |runtime| case.run(&Forest::new(runtime, servers)).await);
}

mod one {
    use super::*;

    coordination_conformance::tree_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        try_out(zookeeper::shared(), case);
    }
}

mod three {
    use super::*;

    coordination_conformance::tree_conformance_tests!(run);

    mod recipes {
        coordination_conformance::recipe_conformance_tests!(super::run);
    }

    mod load {
        use super::*;

        coordination_conformance::load_conformance_tests!(run);

        fn run(case: Case<dyn Subject>) {
            on_real(async |runtime| case.run(&Forest::with_short_paths(runtime, ensemble())).await);
        }
    }

    fn run(case: Case<dyn Subject>) {
        try_out(ensemble(), case);
    }

    #[test]
    fn what_is_cut_off_and_goes_on_at_another_server_is_answered_in_one_order() {
        on_real(async |runtime| {
            let case = case("what_is_cut_off_and_lost_is_answered_in_one_order");
            case.run(&Forest::new(runtime, ensemble()).roaming()).await;
        });
    }

    #[test]
    fn what_is_asked_while_leaders_die_is_answered_in_one_order() {
        on_real(async |runtime| {
            let (case, forest) =
                (case("what_is_cut_off_and_lost_is_answered_in_one_order"), MortalForest::new(runtime));
            case.run(&forest).await;
            assert!(forest.deaths() > 0);
        });
    }
}

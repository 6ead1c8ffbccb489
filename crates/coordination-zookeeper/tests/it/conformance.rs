//! Runs the conformance suite of the tree on ZooKeeper, with one server and with an ensemble of three servers.

use coordination_conformance::Case;
use coordination_conformance::tree::Subject;
use test_servers::zookeeper::{self, Zookeeper};

use crate::support::{Forest, MortalForest, ensemble, with_real_runtime};

fn run_on(servers: &'static Zookeeper, case: Case<dyn Subject>) {
    with_real_runtime(async |runtime| case.run(&Forest::new(runtime, servers)).await);
}

mod one {
    use super::*;

    coordination_conformance::tree_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        run_on(zookeeper::shared(), case);
    }
}

/// Cases that show that the engine connects, reconnects and checks access over TLS with an authenticated user.
mod secure {
    use super::*;

    macro_rules! cases {
        ($case:path; $($name:ident)*) => { $(
            #[test]
            fn $name() {
                with_real_runtime(async |runtime| $case(stringify!($name)).run(&Forest::secure(runtime)).await);
            }
        )* };
    }

    cases! { coordination_conformance::tree::case;
        node_is_read_as_created
        failed_multi_changes_nothing_and_names_its_step
        ephemeral_remains_while_its_process_lives
        data_watch_fires_on_set_and_delete
        events_below_a_node_arrive_in_order
        creators_node_is_closed_to_others
        readable_node_is_changed_only_by_its_creator
        creator_access_requires_credentials
        access_list_is_returned_as_created
        random_changes_match_the_in_memory_engine
        calls_with_cuts_and_lost_sessions_are_linearizable
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
            with_real_runtime(async |runtime| case.run(&Forest::with_short_paths(runtime, ensemble())).await);
        }
    }

    fn run(case: Case<dyn Subject>) {
        run_on(ensemble(), case);
    }

    #[test]
    fn calls_are_linearizable_when_sessions_change_servers() {
        with_real_runtime(async |runtime| {
            let case = case("calls_with_cuts_and_lost_sessions_are_linearizable");
            case.run(&Forest::new(runtime, ensemble()).roaming()).await;
        });
    }

    #[test]
    fn calls_are_linearizable_when_zookeeper_leaders_die() {
        with_real_runtime(async |runtime| {
            let (case, forest) =
                (case("calls_with_cuts_and_lost_sessions_are_linearizable"), MortalForest::new(runtime));
            case.run(&forest).await;
            assert!(forest.deaths() > 0);
        });
    }
}

//! The suite, each case in a database of its own.

use coordination::conformance::{Case, ElectorSubject};

use crate::support::{Subjected, database, on_real};

coordination::conformance_tests!(run);

fn run(case: Case) {
    let url = database();
    on_real(async |runtime| case.run(&Subjected { runtime, url }).await);
}

mod electors {
    use super::*;

    coordination::elector_conformance_tests!(run);

    fn run(case: Case<dyn ElectorSubject>) {
        let url = database();
        on_real(async |runtime| case.run(&Subjected { runtime, url }).await);
    }
}

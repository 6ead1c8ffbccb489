//! The suite, each case in a database of its own.

use membership_conformance::{Case, Subject};

use crate::support::{Subjected, database, on_real};

membership_conformance::conformance_tests!(run);

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| case.run(&Subjected { runtime, url }).await);
}

//! Conformance suite of the port `Ownership`, run on the PostgreSQL engine. Each case has its own database.

use membership_conformance::{Case, Subject};

use crate::support::{TestEngine, database, on_real};

membership_conformance::conformance_tests!(run);

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| case.run(&TestEngine { runtime, url }).await);
}

//! Conformance suite of the port `Ownership`, with one test for each promise of the port. Every engine runs these tests
//! against its real server. The crate `conformance` describes how an engine runs a suite.
//!
//! A case about the end of a lease waits until the lease ends, which takes a fraction of a second.

mod fixtures;
mod ownership;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use membership::Ownership;
use runtime::Runtime;

pub use conformance::Case;

/// Engine under test. It has no members at the start of each case.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// Length of the leases that end during the cases. The length is short, because a case waits for the end of several
    /// such leases. It is long enough for renewals on a busy machine: a member renews its session after every quarter
    /// of this time, and each renewal must arrive before the lease ends.
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Returns whether a renewal may request a longer lease than the join did.
    fn leases_may_grow(&self) -> bool {
        true
    }

    /// Opens another connection to the engine, as another process would. All processes see the same members and claims.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>>;
}

conformance::suite! { $ dyn Subject, conformance_tests, [$crate];
    ownership {
        view_shows_members_as_they_joined
        repeated_join_renews_the_session
        repeated_join_updates_the_member
        member_with_a_too_long_text_is_rejected
        claim_has_one_holder
        concurrent_claims_give_each_name_one_holder
        repeated_claim_by_its_holder_is_granted
        similar_claim_names_are_distinct
        claim_batch_returns_all_results_in_order
        empty_claim_batch_is_accepted
        released_claim_is_free
        release_of_another_members_claim_has_no_effect
        leave_frees_all_claims_of_the_member
        claims_become_free_exactly_when_the_lease_ends
        renewal_extends_the_session
        ended_session_is_lost_for_all_calls
        renewal_and_claim_at_the_end_of_a_lease_are_consistent
        view_shows_only_live_members
        view_contains_the_end_of_the_first_session
        renewal_returns_the_engines_clock
        change_wakes_waiting_processes
    }
}

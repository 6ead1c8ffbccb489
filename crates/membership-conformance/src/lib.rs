//! What every engine of the port `Ownership` must do: one test per promise, run by each engine against its real server.
//! See the crate `conformance` for how an engine runs a suite.
//!
//! Cases about the end of a lease wait for it, a fraction of a second.

mod ownership;
mod scene;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use membership::Ownership;
use runtime::Runtime;

pub use conformance::Case;

/// One engine, empty at first.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// A lease whose end is waited for, several times in a case. A renewal every quarter of it must come in time, on a
    /// busy machine, too.
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Whether a renewal may ask for a longer lease than the join did.
    fn leases_may_grow(&self) -> bool {
        true
    }

    /// Opens the engine as another process does: all see the same members and claims.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>>;
}

conformance::suite! { $ dyn Subject, conformance_tests, [$crate];
    ownership {
        a_member_is_seen_as_it_joined
        a_join_made_again_is_a_renewal
        a_join_made_again_tells_what_is_new_of_its_member
        a_member_with_a_text_that_is_too_long_is_refused
        a_claim_has_one_holder
        of_those_who_claim_at_once_one_holds_each_name
        an_own_claim_is_granted_again
        names_are_apart
        a_batch_is_answered_in_order_and_whole
        an_empty_batch_is_answered
        a_released_claim_is_free
        a_release_of_anothers_claim_does_nothing
        claims_go_with_those_who_leave
        claims_go_at_the_end_of_the_lease_and_not_before
        a_renewed_session_lives_on
        an_ended_session_is_lost_for_all_calls
        a_renewal_and_a_claim_at_the_end_of_a_lease_agree
        the_view_shows_the_living_only
        the_view_tells_when_the_first_session_ends
        the_engines_clock_is_told
        who_waits_for_a_change_is_woken
    }
}

//! What every engine must do: one test per promise of the port, run by each engine against the real thing.
//!
//! An engine implements [`Subject`] and writes, in its own tests,
//!
//! ```text
//! coordination::conformance_tests!(run);
//!
//! fn run(case: coordination::conformance::Case) {
//!     executor.block_on(async { case.run(&MySubject::new()).await })
//! }
//! ```
//!
//! which makes a `#[test]` of every case. Cases that have several calls under way poll them together, from one task;
//! those about the end of a lease wait for it, a fraction of a second.

mod between;
mod history;
mod ownership;
mod scene;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use runtime::Runtime;

use crate::{Elector, Ownership};

/// One engine, empty at first.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// One whose end is waited for, several times in a case. A renewal every quarter of it must come in time, on a busy
    /// machine, too.
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Whether a renewal may ask for a longer lease than the join did.
    fn leases_may_grow(&self) -> bool {
        true
    }

    /// As another process opens it: all see the same members and claims.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>>;
}

/// An engine of electors, with no group that has replicas.
pub trait ElectorSubject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// As that of [`Subject`].
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// As another process opens the elector of this group.
    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>>;
}

/// One promise of an engine that is an `S`.
pub struct Case<S: ?Sized + 'static = dyn Subject> {
    /// As a sentence, words joined by `_`.
    pub name: &'static str,
    body: for<'a> fn(&'a S) -> LocalBoxFuture<'a, ()>,
}

impl<S: ?Sized> Clone for Case<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: ?Sized> Copy for Case<S> {}

impl<S: ?Sized> Case<S> {
    /// Runs the case on a subject of its own.
    ///
    /// # Panics
    /// If the promise is broken.
    pub async fn run(&self, subject: &S) {
        (self.body)(subject).await;
    }

    /// The case of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn named(cases: &[Case<S>], name: &str) -> Self {
        *cases.iter().find(|case| case.name == name).expect("the case's name comes from the suite's macro")
    }
}

// One list makes the table and the tests, so that no case is in one and not in the other. `$dollar` is a `$`, for the
// macro that this macro makes.
macro_rules! suite {
    ($dollar:tt $subject:ty, $tests:ident, [$($cases:tt)+]; $($module:ident { $($name:ident)* })*) => {
        /// Every promise.
        pub const CASES: &[Case<$subject>] = &[
            $($(Case { name: stringify!($name), body: |subject| Box::pin($module::$name(subject)) },)*)*
        ];

        /// A `#[test]` of every case of this suite, each of which calls the function given with the
        /// [`Case`](crate::conformance::Case).
        #[macro_export]
        macro_rules! $tests {
            ($dollar run:path) => {
                use $dollar crate::$($cases)+::CASES;
                $($(
                    #[test]
                    fn $name() {
                        let case = $dollar crate::conformance::Case::named(CASES, stringify!($name));
                        $dollar run(case);
                    }
                )*)*
            };
        }
    };
}

suite! { $ dyn Subject, conformance_tests, [conformance];
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

// After the macro that they use.
pub mod elector;
pub mod load;
pub mod recipes;
pub mod tree;

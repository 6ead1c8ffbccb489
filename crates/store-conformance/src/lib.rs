//! The promises of the store port: one test per promise, which every engine runs against its real server. See the crate
//! `conformance` for how an engine runs a suite. [`differential`] is apart: it compares an engine with the model in memory.
//!
//! The suite does not know whether an engine is atomic. Where the port leaves a choice, a case follows the engine's answer
//! ([`store::Placed::settled`], [`store::Marked::applied`]) and holds the engine to it.

mod changes;
mod creating;
pub mod differential;
mod durable;
mod gaps;
mod listing;
mod ownership;
mod reading;
mod scene;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use store::Store;

pub use conformance::Case;

/// A place for one store, empty at first.
pub trait Subject: Send + Sync {
    /// The store that is there. Called again only after [`Subject::close`].
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Closes the store, which no one else holds; what it keeps stays there.
    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()>;
}

conformance::suite! { $ dyn Subject, conformance_tests, [$crate];
    creating {
        what_is_inserted_is_read_by_name_and_by_incarnation
        every_field_and_every_byte_of_a_schedule_is_kept
        a_due_row_and_an_arrival_come_with_the_schedule
        a_chosen_id_is_given_once
        of_two_inserts_of_one_id_in_a_batch_the_first_wins
        of_calls_at_once_one_takes_a_chosen_id
        an_insert_made_again_is_told_that_it_exists
        an_ended_schedule_keeps_its_id
        a_cancelled_id_can_be_taken_again
        a_chosen_id_in_the_form_of_a_made_one_is_only_a_name
        tenants_are_apart
        a_batch_of_ten_thousand_is_answered_in_order
        an_empty_batch_is_answered
        tenants_are_kept_and_replaced
        a_tenant_is_changed_by_who_knows_its_last_version
        changes_of_tenants_are_told_in_order
    }
    gaps {
        a_creator_behind_closed_is_moved_or_can_see_it
        a_creator_or_the_owner_sees_the_other
        a_row_written_twice_is_one_row
        a_row_placed_again_is_found_at_its_new_position
        arrivals_are_told_by_shard_and_in_pieces
        no_arrival_is_lost_under_a_moving_cursor
        a_mark_is_applied_or_told_to_the_owner
        a_mark_told_again_spares_the_next_incarnation
        a_mark_without_work_is_not_told
        marks_are_kept_until_their_cursor_is_presented
    }
    ownership {
        terms_rise
        an_older_term_is_refused_for_every_change
        a_write_and_a_take_at_once_agree_on_the_outcome
        a_refused_item_leaves_the_others_alone
        what_is_in_flight_is_handed_over_under_a_term
    }
    changes {
        a_put_makes_what_is_not_there
        a_put_replaces_what_is_live
        a_put_revives_what_has_ended
        a_put_over_a_cancelled_id_makes_a_new_incarnation
        a_put_behind_closed_says_where_its_row_is
        a_put_if_nothing_is_there_makes_an_id_only_once
        a_put_if_nothing_has_changed_replaces_what_was_seen
        of_puts_at_once_that_saw_the_same_one_takes_effect
        a_put_and_a_cancel_at_once_agree_on_what_was_there
        a_cancel_of_an_edition_spares_every_other
        a_cancel_takes_effect_once
        a_retry_is_due_when_its_run_is_booked
        an_occurrence_has_one_final_outcome
        a_run_is_kept_exactly
        a_run_ends_its_own_revision_only
        an_advance_moves_a_live_schedule_only
        an_end_keeps_the_revision
        a_deferred_row_is_due_again_later
        a_dead_letter_is_redriven_once
        positions_never_go_back
        items_of_a_batch_take_effect_in_order
        a_batch_of_ten_thousand_outcomes_is_booked
    }
    reading {
        due_rows_come_in_key_order_between_their_bounds
        a_due_page_says_where_the_next_row_is
        an_instant_with_many_rows_is_read_in_pages
        due_reads_of_several_pollers_are_answered_in_order
        rows_after_done_stay
        runs_are_read_in_pages
        dead_letters_are_read_in_pages
        only_a_failed_run_is_a_dead_letter
    }
    listing {
        schedules_are_listed_in_the_order_of_their_making
        schedules_are_listed_by_their_state
        schedules_are_listed_by_a_label
        schedules_are_listed_by_what_is_due
        an_id_that_is_taken_again_is_listed_once
        a_listing_misses_and_doubles_nothing_while_others_come_and_go
    }
    durable {
        everything_is_there_after_a_reopen
        a_reopened_store_goes_on_where_it_was
        marks_outlive_a_reopen
    }
}

//! Conformance suite of the store port. The suite has one case for each promise of the port. The tests of every engine
//! run the suite against the real engine. The crate `conformance` describes how an engine runs a suite. The separate
//! module [`differential`] compares an engine with the in-memory model. The module [`inbox`] contains the suite of the
//! inbox port.
//!
//! The suite does not know whether an engine is atomic. If the port allows several results, a case accepts the engine's
//! result ([`store::Placed::settled`], [`store::CancellationResult::applied`]) and checks that the engine's later
//! behaviour matches the result.
//!
//! docs/decisions/0030-test-every-engine-with-one-suite.md gives the reasons for the design.

mod auditing;
mod changes;
mod counting;
mod creating;
pub mod differential;
mod durable;
mod explaining;
mod fixture;
mod gaps;
pub mod inbox;
mod listing;
mod ownership;
mod past_timings;
mod positions;
mod reading;
mod run_listing;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use store::Store;

pub use conformance::Case;

/// Subject of the suite: it opens and closes one store of an engine. The store is empty at first.
pub trait Subject: Send + Sync {
    /// Opens the store. The suite calls this method again only after [`Subject::close`].
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Closes the store and keeps its data. The caller has dropped all other handles of the store.
    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()>;
}

conformance::suite! { $ dyn Subject, conformance_tests, [$crate];
    creating {
        inserted_schedule_is_read_by_name_and_incarnation
        every_field_of_a_schedule_is_preserved
        insert_writes_due_row_and_insert_log_entry
        chosen_id_is_assigned_once
        first_insert_of_an_id_in_a_batch_wins
        one_of_several_concurrent_calls_takes_an_id
        repeated_insert_returns_exists
        ended_schedule_keeps_its_id
        id_of_cancelled_schedule_can_be_taken
        chosen_id_in_server_made_form_is_only_a_name
        tenants_are_isolated
        results_of_10000_inserts_are_in_order
        empty_batch_returns_empty_result
        tenants_are_stored_and_replaced
        tenant_change_requires_the_latest_version
        audit_log_lists_tenant_changes_in_order
        usage_follows_schedules_and_runs
    }
    gaps {
        row_behind_closed_is_moved_or_reported
        creator_or_owner_observes_the_other
        row_written_twice_exists_once
        row_placed_again_has_its_new_position
        insert_log_is_read_by_shard_in_pages
        moving_cursor_loses_no_insert_log_entry
        cancellation_record_is_applied_or_returned
        repeated_cancellation_spares_next_incarnation
        cancellation_record_without_effect_is_omitted
        cancellation_records_stay_until_cursor_is_presented
    }
    ownership {
        every_take_of_a_shard_returns_a_higher_term
        older_term_is_rejected_for_every_change
        concurrent_write_and_take_agree_on_the_result
        rejected_item_does_not_affect_other_items
        attempts_in_flight_are_handed_over_under_a_term
    }
    changes {
        put_creates_a_missing_schedule
        put_replaces_an_active_schedule
        put_reactivates_an_ended_schedule
        put_over_a_cancelled_id_creates_an_incarnation
        put_behind_closed_returns_its_row_position
        put_if_absent_creates_an_id_only_once
        put_if_unchanged_replaces_the_expected_version
        one_of_two_concurrent_conditional_puts_succeeds
        concurrent_put_and_cancel_agree_on_the_result
        conditional_cancel_spares_other_versions
        cancel_takes_effect_once
        retry_row_is_due_when_its_run_is_written
        occurrence_has_one_final_outcome
        run_is_stored_exactly
        run_ends_only_its_own_revision
        advance_moves_only_an_active_schedule
        end_keeps_the_revision
        deferred_row_is_due_at_its_later_position
        dead_letter_is_redriven_once
        items_of_a_batch_take_effect_in_order
        batch_of_10000_outcomes_is_written
    }
    positions {
        positions_never_decrease
        reopened_poller_keeps_its_new_rows
        creator_observes_that_a_poller_was_reopened
    }
    reading {
        due_rows_are_in_key_order_within_bounds
        due_page_returns_position_of_the_next_row
        instant_with_many_rows_is_read_in_pages
        due_pages_are_in_the_order_of_the_reads
        rows_after_done_stay
        runs_are_read_in_pages
        dead_letters_are_read_in_pages
        only_a_failed_run_is_a_dead_letter
    }
    listing {
        schedules_are_listed_in_creation_order
        schedules_are_listed_by_state
        schedules_are_listed_by_a_label
        schedules_are_listed_by_due_time
        schedules_are_listed_in_order_of_ids
        chosen_ids_are_read_in_pages
        reused_id_is_listed_once
        listing_is_complete_during_concurrent_changes
    }
    run_listing {
        runs_are_listed_by_time
        runs_are_listed_by_state_status_and_lateness
        retried_run_is_listed_in_its_new_state
        runs_with_the_same_instant_are_listed
        runs_are_listed_by_schedule_label_and_host
        page_of_runs_is_bounded
        listing_of_runs_is_complete_during_changes
    }
    counting {
        counts_equal_a_scan_of_the_runs
        concurrent_outcomes_of_an_hour_are_all_counted
        report_adds_up_the_hours_of_its_range
    }
    past_timings {
        replaced_revision_leaves_its_timing
        cancelled_revision_leaves_its_timing_and_author
        past_timings_are_read_from_a_revision
        past_timings_survive_a_reopen_and_count_as_bytes
    }
    explaining {
        each_cause_is_explained_from_the_rows_of_the_store
    }
    auditing {
        audit_names_1000_planted_faults_and_no_other
        audit_compares_runs_of_several_pages
    }
    durable {
        data_survives_a_reopen
        reencrypted_headers_change_nothing_else
        reopened_store_continues_from_its_state
        cancellation_records_survive_a_reopen
    }
}

//! Conformance suite of the port `bus`. It has one test per promise, and every engine runs the tests against its real
//! server. The crate `conformance` describes how an engine runs a suite.
//!
//! A case about the end of a session waits until the session ends.

#![expect(clippy::unwrap_used, reason = "a case of a suite fails like a test")]

mod admin;
mod fixtures;
mod groups;
mod positions;
mod readers;
mod records;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use bus::Admin;
use bus::memory::MemoryBus;
use futures_util::future::BoxFuture;
use runtime::Runtime;

/// Engine under test. Other cases may use the same servers, so each case creates topics and groups with new names.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// Opens the bus for another process.
    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>>;

    /// Timeout of a session that ends while a case runs. A process on a busy machine must keep a session with this
    /// timeout.
    fn session_timeout(&self) -> Duration;
}

/// Bus of a process whose connection a case can cut.
pub trait Process: Admin {
    /// Cuts or restores the connection.
    fn cut(&self, is_cut: bool);
    /// Loses all responses until the case restores the connection.
    fn cut_answers(&self);
}

impl Process for MemoryBus {
    fn cut(&self, is_cut: bool) {
        MemoryBus::cut(self, is_cut);
    }

    fn cut_answers(&self) {
        MemoryBus::cut_answers(self);
    }
}

/// Case of this suite.
pub type Case = conformance::Case<dyn Subject>;

conformance::suite! { $ dyn Subject, conformance_tests, [$crate];
    topics {
        created_topic_has_its_partitions
        topic_cannot_be_created_twice
        topic_without_partitions_is_rejected
        request_for_an_unknown_topic_names_the_topic
        grown_topic_keeps_its_records
        topic_cannot_shrink
    }
    records {
        consumer_receives_all_fields_of_a_record
        partition_keeps_the_order_of_concurrent_sends
        key_determines_the_partition
        producer_can_name_the_partition
        records_without_a_key_reach_every_partition
        too_large_record_is_rejected_without_the_rest_of_its_batch
        record_is_stored_once_if_its_acknowledgement_is_lost
        producer_reports_records_without_an_acknowledgement_in_time
        closed_producer_has_sent_its_records_and_rejects_others
    }
    groups {
        members_share_the_partitions
        each_group_receives_all_records
        members_own_only_partitions_of_their_topics
        new_partitions_of_a_grown_topic_are_assigned
        revoked_partition_moves_only_after_its_release
        revoked_partition_moves_at_its_deadline
        revoked_partition_delivers_no_records
        partitions_of_a_closed_consumer_move_at_once
        member_without_contact_loses_its_partitions_before_they_move
        member_with_a_new_session_owns_partitions_again
        closed_consumer_has_no_events
    }
    positions {
        next_owner_starts_at_the_committed_offset
        group_without_a_commit_starts_where_its_options_say
        former_owner_cannot_commit
        owner_can_commit_during_a_revocation
        commit_with_too_large_metadata_is_rejected
        metadata_of_the_largest_size_is_stored
        paused_partition_delivers_no_records
        partition_can_be_paused_before_its_first_record
        assignment_ends_a_pause
        seek_moves_the_position
        batch_has_at_most_the_requested_number_of_records
    }
    readers {
        reader_receives_all_records_and_then_new_ones
        reader_continues_after_a_lost_connection
        reader_of_an_unknown_topic_is_rejected
    }
    admin {
        topics_are_listed_in_ascending_order
        stored_ends_are_after_the_last_records
        records_are_found_only_before_the_end
        groups_with_members_or_commits_are_listed_in_ascending_order
        group_names_its_members_and_their_partitions
        group_is_rebalancing_until_each_member_responds
        committed_offsets_remain_after_the_members_left
        member_without_contact_leaves_the_description_of_its_group
        closed_member_without_partitions_leaves_its_group
        description_of_an_unknown_group_is_empty
        name_of_a_member_with_a_nul_is_rejected
    }
}

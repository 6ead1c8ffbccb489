//! Cases that every recipe must pass on every engine. The prefixes `a1` to `a8` of case names refer to the criteria for
//! leaders and locks in `coordination/tests/faults`. An engine that implements the tree's
//! [`Subject`](super::tree::Subject) invokes `coordination_conformance::recipe_conformance_tests!(run);` in its tests.

mod bags;
mod barriers;
mod configs;
mod electors;
mod failures;
mod faults;
mod foreign_nodes;
mod groups;
mod locks;
mod lost_responses;
mod queues;
mod races;
mod roles;
mod selectors;
mod sequences;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};

use super::tree::{Process, Subject};
use coordination::recipes::{Candidate, Client, Held, Layout, LeaderSelector, Lock, Trust};
use coordination::tree::{
    Acl, Counted, Credentials, Expected, NodePath, Sequence, SessionOptions, SessionState, Tree, TreeError, Trees,
};

pub use self::sequences::locks_and_bags_keep_their_order_when_sequence_numbers_overflow;

conformance::suite! { $ dyn Subject, recipe_conformance_tests, [$crate::recipes];
    locks {
        lock_has_one_holder_in_the_order_of_the_requests
        bounded_acquisitions_end_without_the_lock
        dropped_guard_releases_the_lock
        release_without_a_response_ends_in_time_and_continues_in_the_background
        dropped_acquisition_leaves_no_node
        guard_ends_when_its_node_is_deleted
        fence_rejects_late_writes
        a2_terms_rise_across_deletions_of_the_path
        a5_requests_of_a_hand_over_do_not_depend_on_waiters
        unauthenticated_sessions_cannot_interfere
        closed_lock_is_rejected_without_credentials
        foreign_names_in_a_line_are_ignored
        waiting_process_rejoins_a_deleted_line
        late_release_does_not_end_a_later_guard
    }
    selectors {
        candidates_lead_in_the_order_of_the_line
        a7_former_leader_rejoins_at_the_end_of_the_line
        a7_candidate_with_a_lost_session_rejoins_at_the_end
        leadership_handle_ends_with_its_task
        task_is_notified_of_the_end_and_dropped_after_the_grace
        stop_ends_the_task_and_the_candidacy
        follower_of_the_leader_sees_each_leader_with_its_term
        waiting_candidates_cause_no_requests_of_a_leader_follower
        places_have_curators_layout
    }
    queues {
        queue_is_led_in_the_order_of_joining
        candidate_with_a_deleted_node_is_out
        spare_capacity_is_reported
        a4_lost_response_leaves_no_extra_candidate
        readers_share_the_lock_and_writers_exclude_others
        semaphore_limits_the_number_of_leases
    }
    barriers {
        closed_barrier_blocks_until_it_is_opened
        double_barrier_synchronizes_entering_and_leaving
        slow_leaver_does_not_block_the_next_round
        leftover_ready_node_does_not_open_the_barrier
        concurrent_increments_are_all_counted
        node_that_is_not_a_counter_is_reported
    }
    bags {
        bag_numbers_are_never_reused
        items_and_tokens_have_petting_zoos_layout
        listener_receives_each_change_exactly_once
        own_items_end_with_their_session_and_are_reported
        listener_continues_in_another_session
        recreated_bag_is_reported_completely
    }
    roles {
        each_job_has_one_holder_and_each_holder_one_job
        waiting_applicant_gets_a_job_that_is_later_withdrawn
        job_of_a_dead_holder_is_reassigned
        dropped_application_leaves_no_holder
        fence_of_a_job_is_valid_only_for_its_holder
        job_is_held_since_its_holder_took_it
    }
    groups {
        members_join_and_leave
        member_rejoins_after_a_lost_session
        taken_name_is_reported_and_obtained_once_free
        follower_shows_current_children_after_recreations
        ensured_path_has_all_parents_and_persists
    }
    configs {
        instance_values_override_service_values
        invalid_configuration_is_reported_and_the_last_one_kept
        follower_never_receives_an_older_configuration
        instances_are_found_while_they_are_alive
        picks_spread_and_move_when_their_instance_ends
        damaged_instances_show_their_problem_and_rewrites_cause_no_gap
    }
    electors {
        replicas_lead_one_after_another
        departures_are_reported_only_to_the_leader
        replica_rejoins_after_a_lost_session
        followed_leader_is_the_replica_that_leads
        unsupported_lease_or_name_is_rejected
    }
    faults {
        a1_a3_guard_of_a_dead_leader_ends_before_the_next_leads
        a4_lost_response_leaves_no_extra_place
        a6_waiting_process_continues_after_a_lost_session
        wait_continues_after_a_lost_connection
        short_cut_ends_only_guards_trusted_until_suspended
        client_waits_for_an_engine_that_starts_later
    }
    lost_responses {
        a4_place_with_a_lost_response_is_found
        a4_abandoned_place_without_a_response_is_removed
        a4_member_with_a_lost_response_is_found
        a4_job_with_a_lost_response_is_obtained
    }
    races {
        event_during_an_acquisition_is_not_missed
        suspension_during_an_acquisition_yields_a_valid_guard
        session_end_during_an_acquisition_yields_a_new_place
        two_connection_losses_in_a_row_act_like_one
        place_of_an_earlier_session_is_not_reused
    }
    failures {
        all_kinds_of_waits_continue_after_a_lost_connection
        line_becomes_stable_after_faults
        repeatedly_deleted_parent_blocks_no_process
        unused_parent_is_deleted
        panicking_task_releases_its_leadership
        aborted_task_is_followed_by_the_next
        a8_task_can_use_the_client_that_runs_it
    }
    foreign_nodes {
        foreign_names_in_bags_queues_and_roles_are_ignored
        item_without_a_token_is_reported
        late_leave_does_not_remove_another_place
        member_restores_its_node_after_foreign_changes
    }
}

const LIMIT: Duration = Duration::from_secs(20);
/// Timeout of sessions that do not end while a case runs.
const LONG: Duration = Duration::from_secs(20);

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("the case uses a valid node path")
}

/// A process that uses the recipes through its own client.
struct Peer<'a> {
    subject: &'a dyn Subject,
    process: Arc<dyn Process>,
    client: Client,
}

impl<'a> Peer<'a> {
    async fn open(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: LONG, credentials: Vec::new() }).await
    }

    /// Opens a process whose sessions end soon after a case cuts the connection of the process.
    async fn open_short(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: subject.timeout(), credentials: Vec::new() }).await
    }

    async fn open_with(subject: &'a dyn Subject, options: SessionOptions) -> Peer<'a> {
        let process = subject.process().await;
        Peer::of(subject, process.clone(), process, options)
    }

    /// Opens a process with a hook that runs after each response of the engine.
    async fn open_between(
        subject: &'a dyn Subject,
        timeout: Duration,
        hook: impl Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Peer<'a> {
        let process = subject.process().await;
        let trees = Arc::new(Counted::with_hook(process.clone(), hook));
        Peer::of(subject, process, trees, SessionOptions { timeout, credentials: Vec::new() })
    }

    /// Creates a peer whose client uses `trees`. The requests of `trees` must go through `process`.
    fn of(
        subject: &'a dyn Subject,
        process: Arc<dyn Process>,
        trees: Arc<dyn Trees>,
        options: SessionOptions,
    ) -> Peer<'a> {
        let client = Client::new(&subject.runtime(), trees, options);
        Peer { subject, process, client }
    }

    fn lock(&self) -> Lock {
        Lock::new(&self.client, path("/locks/one"), Acl::Open)
    }

    fn selector(&self, id: &str) -> LeaderSelector {
        let candidate = Candidate { grace: Duration::from_millis(300), ..Candidate::new(id) };
        LeaderSelector::new(&self.client, path("/leaders/one"), candidate)
    }

    async fn tree(&self) -> Arc<dyn Tree> {
        self.client.session().await.expect("the engine opens a session")
    }

    async fn acquired(&self) -> Held {
        within(self.subject, "the process acquires the lock", self.lock().acquire())
            .await
            .expect("the acquisition succeeds")
    }

    /// Returns the names of the child nodes of `at`, as the engine stores the names.
    async fn line(&self, at: &str) -> Vec<String> {
        let tree = self.tree().await;
        tree.sync().await.expect("the engine responds");
        tree.children(&path(at)).await.map_or_else(|_| Vec::new(), |children| children.names)
    }
}

async fn within<T>(subject: &dyn Subject, what: &str, future: impl Future<Output = T>) -> T {
    let limited = subject.runtime().timeout(LIMIT, future).await;
    limited.unwrap_or_else(|| panic!("the condition did not become true within {LIMIT:?}: {what}"))
}

async fn until(subject: &dyn Subject, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    conformance::until(&subject.runtime(), what, async || is_so().await).await;
}

/// Polls `future` until it is ready or `is_so` returns true. Returns the output of `future` if it is ready.
async fn poll_until<T>(
    subject: &dyn Subject,
    future: &mut (impl Future<Output = T> + Unpin),
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Option<T> {
    let mut output = None;
    until(subject, what, async || {
        output = output.take().or_else(|| (&mut *future).now_or_never());
        output.is_some() || is_so().await
    })
    .await;
    output
}

/// Waits until the session of `tree` reports the given state.
async fn wait_for_state(subject: &dyn Subject, tree: &dyn Tree, state: SessionState) {
    let mut states = tree.session().state();
    let becomes = states.wait_for(|now| *now == state);
    within(subject, &format!("the session is {state:?}"), becomes)
        .await
        .expect("the session reports each change of its state");
}

/// Waits long enough for other tasks to make progress.
async fn short_wait(subject: &dyn Subject) {
    subject.runtime().sleep(Duration::from_millis(50)).await;
}

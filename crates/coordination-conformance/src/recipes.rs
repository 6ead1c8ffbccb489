//! What every recipe must do, on every engine: criteria A1 to A8 of this project for leaders and locks. An engine that has the tree's
//! [`Subject`](super::tree::Subject) writes `coordination_conformance::recipe_conformance_tests!(run);` beside it.

mod bags;
mod configs;
mod electors;
mod faults;
mod groups;
mod lines;
mod locks;
mod meetings;
mod moments;
mod numbers;
mod replies;
mod roles;
mod selectors;
mod strangers;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};

use super::tree::{Process, Subject};
use coordination::recipes::{Candidate, Client, Held, Layout, LeaderSelector, Lock, Trust};
use coordination::tree::{
    Acl, Counted, Credentials, Expected, NodePath, Sequence, SessionOptions, SessionState, Tree, TreeError, Trees,
};

pub use self::numbers::a_line_goes_on_past_the_last_number;

conformance::suite! { $ dyn Subject, recipe_conformance_tests, [$crate::recipes];
    locks {
        one_holds_at_a_time_in_the_order_of_asking
        what_is_dropped_is_given_back
        an_acquisition_that_is_dropped_leaves_no_node
        a_hold_is_over_when_its_node_is_taken_away
        a_fence_lets_nothing_through_that_comes_late
        a2_terms_rise_though_the_path_is_made_anew
        a5_a_hand_over_takes_as_many_requests_however_many_wait
        strangers_have_no_hand_in_it
        without_credentials_a_closed_lock_is_refused
        names_of_others_in_a_line_are_passed_over
        who_waits_does_so_again_when_the_line_is_taken_away
        a_late_release_takes_away_no_later_hold
    }
    selectors {
        the_leader_is_first_and_the_next_follows
        a7_who_has_led_leads_again_at_the_end_of_the_line
        a7_who_lost_its_session_stands_again_behind_the_others
        what_a_task_was_told_of_its_leadership_is_over_with_it
        a_task_is_told_that_its_leadership_is_over_and_then_dropped
        a_stop_ends_the_task_and_the_candidacy
        places_are_laid_out_as_curators
    }
    lines {
        a_queue_is_led_in_the_order_of_joining
        a_candidate_whose_node_is_taken_away_is_out
        spare_capacity_is_told
        a4_a_lost_answer_leaves_no_candidate_behind
        readers_share_and_a_writer_is_alone
        a_semaphore_has_so_many_leases
    }
    meetings {
        a_barrier_holds_until_it_is_opened
        all_enter_and_leave_together
        who_is_slow_to_leave_holds_no_later_round_up
        what_an_earlier_round_left_lets_nobody_in
        every_increment_is_counted
        what_is_no_counter_is_told
    }
    bags {
        numbers_are_never_given_again
        items_and_tokens_are_laid_out_as_petting_zoos
        a_listener_misses_nothing_and_hears_nothing_twice
        own_items_go_with_their_session_and_all_are_told
        a_listener_goes_on_in_another_session
        a_bag_that_is_made_anew_is_told_anew
    }
    roles {
        each_job_has_one_holder_and_each_holder_one_job
        jobs_come_and_go_while_applicants_wait
        a_dead_holders_job_is_open
        an_application_that_is_dropped_leaves_no_holder
        a_holders_fence_is_its_own
    }
    groups {
        members_come_and_go
        a_member_is_seen_again_after_its_session_was_lost
        a_name_that_is_taken_is_told_and_had_once_it_is_free
        a_follower_sees_all_that_is_below_and_nothing_stale
        a_path_is_made_with_all_above_it_and_stays
    }
    configs {
        an_instances_values_stand_before_its_services
        what_is_no_configuration_is_told_and_the_last_stays
        no_older_pair_comes_after_a_newer
        instances_are_found_while_they_live
        a_pick_moves_when_its_instance_goes_and_spreads
        what_is_no_instance_is_passed_over_and_a_rewrite_is_no_gap
    }
    electors {
        of_replicas_one_leads_and_then_the_next
        departures_are_told_to_the_leader_alone
        a_replica_that_lost_its_session_stands_again
        what_an_elector_cannot_do_is_refused
    }
    faults {
        a1_a3_a_dead_leader_knows_before_the_next_one_leads
        a4_a_lost_answer_leaves_no_place_behind
        a6_who_lost_its_session_waits_with_another
        a_wait_goes_on_over_a_connection_that_was_lost
        a_short_cut_ends_what_is_trusted_until_suspended_and_nothing_else
        who_starts_before_its_engine_waits_for_it
    }
    replies {
        a4_a_place_whose_making_was_not_answered_is_found
        a4_a_place_that_was_given_up_before_its_answer_is_taken_away
        a4_what_stands_for_a_process_is_found_though_its_making_was_not_answered
        a4_a_job_that_was_taken_without_an_answer_is_had
    }
    moments {
        an_event_in_the_midst_of_an_acquisition_is_not_missed
        a_suspension_in_the_midst_of_an_acquisition_gives_nothing_that_is_over
        a_session_that_ends_in_the_midst_of_an_acquisition_gives_nothing
        two_losses_of_a_connection_in_a_row_are_as_one
        a_place_of_an_earlier_session_is_anothers
    }
    trouble {
        waits_of_all_kinds_go_on_over_a_connection_that_was_lost
        a_line_comes_to_rest_after_trouble
        a_parent_that_is_taken_away_again_and_again_stops_nobody
        a_parent_that_nobody_uses_goes
        a_task_that_panics_gives_its_leadership_back
        a_task_that_was_aborted_is_followed_by_the_next
        a8_a_task_works_with_the_client_that_runs_it
    }
    strangers {
        names_of_others_in_bags_queues_and_roles_are_passed_over
        an_item_without_a_token_is_told
        a_late_leave_takes_away_nobody_elses_place
        a_member_is_seen_again_whatever_others_do_to_its_node
    }
}

const LIMIT: Duration = Duration::from_secs(20);
/// Of sessions whose end nobody waits for.
const LONG: Duration = Duration::from_secs(20);

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("a case's path is one")
}

/// A process with its client.
struct Peer<'a> {
    subject: &'a dyn Subject,
    process: Arc<dyn Process>,
    client: Client,
}

impl<'a> Peer<'a> {
    async fn open(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: LONG, credentials: Vec::new() }).await
    }

    /// With sessions that end soon after it is not heard of.
    async fn open_short(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: subject.timeout(), credentials: Vec::new() }).await
    }

    async fn open_with(subject: &'a dyn Subject, options: SessionOptions) -> Peer<'a> {
        let process = subject.process().await;
        Peer::of(subject, process.clone(), process, options)
    }

    /// With something that happens after each answer of the engine's.
    async fn open_between(
        subject: &'a dyn Subject,
        timeout: Duration,
        hook: impl Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Peer<'a> {
        let process = subject.process().await;
        let trees = Arc::new(Counted::with_hook(process.clone(), hook));
        Peer::of(subject, process, trees, SessionOptions { timeout, credentials: Vec::new() })
    }

    /// `trees` leads to the engine through `process`.
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
        let candidate = Candidate { acl: Acl::Open, grace: Duration::from_millis(300), ..Candidate::new(id) };
        LeaderSelector::new(&self.client, path("/leaders/one"), candidate)
    }

    async fn tree(&self) -> Arc<dyn Tree> {
        self.client.session().await.expect("the engine opens a session")
    }

    async fn acquired(&self) -> Held {
        within(self.subject, "the lock", self.lock().acquire()).await.expect("it can be had")
    }

    /// Who stands in line, as the engine has it.
    async fn standing(&self, at: &str) -> Vec<String> {
        let tree = self.tree().await;
        tree.sync().await.expect("the engine answers");
        tree.children(&path(at)).await.map_or_else(|_| Vec::new(), |children| children.names)
    }
}

async fn within<T>(subject: &dyn Subject, what: &str, future: impl Future<Output = T>) -> T {
    let limited = subject.runtime().timeout(LIMIT, future).await;
    limited.unwrap_or_else(|| panic!("it never came: {what}"))
}

async fn until(subject: &dyn Subject, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    conformance::until(&subject.runtime(), what, async || is_so().await).await;
}

/// Until `future` is ready, and no longer than until `what` is so; what came of it, if anything.
async fn meanwhile<T>(
    subject: &dyn Subject,
    future: &mut (impl Future<Output = T> + Unpin),
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Option<T> {
    let mut answer = None;
    until(subject, what, async || {
        answer = answer.take().or_else(|| (&mut *future).now_or_never());
        answer.is_some() || is_so().await
    })
    .await;
    answer
}

/// Until the session has been in this state.
async fn becomes(subject: &dyn Subject, tree: &dyn Tree, state: SessionState) {
    let mut states = tree.session().state();
    let becomes = states.wait_for(|now| *now == state);
    within(subject, &format!("its session is {state:?}"), becomes).await.expect("a session tells all of its states");
}

/// Lets what is ready go on.
async fn a_moment(subject: &dyn Subject) {
    subject.runtime().sleep(Duration::from_millis(50)).await;
}

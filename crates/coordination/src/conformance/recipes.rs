//! What every recipe must do, on every engine: criteria A1 to A8 of this project for leaders and locks. An engine that has the tree's
//! [`Subject`](super::tree::Subject) writes `coordination::recipe_conformance_tests!(run);` beside it.

mod bags;
mod configs;
mod electors;
mod faults;
mod groups;
mod lines;
mod locks;
mod meetings;
mod roles;
mod selectors;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::FutureExt as _;

use super::Case;
use super::tree::{Process, Subject};
use crate::recipes::{Candidate, Client, Held, Layout, LeaderSelector, Lock, Trust};
use crate::tree::{
    Acl, Credentials, Expected, NodePath, Sequence, SessionOptions, SessionState, Tree, TreeError, Trees,
};

suite! { $ dyn Subject, recipe_conformance_tests, [conformance::recipes];
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
        let client = Client::new(&subject.runtime(), process.clone(), options);
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
    super::scene::until(&subject.runtime(), what, async || is_so().await).await;
}

/// Lets what is ready go on.
async fn a_moment(subject: &dyn Subject) {
    subject.runtime().sleep(Duration::from_millis(50)).await;
}

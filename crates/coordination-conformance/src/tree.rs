//! What every tree must do. An engine implements [`Subject`] and writes `coordination_conformance::tree_conformance_tests!(run);` as for the
//! other suite.

mod access;
mod draw;
mod histories;
mod model;
mod multi;
mod nodes;
mod sessions;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use runtime::Runtime;

use coordination::memory::MemoryTrees;
use coordination::tree::{
    Acl, CreateMode, Created, Credentials, Event, Expected, Node, NodePath, SessionOptions, Stat, Tree, TreeError,
    Trees, Watch,
};

/// One engine, with nothing in it at first but what the engine has of its own.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// Of sessions whose end is waited for. A ping must come in time on a busy machine, too, which may stand still for most of a second.
    fn timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Another process that works with the engine.
    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>>;
}

/// One process, with a way of its own to the engine.
pub trait Process: Trees {
    /// While it is cut, nothing gets through either way: for the engine the process may as well be dead.
    fn cut(&self, is_cut: bool);

    /// From here on what it asks for is done, and the answers are lost, as is all else that the engine says; until `cut(false)`.
    fn cut_answers(&self);
}

impl Process for MemoryTrees {
    fn cut(&self, is_cut: bool) {
        MemoryTrees::cut(self, is_cut);
    }

    fn cut_answers(&self) {
        MemoryTrees::cut_answers(self);
    }
}

conformance::suite! { $ dyn Subject, tree_conformance_tests, [$crate::tree];
    nodes {
        a_node_is_read_as_it_was_made
        what_is_not_there_is_told
        a_node_is_made_once_and_below_its_parent
        the_root_is_there_and_stays
        a_set_raises_the_version
        a_change_that_expects_another_version_changes_nothing
        a_node_with_children_stays
        children_are_the_direct_ones_by_name
        changes_are_numbered_in_their_order
        sequential_names_rise_and_are_never_given_again
        a_sequence_counts_all_children
        an_ephemeral_has_no_children
        a_container_goes_after_its_last_child
        too_many_bytes_are_refused
        of_many_that_make_one_node_one_does
        increments_by_version_lose_nothing
        what_others_did_is_read_after_a_sync
    }
    multi {
        a_multi_happens_as_one_change
        each_step_sees_those_before_it
        a_multi_that_fails_changes_nothing_and_tells_its_step
        a_check_guards_what_comes_with_it
        a_multi_without_steps_does_nothing
        a_multi_has_a_limit
    }
    sessions {
        ephemerals_go_when_their_session_is_closed
        ephemerals_go_when_their_process_has_died
        an_ephemeral_stays_while_its_process_lives
        a_closed_session_is_lost_for_all_calls
        a_dead_process_knows_before_the_engine_does
        sessions_have_ids_of_their_own
        requests_whose_answers_nobody_takes_hold_no_others_up
    }
    watches {
        a_watch_on_data_fires_at_a_set_and_at_a_deletion
        a_watch_on_what_is_not_there_fires_when_it_comes
        a_watch_on_children_fires_for_its_own_only
        a_watch_on_children_fires_when_their_parent_goes
        a_watch_fires_before_the_change_is_read
        a_failed_change_tells_nobody
        watches_end_with_their_session
        all_events_below_a_node_come_in_their_order
        the_events_of_a_multi_come_in_its_order
        watchers_are_told_that_a_process_died
    }
    access {
        a_creators_node_is_closed_to_strangers
        a_readable_node_is_read_by_all_and_changed_by_its_creator
        a_parents_list_decides_who_makes_and_removes
        who_gave_no_credentials_makes_nothing_of_their_own
        only_who_may_changes_the_list
        a_list_is_told_as_it_was_made
        a_digest_is_told_to_those_only_who_may_change_the_list
    }
    model {
        random_changes_do_what_they_do_in_memory
    }
    histories {
        what_many_ask_at_once_is_answered_in_one_order
        what_is_cut_off_and_lost_is_answered_in_one_order
    }
}

const LIMIT: Duration = Duration::from_secs(20);

/// A process.
struct Peer<'a> {
    subject: &'a dyn Subject,
    process: Arc<dyn Process>,
    tree: Arc<dyn Tree>,
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("a case's path is one")
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

impl<'a> Peer<'a> {
    async fn open(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_as(subject, &[]).await
    }

    async fn open_as(subject: &'a dyn Subject, credentials: &[Credentials]) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: LIMIT, credentials: credentials.to_vec() }).await
    }

    /// With a session that ends soon after its process.
    async fn open_short(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: subject.timeout(), credentials: Vec::new() }).await
    }

    async fn open_with(subject: &'a dyn Subject, options: SessionOptions) -> Peer<'a> {
        let process = subject.process().await;
        let tree = process.open(options).await.expect("the engine opens a session");
        Peer { subject, process, tree }
    }

    async fn create(&self, at: &str, data: &'static str, mode: CreateMode) -> Created {
        self.try_create(at, data, mode).await.expect("it can be made")
    }

    async fn try_create(&self, at: &str, data: &'static str, mode: CreateMode) -> Result<Created, TreeError> {
        self.tree.create(&path(at), bytes(data), mode, Acl::Open).await
    }

    async fn make(&self, at: &str) -> Created {
        self.create(at, "", CreateMode::Persistent).await
    }

    async fn set(&self, at: &str, data: &'static str) -> Stat {
        self.tree.set(&path(at), bytes(data), Expected::Any).await.expect("it is there")
    }

    async fn delete(&self, at: &str) {
        self.tree.delete(&path(at), Expected::Any).await.expect("it is there and has no children");
    }

    /// After a sync.
    async fn get(&self, at: &str) -> Node {
        self.tree.sync().await.expect("the engine answers");
        self.tree.get(&path(at)).await.expect("it is there")
    }

    /// After a sync.
    async fn exists(&self, at: &str) -> Option<Stat> {
        self.tree.sync().await.expect("the engine answers");
        self.tree.exists(&path(at)).await.expect("the engine answers")
    }

    /// After a sync.
    async fn names(&self, at: &str) -> Vec<String> {
        self.tree.sync().await.expect("the engine answers");
        self.tree.children(&path(at)).await.expect("it is there").names
    }

    async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        let limited = self.subject.runtime().timeout(LIMIT, future).await;
        limited.unwrap_or_else(|| panic!("it never came: {what}"))
    }

    async fn fired(&self, watch: Watch) -> Event {
        self.within("a watch fires", watch).await.expect("the session lives")
    }

    /// Looks again and again.
    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        conformance::until(&self.subject.runtime(), what, async || is_so().await).await;
    }
}

/// Nothing is under way that could make it fire.
fn assert_silent(mut watch: Watch) {
    assert!((&mut watch).now_or_never().is_none(), "the watch fired");
}

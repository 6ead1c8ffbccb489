//! Cases that every tree must pass. An engine implements [`Subject`] and invokes
//! `coordination_conformance::tree_conformance_tests!(run);`.

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

/// Engine under test. At the start of each case it contains only the nodes that the engine itself creates.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// Timeout of the sessions that a case lets expire. It must be long enough for a ping to arrive in time on a busy
    /// machine, which may pause for most of a second.
    fn timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Starts another process that uses the engine.
    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>>;
}

/// A process with its own connection to the engine.
pub trait Process: Trees {
    /// Cuts or restores the connection. While the connection is cut, no message passes in either direction, so the
    /// process looks dead to the engine.
    fn cut(&self, is_cut: bool);

    /// Drops all messages from the engine to the process until `cut(false)`. The engine still executes the requests of
    /// the process.
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
        node_is_read_as_created
        missing_node_is_reported
        node_is_created_once_and_below_its_parent
        root_exists_and_cannot_be_deleted
        set_increments_the_version
        wrong_expected_version_changes_nothing
        node_with_children_cannot_be_deleted
        children_are_direct_and_sorted_by_name
        changes_are_numbered_in_order
        sequential_names_rise_and_are_never_reused
        sequence_counts_all_children
        ephemeral_node_has_no_children
        container_is_deleted_after_its_last_child
        oversized_data_is_rejected
        one_of_many_concurrent_creates_succeeds
        versioned_increments_are_never_lost
        sync_makes_changes_of_others_visible
    }
    multi {
        multi_is_one_change
        each_step_of_a_multi_sees_the_previous_steps
        failed_multi_changes_nothing_and_names_its_step
        check_guards_the_other_steps_of_a_multi
        empty_multi_does_nothing
        multi_over_the_limit_is_rejected
    }
    sessions {
        ephemerals_are_deleted_when_their_session_closes
        ephemerals_are_deleted_after_their_process_dies
        ephemeral_remains_while_its_process_lives
        closed_session_is_lost_for_all_calls
        session_ends_locally_before_the_engine_ends_it
        sessions_have_distinct_ids
        unpolled_requests_do_not_block_others
    }
    watches {
        data_watch_fires_on_set_and_delete
        watch_on_a_missing_node_fires_on_creation
        child_watch_fires_only_for_direct_children
        child_watch_fires_when_the_parent_is_deleted
        watch_fires_before_the_change_is_read
        failed_change_fires_no_watch
        watches_end_with_their_session
        events_below_a_node_arrive_in_order
        events_of_a_multi_arrive_in_order
        watches_fire_when_a_process_dies
    }
    access {
        creators_node_is_closed_to_others
        readable_node_is_changed_only_by_its_creator
        parents_access_list_governs_create_and_delete
        creator_access_requires_credentials
        access_list_change_requires_permission
        access_list_is_returned_as_created
        digest_is_visible_only_with_admin_permission
    }
    model {
        random_changes_match_the_in_memory_engine
    }
    histories {
        concurrent_calls_are_linearizable
        calls_with_cuts_and_lost_sessions_are_linearizable
    }
}

const LIMIT: Duration = Duration::from_secs(20);

/// A process with a session.
struct Peer<'a> {
    subject: &'a dyn Subject,
    process: Arc<dyn Process>,
    tree: Arc<dyn Tree>,
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("the path is valid")
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

    /// Opens a process whose session ends soon after a case cuts the connection of the process.
    async fn open_short(subject: &'a dyn Subject) -> Peer<'a> {
        Peer::open_with(subject, SessionOptions { timeout: subject.timeout(), credentials: Vec::new() }).await
    }

    async fn open_with(subject: &'a dyn Subject, options: SessionOptions) -> Peer<'a> {
        let process = subject.process().await;
        let tree = process.open(options).await.expect("the engine opens a session");
        Peer { subject, process, tree }
    }

    async fn create(&self, at: &str, data: &'static str, mode: CreateMode) -> Created {
        self.try_create(at, data, mode).await.expect("the engine creates the node")
    }

    async fn try_create(&self, at: &str, data: &'static str, mode: CreateMode) -> Result<Created, TreeError> {
        self.tree.create(&path(at), bytes(data), mode, Acl::Open).await
    }

    async fn create_empty(&self, at: &str) -> Created {
        self.create(at, "", CreateMode::Persistent).await
    }

    async fn set(&self, at: &str, data: &'static str) -> Stat {
        self.tree.set(&path(at), bytes(data), Expected::Any).await.expect("the node exists")
    }

    async fn delete(&self, at: &str) {
        self.tree.delete(&path(at), Expected::Any).await.expect("the node exists and has no children");
    }

    /// Reads a node after a sync.
    async fn get(&self, at: &str) -> Node {
        self.tree.sync().await.expect("the engine responds");
        self.tree.get(&path(at)).await.expect("the node exists")
    }

    /// Reads a node's stat after a sync.
    async fn exists(&self, at: &str) -> Option<Stat> {
        self.tree.sync().await.expect("the engine responds");
        self.tree.exists(&path(at)).await.expect("the engine responds")
    }

    /// Reads the children's names after a sync.
    async fn names(&self, at: &str) -> Vec<String> {
        self.tree.sync().await.expect("the engine responds");
        self.tree.children(&path(at)).await.expect("the node exists").names
    }

    async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        let limited = self.subject.runtime().timeout(LIMIT, future).await;
        limited.unwrap_or_else(|| panic!("the condition did not become true within {LIMIT:?}: {what}"))
    }

    async fn fired(&self, watch: Watch) -> Event {
        self.within("a watch fires", watch).await.expect("the session is open")
    }

    /// Polls the condition until it holds.
    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        conformance::until(&self.subject.runtime(), what, async || is_so().await).await;
    }
}

/// Asserts that the watch has not fired. The caller ensures that no pending change can fire it.
fn assert_silent(mut watch: Watch) {
    assert!((&mut watch).now_or_never().is_none(), "the watch fired");
}

//! What every tree must do when there is much of it; seconds each, so they are apart. An engine that has the tree's
//! [`Subject`](super::tree::Subject) writes `coordination_conformance::load_conformance_tests!(run);`.

mod configs;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::tree::{Process, Subject};
use coordination::tree::{Acl, CreateMode, Event, Expected, NodePath, OPS_MAX, Op, SessionOptions, Tree, TreeError};

conformance::suite! { $ dyn Subject, load_conformance_tests, [$crate::load];
    sessions {
        a_session_with_fifty_thousand_ephemerals_ends_and_the_others_go_on
        more_than_a_megabyte_of_watches_outlives_a_lost_connection
    }
    configs {
        of_ten_thousand_changes_no_older_pair_comes_after_a_newer
    }
}

/// What is to happen happens within this, on a machine that is busy with other tests, too.
const LIMIT: Duration = Duration::from_secs(240);

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("a case's path is one")
}

fn options(timeout: Duration) -> SessionOptions {
    SessionOptions { timeout, credentials: Vec::new() }
}

async fn open(subject: &dyn Subject) -> (Arc<dyn Process>, Arc<dyn Tree>) {
    let process = subject.process().await;
    let tree = process.open(options(Duration::from_secs(20))).await.expect("the engine opens a session");
    (process, tree)
}

async fn make(tree: &dyn Tree, at: &str) {
    tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await.expect("its parent is there");
}

async fn change_all(tree: &dyn Tree, changes: impl IntoIterator<Item = Op>) {
    let changes: Vec<Op> = changes.into_iter().collect();
    for some in changes.chunks(OPS_MAX / 2) {
        tree.multi(some.to_vec()).await.expect("each of them can be made");
    }
}

async fn within<T>(subject: &dyn Subject, what: &str, future: impl Future<Output = T>) -> T {
    let limited = subject.runtime().timeout(LIMIT, future).await;
    limited.unwrap_or_else(|| panic!("it never came: {what}"))
}

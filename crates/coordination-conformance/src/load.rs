//! Cases with large trees. Each case takes seconds, so these cases form a separate suite. An engine that implements the
//! tree's [`Subject`](super::tree::Subject) invokes `coordination_conformance::load_conformance_tests!(run);` in its
//! tests.

mod configs;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::tree::{Process, Subject};
use coordination::tree::{Acl, CreateMode, Event, Expected, NodePath, OPS_MAX, Op, SessionOptions, Tree, TreeError};

conformance::suite! { $ dyn Subject, load_conformance_tests, [$crate::load];
    sessions {
        session_with_fifty_thousand_ephemerals_ends
        one_megabyte_of_watches_survives_a_lost_connection
    }
    configs {
        ten_thousand_config_changes_arrive_in_order
    }
}

/// Time limit of each step. It is long enough for a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(240);

fn path(text: &str) -> NodePath {
    NodePath::new(text).expect("the case uses a valid node path")
}

fn options(timeout: Duration) -> SessionOptions {
    SessionOptions { timeout, credentials: Vec::new() }
}

async fn open(subject: &dyn Subject) -> (Arc<dyn Process>, Arc<dyn Tree>) {
    let process = subject.process().await;
    let tree = process.open(options(Duration::from_secs(20))).await.expect("the engine opens a session");
    (process, tree)
}

async fn create(tree: &dyn Tree, at: &str) {
    tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await.expect("the parent exists");
}

async fn change_all(tree: &dyn Tree, changes: impl IntoIterator<Item = Op>) {
    let changes: Vec<Op> = changes.into_iter().collect();
    for some in changes.chunks(OPS_MAX / 2) {
        tree.multi(some.to_vec()).await.expect("each change succeeds");
    }
}

async fn within<T>(subject: &dyn Subject, what: &str, future: impl Future<Output = T>) -> T {
    let limited = subject.runtime().timeout(LIMIT, future).await;
    limited.unwrap_or_else(|| panic!("the condition did not become true within {LIMIT:?}: {what}"))
}

//! Cases about sessions and their ephemeral nodes.

use futures_util::future::TryFutureExt as _;

use super::*;
use coordination::tree::SessionState;

pub(super) async fn ephemerals_are_deleted_when_their_session_closes(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/a").await;
    one.create("/a/e", "", CreateMode::Ephemeral).await;
    let numbered = one.create("/a/n-", "", CreateMode::EphemeralSequential).await;
    two.create("/a/others", "", CreateMode::Ephemeral).await;
    one.create_empty("/a/stays").await;
    assert_eq!(two.names("/a").await, ["e", numbered.path.name(), "others", "stays"]);
    one.tree.close().await.expect("the engine responds");
    assert_eq!(two.names("/a").await, ["others", "stays"]);
    one.tree.close().await.expect("a second call to close the session has no effect");
}

pub(super) async fn ephemerals_are_deleted_after_their_process_dies(subject: &dyn Subject) {
    let watcher = Peer::open(subject).await;
    watcher.create_empty("/a").await;
    let dying = Peer::open_short(subject).await;
    dying.create("/a/e", "", CreateMode::Ephemeral).await;
    dying.create_empty("/a/stays").await;
    dying.process.cut(true);
    watcher.until("the engine deletes the ephemeral node", async || watcher.names("/a").await == ["stays"]).await;
}

pub(super) async fn ephemeral_remains_while_its_process_lives(subject: &dyn Subject) {
    let (watcher, living) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let created = living.create("/e", "", CreateMode::Ephemeral).await;
    subject.runtime().sleep(subject.timeout() * 3 / 2).await;
    assert_eq!(watcher.exists("/e").await, Some(created.stat));
    assert!(living.tree.session().is_valid(subject.runtime().monotonic()));
}

pub(super) async fn closed_session_is_lost_for_all_calls(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let session = peer.tree.session().clone();
    assert_eq!(*session.state().borrow(), SessionState::Connected);
    peer.tree.close().await.expect("the engine responds");
    peer.within("the session is lost", session.lost()).await;
    assert!(!session.is_valid(subject.runtime().monotonic()));
    let (at, lost) = (path("/a"), Some(TreeError::SessionLost));
    assert_eq!(peer.try_create("/b", "", CreateMode::Persistent).await.err(), lost);
    assert_eq!(peer.tree.set(&at, bytes(""), Expected::Any).await.err(), lost);
    assert_eq!(peer.tree.delete(&at, Expected::Any).await.err(), lost);
    assert_eq!(peer.tree.multi(Vec::new()).await.err(), lost);
    assert_eq!(peer.tree.get(&at).await.err(), lost);
    assert_eq!(peer.tree.exists(&at).await.err(), lost);
    assert_eq!(peer.tree.children(&at).await.err(), lost);
    assert_eq!(peer.tree.get_and_watch(&at).await.err(), lost);
    assert_eq!(peer.tree.exists_and_watch(&at).await.err(), lost);
    assert_eq!(peer.tree.children_and_watch(&at).await.err(), lost);
    assert_eq!(peer.tree.watch_all(&at).await.err(), lost);
    assert_eq!(peer.tree.sync().await.err(), lost);
    assert_eq!(peer.tree.acl(&at).await.err(), lost);
    assert_eq!(peer.tree.set_acl(&at, Acl::Open).await.err(), lost);
    assert_eq!(Peer::open(subject).await.names("/").await.iter().filter(|name| *name == "b").count(), 0);
}

/// Tests criterion A3: a process regards its session as ended before the engine ends the session.
pub(super) async fn session_ends_locally_before_the_engine_ends_it(subject: &dyn Subject) {
    let watcher = Peer::open(subject).await;
    let dying = Peer::open_short(subject).await;
    dying.create("/e", "", CreateMode::Ephemeral).await;
    watcher.tree.sync().await.expect("the engine responds");
    let (_, gone) = watcher.tree.exists_and_watch(&path("/e")).await.expect("the engine responds");
    let session = dying.tree.session().clone();
    let cut = subject.runtime().monotonic();
    dying.process.cut(true);
    assert!(
        session.deadline() <= cut + session.timeout(),
        "the session's deadline is at most one timeout after the cut of the connection"
    );
    watcher.fired(gone).await;
    assert!(
        !session.is_valid(subject.runtime().monotonic()),
        "the session ends locally before the engine deletes its node"
    );
}

pub(super) async fn sessions_have_distinct_ids(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (one.tree.session().id(), two.tree.session().id());
    assert_ne!(first, second);
    one.tree.close().await.expect("the engine responds");
    let third = Peer::open(subject).await.tree.session().id();
    assert!(third != first && third != second);
}

/// Tests a caller that does not poll its requests, for example because another branch of a `select!` is running.
pub(super) async fn unpolled_requests_do_not_block_others(subject: &dyn Subject) {
    const COUNT: usize = 100;
    let peer = Peer::open(subject).await;
    let (tree, at) = (&peer.tree, peer.create_empty("/a").await.path);
    let mut requests: Vec<BoxFuture<'_, Result<(), TreeError>>> = Vec::new();
    for _ in 0..COUNT {
        requests.push(tree.set(&at, bytes("1"), Expected::Any).map_ok(drop).boxed());
        requests.push(tree.get(&at).map_ok(drop).boxed());
        requests.push(tree.children_and_watch(&at).map_ok(drop).boxed());
        requests.push(tree.watch_all(&at).map_ok(drop).boxed());
        requests.push(tree.sync().boxed());
    }
    requests.retain_mut(|request| request.now_or_never().is_none_or(|answer| answer.is_err()));
    peer.within("the set completes", tree.set(&at, bytes("2"), Expected::Any)).await.expect("the node exists");
    let (node, watch) = peer.within("the read completes", tree.get_and_watch(&at)).await.expect("the node exists");
    assert_eq!(node.data, "2");
    peer.set("/a", "3").await;
    peer.fired(watch).await;
    let results = peer.within("all requests return", futures_util::future::join_all(requests)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

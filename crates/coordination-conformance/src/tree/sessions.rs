//! Sessions and what goes with them.

use futures_util::future::TryFutureExt as _;

use super::*;
use coordination::tree::SessionState;

pub(super) async fn ephemerals_go_when_their_session_is_closed(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.make("/a").await;
    one.create("/a/e", "", CreateMode::Ephemeral).await;
    let numbered = one.create("/a/n-", "", CreateMode::EphemeralSequential).await;
    two.create("/a/others", "", CreateMode::Ephemeral).await;
    one.make("/a/stays").await;
    assert_eq!(two.names("/a").await, ["e", numbered.path.name(), "others", "stays"]);
    one.tree.close().await.expect("the engine answers");
    assert_eq!(two.names("/a").await, ["others", "stays"]);
    one.tree.close().await.expect("closing again is harmless");
}

pub(super) async fn ephemerals_go_when_their_process_has_died(subject: &dyn Subject) {
    let watcher = Peer::open(subject).await;
    watcher.make("/a").await;
    let dying = Peer::open_short(subject).await;
    dying.create("/a/e", "", CreateMode::Ephemeral).await;
    dying.make("/a/stays").await;
    dying.process.cut(true);
    watcher.until("the ephemeral goes", async || watcher.names("/a").await == ["stays"]).await;
}

pub(super) async fn an_ephemeral_stays_while_its_process_lives(subject: &dyn Subject) {
    let (watcher, living) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let created = living.create("/e", "", CreateMode::Ephemeral).await;
    subject.runtime().sleep(subject.timeout() * 3 / 2).await;
    assert_eq!(watcher.exists("/e").await, Some(created.stat));
    assert!(living.tree.session().is_valid(subject.runtime().monotonic()));
}

pub(super) async fn a_closed_session_is_lost_for_all_calls(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.make("/a").await;
    let session = peer.tree.session().clone();
    assert_eq!(*session.state().borrow(), SessionState::Connected);
    peer.tree.close().await.expect("the engine answers");
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

/// Criterion A3: a guard ends by its own clock, before its place is given away.
pub(super) async fn a_dead_process_knows_before_the_engine_does(subject: &dyn Subject) {
    let watcher = Peer::open(subject).await;
    let dying = Peer::open_short(subject).await;
    dying.create("/e", "", CreateMode::Ephemeral).await;
    let (_, gone) = watcher.tree.exists_and_watch(&path("/e")).await.expect("the engine answers");
    let session = dying.tree.session().clone();
    let cut = subject.runtime().monotonic();
    dying.process.cut(true);
    assert!(session.deadline() <= cut + session.timeout(), "the deadline counts from a request that was answered");
    watcher.fired(gone).await;
    assert!(!session.is_valid(subject.runtime().monotonic()), "its node went, and it thinks that it lives");
}

pub(super) async fn sessions_have_ids_of_their_own(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (one.tree.session().id(), two.tree.session().id());
    assert_ne!(first, second);
    one.tree.close().await.expect("the engine answers");
    let third = Peer::open(subject).await.tree.session().id();
    assert!(third != first && third != second);
}

/// A caller that does something else meanwhile, in a `select!` say, does not drive what it asked for.
pub(super) async fn requests_whose_answers_nobody_takes_hold_no_others_up(subject: &dyn Subject) {
    const COUNT: usize = 100;
    let peer = Peer::open(subject).await;
    let (tree, at) = (&peer.tree, peer.make("/a").await.path);
    let mut asked: Vec<BoxFuture<'_, Result<(), TreeError>>> = Vec::new();
    for _ in 0..COUNT {
        asked.push(tree.set(&at, bytes("1"), Expected::Any).map_ok(drop).boxed());
        asked.push(tree.get(&at).map_ok(drop).boxed());
        asked.push(tree.children_and_watch(&at).map_ok(drop).boxed());
        asked.push(tree.watch_all(&at).map_ok(drop).boxed());
        asked.push(tree.sync().boxed());
    }
    asked.retain_mut(|request| request.now_or_never().is_none_or(|answer| answer.is_err()));
    peer.within("a change is made", tree.set(&at, bytes("2"), Expected::Any)).await.expect("it is there");
    let (node, watch) = peer.within("a node is read", tree.get_and_watch(&at)).await.expect("it is there");
    assert_eq!(node.data, "2");
    peer.set("/a", "3").await;
    peer.fired(watch).await;
    let answers = peer.within("all are answered", futures_util::future::join_all(asked)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

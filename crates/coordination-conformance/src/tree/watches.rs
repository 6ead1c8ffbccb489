//! Cases about the events that watches report, and about the time and order of these events.

use futures_util::StreamExt as _;

use super::*;
use coordination::tree::{Events, Op};

pub(super) async fn data_watch_fires_on_set_and_delete(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/a").await;
    one.tree.sync().await.expect("the engine responds");
    let at = path("/a");
    let (_, changed) = one.tree.get_and_watch(&at).await.expect("the node exists");
    two.create_empty("/a/child").await;
    two.delete("/a/child").await;
    two.set("/a", "x").await;
    assert_eq!(
        one.fired(changed).await,
        Event::Changed(at.clone()),
        "a change of the children does not fire a data watch"
    );
    let (node, gone) = one.tree.get_and_watch(&at).await.expect("the node exists");
    assert_eq!(node.data, bytes("x"));
    let (stat, gone_too) = one.tree.exists_and_watch(&at).await.expect("the engine responds");
    assert_eq!(stat, Some(node.stat));
    two.delete("/a").await;
    assert_eq!(one.fired(gone).await, Event::Deleted(at.clone()));
    assert_eq!(one.fired(gone_too).await, Event::Deleted(at));
}

pub(super) async fn watch_on_a_missing_node_fires_on_creation(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (stat, comes) = one.tree.exists_and_watch(&path("/a")).await.expect("the engine responds");
    assert_eq!(stat, None);
    two.create_empty("/ab").await;
    two.create_empty("/a").await;
    assert_eq!(one.fired(comes).await, Event::Created(path("/a")));
}

pub(super) async fn child_watch_fires_only_for_direct_children(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/a").await;
    one.create_empty("/a/b").await;
    let at = path("/a");
    let (_, comes) = one.tree.children_and_watch(&at).await.expect("the node exists");
    two.set("/a", "x").await;
    two.set("/a/b", "x").await;
    two.create_empty("/a/b/deep").await;
    one.tree.sync().await.expect("the engine responds");
    two.create_empty("/a/c").await;
    assert_eq!(one.fired(comes).await, Event::ChildrenChanged(at.clone()));
    let (children, goes) = one.tree.children_and_watch(&at).await.expect("the node exists");
    assert_eq!(children.names, ["b", "c"]);
    two.delete("/a/c").await;
    assert_eq!(one.fired(goes).await, Event::ChildrenChanged(at.clone()));
    let (_, silent) = one.tree.children_and_watch(&at).await.expect("the node exists");
    two.set("/a/b", "y").await;
    one.tree.sync().await.expect("the engine responds");
    assert_silent(silent);
}

pub(super) async fn child_watch_fires_when_the_parent_is_deleted(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let (_, goes) = peer.tree.children_and_watch(&path("/a")).await.expect("the node exists");
    peer.delete("/a").await;
    assert_eq!(peer.fired(goes).await, Event::Deleted(path("/a")));
}

pub(super) async fn watch_fires_before_the_change_is_read(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/a").await;
    for _ in 0..20 {
        let (before, mut watch) = one.tree.get_and_watch(&path("/a")).await.expect("the node exists");
        two.set("/a", "x").await;
        one.until("the session reads the change", async || one.get("/a").await.stat.version > before.stat.version)
            .await;
        let fired = (&mut watch).now_or_never();
        assert_eq!(fired, Some(Ok(Event::Changed(path("/a")))), "the watch fires before the session reads the change");
    }
}

pub(super) async fn failed_change_fires_no_watch(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let at = path("/a");
    let (_, data) = peer.tree.get_and_watch(&at).await.expect("the node exists");
    let (_, children) = peer.tree.children_and_watch(&at).await.expect("the node exists");
    let ops = vec![
        Op::Set { path: at.clone(), data: bytes("x"), expected: Expected::Any },
        Op::Create { path: path("/a/b"), data: Bytes::new(), mode: CreateMode::Persistent, acl: Acl::Open },
        Op::Check { path: at.clone(), expected: Expected::Version(7) },
    ];
    assert!(peer.tree.multi(ops).await.is_err());
    assert_eq!(peer.tree.set(&at, bytes("x"), Expected::Version(7)).await, Err(TreeError::BadVersion));
    peer.tree.sync().await.expect("the engine responds");
    assert_silent(data);
    assert_silent(children);
}

pub(super) async fn watches_end_with_their_session(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let (_, data) = peer.tree.get_and_watch(&path("/a")).await.expect("the node exists");
    let (_, children) = peer.tree.children_and_watch(&path("/a")).await.expect("the node exists");
    let mut events = peer.tree.watch_all(&path("/a")).await.expect("the engine responds");
    peer.tree.close().await.expect("the engine responds");
    for watch in [data, children] {
        assert_eq!(peer.within("the watch ends", watch).await, Err(TreeError::SessionLost));
    }
    assert_eq!(peer.within("the events end", events.next()).await, None);
}

async fn next_events(peer: &Peer<'_>, events: &mut Events, count: usize) -> Vec<Event> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(peer.within("an event", events.next()).await);
    }
    received
}

pub(super) async fn events_below_a_node_arrive_in_order(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut events = one.tree.watch_all(&path("/a")).await.expect("the engine responds");
    two.create_empty("/a").await;
    two.create_empty("/ab").await;
    two.create_empty("/a/b").await;
    two.create_empty("/a/b/c").await;
    two.set("/a/b", "x").await;
    two.delete("/a/b/c").await;
    two.delete("/a/b").await;
    two.delete("/a").await;
    two.create_empty("/a").await;
    let expected = [
        Event::Created(path("/a")),
        Event::Created(path("/a/b")),
        Event::Created(path("/a/b/c")),
        Event::Changed(path("/a/b")),
        Event::Deleted(path("/a/b/c")),
        Event::Deleted(path("/a/b")),
        Event::Deleted(path("/a")),
        Event::Created(path("/a")),
    ];
    assert_eq!(next_events(&one, &mut events, expected.len()).await, expected);
    assert_eq!(events.try_next(), None);
}

pub(super) async fn events_of_a_multi_arrive_in_order(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let mut events = peer.tree.watch_all(&path("/a")).await.expect("the engine responds");
    let create =
        |at: &str| Op::Create { path: path(at), data: Bytes::new(), mode: CreateMode::Persistent, acl: Acl::Open };
    let ops = vec![
        create("/a/b"),
        Op::Set { path: path("/a"), data: bytes("x"), expected: Expected::Any },
        create("/a/c"),
        Op::Delete { path: path("/a/b"), expected: Expected::Any },
    ];
    peer.tree.multi(ops).await.expect("each step succeeds");
    let expected = [
        Event::Created(path("/a/b")),
        Event::Changed(path("/a")),
        Event::Created(path("/a/c")),
        Event::Deleted(path("/a/b")),
    ];
    assert_eq!(next_events(&peer, &mut events, expected.len()).await, expected);
}

pub(super) async fn watches_fire_when_a_process_dies(subject: &dyn Subject) {
    let watcher = Peer::open(subject).await;
    watcher.create_empty("/a").await;
    let dying = Peer::open_short(subject).await;
    dying.create("/a/e", "", CreateMode::Ephemeral).await;
    watcher.tree.sync().await.expect("the engine responds");
    let (_, node) = watcher.tree.exists_and_watch(&path("/a/e")).await.expect("the engine responds");
    let (_, children) = watcher.tree.children_and_watch(&path("/a")).await.expect("the node exists");
    let mut events = watcher.tree.watch_all(&path("/a")).await.expect("the engine responds");
    dying.process.cut(true);
    assert_eq!(watcher.fired(node).await, Event::Deleted(path("/a/e")));
    assert_eq!(watcher.fired(children).await, Event::ChildrenChanged(path("/a")));
    assert_eq!(next_events(&watcher, &mut events, 1).await, [Event::Deleted(path("/a/e"))]);
}

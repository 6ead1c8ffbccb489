//! Cases about multis. A multi applies several steps as one change.

use super::*;
use coordination::tree::{DATA_BYTES_MAX, Done, OPS_MAX, Op};

fn create(at: &str, mode: CreateMode) -> Op {
    Op::Create { path: path(at), data: Bytes::new(), mode, acl: Acl::Open }
}

fn set(at: &str, data: &'static str) -> Op {
    Op::Set { path: path(at), data: bytes(data), expected: Expected::Any }
}

fn delete(at: &str) -> Op {
    Op::Delete { path: path(at), expected: Expected::Any }
}

fn check(at: &str, version: i32) -> Op {
    Op::Check { path: path(at), expected: Expected::Version(version) }
}

fn failed(at: usize, source: TreeError) -> TreeError {
    TreeError::Multi { at, source: Box::new(source) }
}

pub(super) async fn multi_is_one_change(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    peer.create_empty("/b").await;
    let ops = vec![check("/a", 0), set("/a", "x"), delete("/b"), create("/c-", CreateMode::PersistentSequential)];
    let done = peer.tree.multi(ops).await.expect("each step succeeds");
    let [Done::Check, Done::Set(set), Done::Delete, Done::Create(created)] = &done[..] else { panic!("{done:?}") };
    assert_eq!(
        (set.version, set.modified),
        (1, created.stat.created),
        "all steps of the multi have the same change number"
    );
    assert_eq!(peer.get("/a").await.data, bytes("x"));
    assert_eq!(peer.exists("/b").await, None);
    assert_eq!(peer.exists(created.path.as_str()).await, Some(created.stat.clone()));
}

pub(super) async fn each_step_of_a_multi_sees_the_previous_steps(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let ops = vec![
        create("/a", CreateMode::Persistent),
        create("/a/n-", CreateMode::PersistentSequential),
        create("/a/n-", CreateMode::PersistentSequential),
        set("/a", "x"),
        check("/a", 1),
        delete("/a/n-0000000000"),
    ];
    peer.tree.multi(ops).await.expect("each step succeeds");
    assert_eq!(peer.names("/a").await, ["n-0000000001"]);
}

pub(super) async fn failed_multi_changes_nothing_and_names_its_step(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    peer.create("/a/kept", "kept", CreateMode::Ephemeral).await;
    let before = (peer.get("/a").await, peer.get("/a/kept").await);
    for (at, ops, error) in [
        (0, vec![check("/a", 1), set("/a", "x")], TreeError::BadVersion),
        (1, vec![set("/a", "x"), create("/a", CreateMode::Persistent)], TreeError::NodeExists),
        (2, vec![delete("/a/kept"), create("/a/new", CreateMode::Ephemeral), delete("/no")], TreeError::NoNode),
        (1, vec![create("/a/n-", CreateMode::EphemeralSequential), delete("/a")], TreeError::NotEmpty),
    ] {
        assert_eq!(peer.tree.multi(ops).await, Err(failed(at, error)));
    }
    assert_eq!((peer.get("/a").await, peer.get("/a/kept").await), before);
    assert_eq!(peer.names("/a").await, ["kept"]);
    let next = peer.create("/a/n-", "", CreateMode::PersistentSequential).await;
    assert_eq!(next.path, path("/a/n-0000000001"), "a failed multi does not increment the next sequence number");
}

pub(super) async fn check_guards_the_other_steps_of_a_multi(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/lock").await;
    one.create_empty("/value").await;
    let guarded = |data| vec![check("/lock", 0), set("/value", data)];
    one.tree.multi(guarded("first")).await.expect("the lock node is unchanged");
    two.set("/lock", "taken").await;
    assert_eq!(one.tree.multi(guarded("late")).await, Err(failed(0, TreeError::BadVersion)));
    two.delete("/lock").await;
    assert_eq!(one.tree.multi(guarded("later")).await, Err(failed(0, TreeError::NoNode)));
    assert_eq!(two.get("/value").await.data, bytes("first"));
}

pub(super) async fn empty_multi_does_nothing(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    assert_eq!(peer.tree.multi(Vec::new()).await, Ok(Vec::new()));
}

pub(super) async fn multi_over_the_limit_is_rejected(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    let rejected = peer.tree.multi((0..=OPS_MAX).map(|_| check("/a", 0)).collect()).await;
    assert!(matches!(rejected, Err(TreeError::Invalid(_))), "{rejected:?}");
    let half = || Op::Set { path: path("/a"), data: vec![7; DATA_BYTES_MAX / 2 + 1].into(), expected: Expected::Any };
    let rejected = peer.tree.multi(vec![half(), half()]).await;
    assert!(matches!(rejected, Err(TreeError::Invalid(_))), "{rejected:?}");
    let done = peer.tree.multi((0..OPS_MAX).map(|_| check("/a", 0)).collect()).await;
    assert_eq!(done.map(|done| done.len()), Ok(OPS_MAX));
}

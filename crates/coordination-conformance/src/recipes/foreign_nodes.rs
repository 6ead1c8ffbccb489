//! Cases with nodes of other programs. Some nodes have names that do not belong to a recipe. Others have the name of a
//! deleted node.

use std::collections::BTreeSet;

use super::*;
use coordination::recipes::{Bag, BagChange, Group, LeaderQueue, PresenceState, RoleMatch};
use coordination::tree::CreateMode;

/// Node names that do not belong to the recipes. Some names have the formats of kazoo and Curator, and some are
/// malformed.
const FOREIGN: [&str; 7] = [
    "readme",
    "_c_6ba7b810-9dad-41d1-80b4-00c04fd430c8-lock-0000000000",
    "_c_6ba7b810-9dad-41d1-80b4-00c04fd430c8-latch-0000000001",
    "6ba7b8109dad41d180b400c04fd430c8__lock__0000000000",
    "item00000000x1",
    "candidate",
    "assignment-00000000001",
];

async fn put(peer: &Peer<'_>, at: &str) {
    let tree = peer.tree().await;
    let created = tree.create(&path(at), Bytes::from_static(b"others"), CreateMode::Persistent, Acl::Open).await;
    created.expect("the parent exists");
}

pub(super) async fn foreign_names_in_bags_queues_and_roles_are_ignored(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let bag = Bag::new(&one.client, &path("/bag"), Acl::Open).expect("the path is within the length limit");
    let queue = LeaderQueue::new(&one.client, &path("/queue"), Acl::Open).expect("the path is within the length limit");
    let roles = RoleMatch::new(&one.client, &path("/roles"), Acl::Open).expect("the path is within the length limit");
    let parents = [
        "/bag",
        "/bag/item",
        "/bag/token",
        "/queue",
        "/queue/candidate",
        "/roles",
        "/roles/jobs",
        "/roles/jobs/item",
        "/roles/assignment",
        "/roles/queue",
        "/roles/queue/candidate",
    ];
    for at in parents {
        put(&other, at).await;
    }
    let parents_with_foreign_nodes = [
        "/bag/item",
        "/bag/token",
        "/queue/candidate",
        "/roles/jobs/item",
        "/roles/assignment",
        "/roles/queue/candidate",
    ];
    for (parent, name) in parents_with_foreign_nodes.iter().flat_map(|parent| FOREIGN.map(|name| (parent, name))) {
        put(&other, &format!("{parent}/{name}")).await;
    }
    one.tree().await.sync().await.expect("the engine responds");

    let mut listener = bag.listen().await.expect("every session may access the bag");
    assert!(listener.present().is_empty(), "{:?}", listener.present());
    let id = bag.add(Bytes::new()).await.expect("every session may access the bag");
    put(&other, "/bag/item/later").await;
    let next = bag.add(Bytes::new()).await.expect("every session may access the bag");
    for id in [id, next] {
        assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Added(id));
    }
    assert_eq!(bag.ids().await, Ok(BTreeSet::from([id, next])));

    let candidacy = queue.join(Bytes::new()).await.expect("every session may access the queue");
    assert_eq!(queue.candidates().await.map(|all| all.len()), Ok(1));
    within(subject, "the process leads", candidacy.lead()).await.expect("the place exists").release().await;

    let job = roles.jobs().add(Bytes::new()).await.expect("every session may access the bag");
    let role = within(subject, "the process receives a job", roles.apply(&Bytes::new()))
        .await
        .expect("every session may access the node");
    assert_eq!(role.job, job);
    one.tree().await.sync().await.expect("the engine responds");
    assert!(roles.assignments().await.expect("every session may access the node").keys().eq([&job]));
    role.held.release().await;
    let names = other.line("/bag/item").await;
    assert!(FOREIGN.iter().all(|name| names.iter().any(|there| there == name)), "foreign nodes remain: {names:?}");
}

/// A process that uses Petting Zoo may die after it has created an item of a bag and before it has created the item's
/// token.
pub(super) async fn item_without_a_token_is_reported(subject: &dyn Subject) {
    let (one, dying) = (Peer::open(subject).await, Peer::open(subject).await);
    let bag = Bag::new(&one.client, &path("/bag"), Acl::Open).expect("the path is within the length limit");
    let first = bag.add(Bytes::new()).await.expect("every session may access the bag");
    let mut listener = bag.listen().await.expect("every session may access the bag");
    let item = path("/bag/item/item");
    let tree = dying.tree().await;
    let created = tree.create(&item, Bytes::new(), CreateMode::PersistentSequential, Acl::Open).await;
    let created = created.expect("the node exists");
    let second = Sequence::after(created.path.name(), "item").expect("the node's name ends with a sequence number");
    assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Added(second));
    assert_eq!(one.line("/bag/token").await, [format!("token{first}")], "the dead writer created no token");
    assert_eq!(bag.remove(second).await, Ok(true));
    assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Removed(second));
}

pub(super) async fn late_leave_does_not_remove_another_place(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let queue = |peer: &Peer<'_>| {
        LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is within the length limit")
    };
    let tree = other.tree().await;
    for is_own in [false, true] {
        let first = queue(&one).join(Bytes::new()).await.expect("every session may access the queue");
        let place = &other.line("/queue/candidate").await[..];
        let [name] = place else { panic!("the queue contains only the place of the process") };
        one.process.cut(true);
        // The process has no connection, so it cannot remove its place before it reconnects.
        drop(first);
        // When a process creates the parent node again, the sequence numbers of the child nodes start at zero again.
        tree.delete(&path(&format!("/queue/candidate/{name}")), Expected::Any)
            .await
            .expect("every session may access the node");
        tree.delete(&path("/queue/candidate"), Expected::Any).await.expect("the waiting line is empty");
        let owner = if is_own { &one } else { &other };
        let queue = queue(owner);
        let mut joining = queue.join(Bytes::new()).boxed();
        if is_own {
            assert!((&mut joining).now_or_never().is_none(), "the connection is cut");
            one.process.cut(false);
        }
        let second = within(subject, "the process joins", joining).await.expect("every session may access the queue");
        one.process.cut(false);
        assert_eq!(
            other.line("/queue/candidate").await,
            place,
            "the new place in the queue has the same name as the deleted place"
        );
        until(subject, "the process sends the pending removal request", async || one.tree().await.sync().await.is_ok())
            .await;
        for _ in 0..4 {
            short_wait(subject).await;
        }
        assert_eq!(other.line("/queue/candidate").await, place);
        within(subject, "the process leads", second.lead())
            .await
            .expect("the process still has its place in the queue")
            .release()
            .await;
        until(subject, "the waiting line is empty", async || other.line("/queue/candidate").await.is_empty()).await;
        tree.delete(&path("/queue/candidate"), Expected::Any).await.expect("the waiting line is empty");
    }
}

pub(super) async fn member_restores_its_node_after_foreign_changes(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let at = path("/groups/one/ann");
    let group = Group::new(&one.client, path("/groups/one"), Acl::Open);
    let ann = group.join("ann", Bytes::from_static(b"ours")).expect("the member's name is valid");
    within(subject, "the member's node exists", ann.present()).await.expect("every session may access the group");
    let (tree, mut seen) = (other.tree().await, ann.follow());
    tree.sync().await.expect("the engine responds");
    // Another session changes the member's data, and then deletes the member's node and its parent node.
    tree.set(&at, Bytes::from_static(b"theirs"), Expected::Any).await.expect("every session may access the node");
    tree.delete(&at, Expected::Any).await.expect("every session may access the node");
    drop(tree.delete(&path("/groups/one"), Expected::Any).await);
    until(subject, "the member's node exists again", async || {
        tree.sync().await.expect("the engine responds");
        tree.get(&at).await.is_ok_and(|node| node.data == "ours")
    })
    .await;
    // Another session replaces the member's node before the member can create it again.
    let swapped = [
        coordination::tree::Op::Delete { path: at.clone(), expected: Expected::Any },
        coordination::tree::Op::Create {
            path: at.clone(),
            data: "theirs".into(),
            mode: CreateMode::Ephemeral,
            acl: Acl::Open,
        },
    ];
    tree.multi(swapped.to_vec()).await.expect("every session may access the node");
    within(subject, "the member reports that its name is taken", seen.until(|seen| *seen == PresenceState::Taken))
        .await;
    ann.set(Bytes::from_static(b"ours, later")).expect("the member's data is within the size limit");
    short_wait(subject).await;
    assert_eq!(tree.get(&at).await.expect("the node exists").data, "theirs");
    drop(ann);
    for _ in 0..4 {
        short_wait(subject).await;
    }
    tree.sync().await.expect("the engine responds");
    assert_eq!(tree.get(&at).await.expect("the member does not delete the node of another session").data, "theirs");
}

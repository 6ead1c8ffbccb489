//! Nodes of others among ours: names that are none of a recipe's, and nodes that come to have a name that was ours.

use std::collections::BTreeSet;

use super::*;
use coordination::recipes::{Bag, BagChange, Group, LeaderQueue, PresenceState, RoleMatch};
use coordination::tree::CreateMode;

/// Beside a recipe's own: kazoo's and Curator's, and rubbish.
const STRANGE: [&str; 7] = [
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
    let made = tree.create(&path(at), Bytes::from_static(b"others"), CreateMode::Persistent, Acl::Open).await;
    made.expect("its parent is there");
}

pub(super) async fn names_of_others_in_bags_queues_and_roles_are_passed_over(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let bag = Bag::new(&one.client, &path("/bag"), Acl::Open).expect("a short path");
    let queue = LeaderQueue::new(&one.client, &path("/queue"), Acl::Open).expect("a short path");
    let roles = RoleMatch::new(&one.client, &path("/roles"), Acl::Open).expect("a short path");
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
    let strange_ones = [
        "/bag/item",
        "/bag/token",
        "/queue/candidate",
        "/roles/jobs/item",
        "/roles/assignment",
        "/roles/queue/candidate",
    ];
    for (parent, name) in strange_ones.iter().flat_map(|parent| STRANGE.map(|name| (parent, name))) {
        put(&other, &format!("{parent}/{name}")).await;
    }
    one.tree().await.sync().await.expect("the engine answers");

    let mut listener = bag.listen().await.expect("the bag is open");
    assert!(listener.present().is_empty(), "{:?}", listener.present());
    let id = bag.add(Bytes::new()).await.expect("the bag is open");
    put(&other, "/bag/item/later").await;
    let next = bag.add(Bytes::new()).await.expect("the bag is open");
    for id in [id, next] {
        assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Added(id));
    }
    assert_eq!(bag.ids().await, Ok(BTreeSet::from([id, next])));

    let candidacy = queue.join(Bytes::new()).await.expect("the queue is open");
    assert_eq!(queue.candidates().await.map(|all| all.len()), Ok(1));
    within(subject, "it leads", candidacy.lead()).await.expect("it stands there").release().await;

    let job = roles.jobs().add(Bytes::new()).await.expect("the bag is open");
    let role = within(subject, "it has a job", roles.apply(&Bytes::new())).await.expect("it is open to all");
    assert_eq!(role.job, job);
    one.tree().await.sync().await.expect("the engine answers");
    assert!(roles.assignments().await.expect("it is open to all").keys().eq([&job]));
    role.held.release().await;
    let names = other.standing("/bag/item").await;
    assert!(STRANGE.iter().all(|name| names.iter().any(|there| there == name)), "what others made stays: {names:?}");
}

/// Petting Zoo's writers may die between the two.
pub(super) async fn an_item_without_a_token_is_told(subject: &dyn Subject) {
    let (one, dying) = (Peer::open(subject).await, Peer::open(subject).await);
    let bag = Bag::new(&one.client, &path("/bag"), Acl::Open).expect("a short path");
    let first = bag.add(Bytes::new()).await.expect("the bag is open");
    let mut listener = bag.listen().await.expect("the bag is open");
    let item = path("/bag/item/item");
    let tree = dying.tree().await;
    let made = tree.create(&item, Bytes::new(), CreateMode::PersistentSequential, Acl::Open).await;
    let made = made.expect("it is there");
    let second = Sequence::after(made.path.name(), "item").expect("it has a number");
    assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Added(second));
    assert_eq!(one.standing("/bag/token").await, [format!("token{first}")], "nobody has made one");
    assert_eq!(bag.remove(second).await, Ok(true));
    assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Removed(second));
}

pub(super) async fn a_late_leave_takes_away_nobody_elses_place(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let queue = |peer: &Peer<'_>| LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("a short path");
    let tree = other.tree().await;
    for is_own in [false, true] {
        let first = queue(&one).join(Bytes::new()).await.expect("the queue is open");
        let place = &other.standing("/queue/candidate").await[..];
        let [name] = place else { panic!("one stands there") };
        one.process.cut(true);
        // Its removal waits for the connection.
        drop(first);
        // With the parent made anew, numbers begin anew.
        tree.delete(&path(&format!("/queue/candidate/{name}")), Expected::Any).await.expect("it is open to all");
        tree.delete(&path("/queue/candidate"), Expected::Any).await.expect("nobody stands there");
        let owner = if is_own { &one } else { &other };
        let queue = queue(owner);
        let mut joining = queue.join(Bytes::new()).boxed();
        if is_own {
            assert!((&mut joining).now_or_never().is_none(), "nothing gets through");
            one.process.cut(false);
        }
        let second = within(subject, "it joins", joining).await.expect("the queue is open");
        one.process.cut(false);
        assert_eq!(other.standing("/queue/candidate").await, place, "it has the name of the one before it");
        until(subject, "what was left is removed", async || one.tree().await.sync().await.is_ok()).await;
        for _ in 0..4 {
            a_moment(subject).await;
        }
        assert_eq!(other.standing("/queue/candidate").await, place);
        within(subject, "it leads", second.lead()).await.expect("its place is its own").release().await;
        until(subject, "nobody stands there", async || other.standing("/queue/candidate").await.is_empty()).await;
        tree.delete(&path("/queue/candidate"), Expected::Any).await.expect("nobody stands there");
    }
}

pub(super) async fn a_member_is_seen_again_whatever_others_do_to_its_node(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let at = path("/groups/one/ann");
    let group = Group::new(&one.client, path("/groups/one"), Acl::Open);
    let ann = group.join("ann", Bytes::from_static(b"ours")).expect("a name");
    within(subject, "it is seen", ann.present()).await.expect("the group is open");
    let (tree, mut seen) = (other.tree().await, ann.seen());
    tree.sync().await.expect("the engine answers");
    // Its data are changed, and then it is taken away, with its parent.
    tree.set(&at, Bytes::from_static(b"theirs"), Expected::Any).await.expect("it is open to all");
    tree.delete(&at, Expected::Any).await.expect("it is open to all");
    drop(tree.delete(&path("/groups/one"), Expected::Any).await);
    until(subject, "it is there again", async || {
        tree.sync().await.expect("the engine answers");
        tree.get(&at).await.is_ok_and(|node| node.data == "ours")
    })
    .await;
    // Somebody else has its name, before it can have it again.
    let swapped = [
        coordination::tree::Op::Delete { path: at.clone(), expected: Expected::Any },
        coordination::tree::Op::Create {
            path: at.clone(),
            data: "theirs".into(),
            mode: CreateMode::Ephemeral,
            acl: Acl::Open,
        },
    ];
    tree.multi(swapped.to_vec()).await.expect("it is open to all");
    within(subject, "it is told", seen.wait_for(|seen| *seen == PresenceState::Taken)).await.expect("it goes on");
    ann.set(Bytes::from_static(b"ours, later")).expect("it is not too much");
    a_moment(subject).await;
    assert_eq!(tree.get(&at).await.expect("it is there").data, "theirs");
    drop(ann);
    for _ in 0..4 {
        a_moment(subject).await;
    }
    tree.sync().await.expect("the engine answers");
    assert_eq!(tree.get(&at).await.expect("it is nobody's to take away").data, "theirs");
}

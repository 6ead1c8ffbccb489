//! Cases about the data, versions, change numbers and children of nodes.

use futures_util::future::join_all;

use super::*;
use coordination::tree::{DATA_BYTES_MAX, Sequence};

pub(super) async fn node_is_read_as_created(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let created = peer.create("/a", "data", CreateMode::Persistent).await;
    assert_eq!(created.path, path("/a"));
    let stat = created.stat.clone();
    assert_eq!((stat.version, stat.children_version, stat.acl_version), (0, 0, 0));
    assert_eq!((stat.owner, stat.data_bytes, stat.children), (None, 4, 0));
    assert_eq!((stat.created, stat.created), (stat.modified, stat.children_modified));
    let other = Peer::open(subject).await;
    assert_eq!(other.get("/a").await, Node { data: bytes("data"), stat: created.stat.clone() });
    assert_eq!(other.exists("/a").await, Some(created.stat));
    let owned = peer.create("/e", "", CreateMode::Ephemeral).await;
    assert_eq!(owned.stat.owner, Some(peer.tree.session().id()));
}

pub(super) async fn missing_node_is_reported(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let nowhere = path("/nowhere");
    assert_eq!(peer.exists("/nowhere").await, None);
    assert_eq!(peer.tree.get(&nowhere).await, Err(TreeError::NoNode));
    assert_eq!(peer.tree.children(&nowhere).await, Err(TreeError::NoNode));
    assert_eq!(peer.tree.set(&nowhere, bytes("x"), Expected::Any).await, Err(TreeError::NoNode));
    assert_eq!(peer.tree.delete(&nowhere, Expected::Any).await, Err(TreeError::NoNode));
    assert_eq!(peer.tree.acl(&nowhere).await, Err(TreeError::NoNode));
    assert_eq!(peer.tree.get_and_watch(&nowhere).await.err(), Some(TreeError::NoNode));
    assert_eq!(peer.tree.children_and_watch(&nowhere).await.err(), Some(TreeError::NoNode));
}

pub(super) async fn node_is_created_once_and_below_its_parent(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    assert_eq!(peer.try_create("/a/b", "", CreateMode::Persistent).await, Err(TreeError::NoNode));
    peer.create("/a", "first", CreateMode::Persistent).await;
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        assert_eq!(peer.try_create("/a", "second", mode).await, Err(TreeError::NodeExists), "{mode:?}");
    }
    peer.create_empty("/a/b").await;
    assert_eq!(peer.get("/a").await.data, bytes("first"));
}

pub(super) async fn root_exists_and_cannot_be_deleted(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    assert!(peer.exists("/").await.is_some());
    assert!(peer.tree.delete(&NodePath::root(), Expected::Any).await.is_err());
    assert!(peer.try_create("/", "", CreateMode::Persistent).await.is_err());
    assert!(peer.exists("/").await.is_some());
}

pub(super) async fn set_increments_the_version(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let made = peer.create("/a", "0", CreateMode::Persistent).await.stat;
    let first = peer.set("/a", "first").await;
    assert_eq!((first.version, first.created, first.data_bytes), (1, made.created, 5));
    assert!(first.modified > made.modified);
    let again = peer.tree.set(&path("/a"), bytes("first"), Expected::Version(1)).await;
    assert_eq!(again.map(|stat| stat.version), Ok(2), "writing identical data also increments the version of the node");
    assert_eq!(peer.get("/a").await.data, bytes("first"));
}

pub(super) async fn wrong_expected_version_changes_nothing(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create("/a", "0", CreateMode::Persistent).await;
    let before = peer.get("/a").await;
    for wrong in [1, 7] {
        let set = peer.tree.set(&path("/a"), bytes("x"), Expected::Version(wrong)).await;
        assert_eq!(set, Err(TreeError::BadVersion));
        assert_eq!(peer.tree.delete(&path("/a"), Expected::Version(wrong)).await, Err(TreeError::BadVersion));
    }
    assert_eq!(peer.get("/a").await, before);
    assert_eq!(peer.tree.delete(&path("/a"), Expected::Version(0)).await, Ok(()));
    assert_eq!(peer.exists("/a").await, None);
}

pub(super) async fn node_with_children_cannot_be_deleted(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/a").await;
    peer.create_empty("/a/b").await;
    assert_eq!(peer.tree.delete(&path("/a"), Expected::Any).await, Err(TreeError::NotEmpty));
    peer.delete("/a/b").await;
    peer.delete("/a").await;
    assert_eq!(peer.exists("/a").await, None);
}

pub(super) async fn children_are_direct_and_sorted_by_name(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    for at in ["/a", "/a/y", "/a/y/deep", "/a/x", "/a/y-1", "/ab", "/ab/other"] {
        peer.create_empty(at).await;
    }
    assert_eq!(peer.names("/a").await, ["x", "y", "y-1"]);
    assert_eq!(peer.names("/a/y-1").await, [""; 0]);
    let stat = peer.exists("/a").await.expect("the node exists");
    assert_eq!((stat.children, stat.children_version, stat.version), (3, 3, 0));
    peer.delete("/a/x").await;
    let later = peer.exists("/a").await.expect("the node exists");
    assert_eq!((later.children, later.children_version), (2, 4));
    assert!(later.children_modified > stat.children_modified && later.modified == stat.modified);
}

pub(super) async fn changes_are_numbered_in_order(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let first = one.create_empty("/a").await.stat.created;
    let second = two.create_empty("/b").await.stat.created;
    one.delete("/a").await;
    let third = one.create_empty("/a").await.stat.created;
    let fourth = two.set("/a", "x").await.modified;
    assert!(first < second && second < third && third < fourth, "{first:?} {second:?} {third:?} {fourth:?}");
}

pub(super) async fn sequential_names_rise_and_are_never_reused(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/s").await;
    let mut last = None;
    for round in 0..6 {
        let peer = if round % 2 == 0 { &one } else { &two };
        let mode = if round < 3 { CreateMode::PersistentSequential } else { CreateMode::EphemeralSequential };
        let created = peer.create("/s/n-", "", mode).await;
        let sequence = Sequence::after(created.path.name(), "n-").expect("the node's name ends with a sequence number");
        assert!(created.path.is_within(&path("/s")) && last < Some(sequence), "{created:?} after {last:?}");
        last = Some(sequence);
        peer.delete(created.path.as_str()).await;
    }
    assert_eq!(last, Some(Sequence(5)));
    let nameless = one.create("/s/x", "", CreateMode::PersistentSequential).await;
    assert_eq!(nameless.path, path("/s/x0000000006"));
}

pub(super) async fn sequence_counts_all_children(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create_empty("/s").await;
    peer.create_empty("/s/plain").await;
    peer.delete("/s/plain").await;
    let created = peer.create("/s/n-", "", CreateMode::PersistentSequential).await;
    assert_eq!(created.path, path("/s/n-0000000001"));
}

pub(super) async fn ephemeral_node_has_no_children(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create("/e", "", CreateMode::Ephemeral).await;
    for mode in [CreateMode::Persistent, CreateMode::EphemeralSequential] {
        assert_eq!(peer.try_create("/e/child", "", mode).await, Err(TreeError::NoChildrenForEphemerals));
    }
}

pub(super) async fn container_is_deleted_after_its_last_child(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.create("/c", "", CreateMode::Container).await;
    peer.create_empty("/c/one").await;
    peer.create_empty("/c/two").await;
    peer.delete("/c/one").await;
    assert_eq!(peer.names("/c").await, ["two"]);
    peer.delete("/c/two").await;
    peer.until("the engine deletes the empty container node", async || peer.exists("/c").await.is_none()).await;
}

pub(super) async fn oversized_data_is_rejected(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let most = Bytes::from(vec![7; DATA_BYTES_MAX]);
    let over = Bytes::from(vec![7; DATA_BYTES_MAX + 1]);
    let mode = CreateMode::Persistent;
    let rejected = peer.tree.create(&path("/a"), over.clone(), mode, Acl::Open).await;
    assert!(matches!(rejected, Err(TreeError::Invalid(_))), "{rejected:?}");
    peer.tree.create(&path("/a"), most.clone(), mode, Acl::Open).await.expect("the data is within the size limit");
    let rejected = peer.tree.set(&path("/a"), over, Expected::Any).await;
    assert!(matches!(rejected, Err(TreeError::Invalid(_))), "{rejected:?}");
    assert_eq!(peer.get("/a").await.data, most);
}

pub(super) async fn one_of_many_concurrent_creates_succeeds(subject: &dyn Subject) {
    let mut peers = Vec::new();
    for _ in 0..5 {
        peers.push(Peer::open(subject).await);
    }
    let made = join_all(peers.iter().map(|peer| peer.try_create("/one", "", CreateMode::Ephemeral))).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1);
    assert!(made.iter().all(|made| matches!(made, Ok(_) | Err(TreeError::NodeExists))), "{made:?}");
}

pub(super) async fn versioned_increments_are_never_lost(subject: &dyn Subject) {
    const EACH: usize = 10;
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(Peer::open(subject).await);
    }
    peers[0].create("/count", "0", CreateMode::Persistent).await;
    join_all(peers.iter().map(|peer| async {
        let mut done = 0;
        while done < EACH {
            let node = peer.get("/count").await;
            let count: usize = std::str::from_utf8(&node.data)
                .ok()
                .and_then(|text| text.parse().ok())
                .expect("the node's data is a number");
            let next = Bytes::from((count + 1).to_string());
            match peer.tree.set(&path("/count"), next, Expected::Version(node.stat.version)).await {
                Ok(_) => done += 1,
                Err(TreeError::BadVersion) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }))
    .await;
    assert_eq!(peers[0].get("/count").await.data, bytes("40"));
}

pub(super) async fn sync_makes_changes_of_others_visible(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.create_empty("/a").await;
    for round in 1..=20 {
        let version = one.set("/a", "x").await.version;
        assert_eq!((version, two.get("/a").await.stat.version), (round, round));
    }
}

//! Cases about access lists.

use super::*;
use coordination::tree::{Grant, Identity, Permissions};

fn alice() -> Credentials {
    Credentials { name: "alice".to_owned(), password: "of the looking-glass".to_owned() }
}

fn wrong_password() -> Credentials {
    Credentials { name: "alice".to_owned(), password: "of nowhere".to_owned() }
}

async fn create(peer: &Peer<'_>, at: &str, acl: Acl) -> Result<Created, TreeError> {
    peer.tree.create(&path(at), bytes("data"), CreateMode::Persistent, acl).await
}

pub(super) async fn creators_node_is_closed_to_others(subject: &dyn Subject) {
    let peer = Peer::open_as(subject, &[alice()]).await;
    create(&peer, "/a", Acl::Creator).await.expect("the creator has credentials");
    create(&peer, "/a/b", Acl::Creator).await.expect("the node belongs to the creator");
    let at = path("/a");
    for other in [Peer::open(subject).await, Peer::open_as(subject, &[wrong_password()]).await] {
        other.tree.sync().await.expect("the engine responds");
        let forbidden = Some(TreeError::Forbidden);
        assert_eq!(other.tree.get(&at).await.err(), forbidden);
        assert_eq!(other.tree.children(&at).await.err(), forbidden);
        assert_eq!(other.tree.get_and_watch(&at).await.err(), forbidden);
        assert_eq!(other.tree.set(&at, bytes("x"), Expected::Any).await.err(), forbidden);
        assert_eq!(create(&other, "/a/c", Acl::Open).await.err(), forbidden);
        assert_eq!(other.tree.delete(&path("/a/b"), Expected::Any).await.err(), forbidden);
        assert_eq!(other.tree.acl(&at).await.err(), forbidden);
        assert_eq!(other.tree.set_acl(&at, Acl::Open).await.err(), forbidden);
    }
    let again = Peer::open_as(subject, &[wrong_password(), alice()]).await;
    assert_eq!(again.get("/a").await.data, bytes("data"), "the correct password identifies the creator");
    again.delete("/a/b").await;
    again.delete("/a").await;
}

pub(super) async fn readable_node_is_changed_only_by_its_creator(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    create(&peer, "/a", Acl::CreatorReadable).await.expect("the creator has credentials");
    assert_eq!(other.get("/a").await.data, bytes("data"));
    assert_eq!(other.names("/a").await, [""; 0]);
    assert_eq!(other.tree.set(&path("/a"), bytes("x"), Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(create(&other, "/a/b", Acl::Open).await.err(), Some(TreeError::Forbidden));
    peer.set("/a", "hers").await;
    assert_eq!(other.get("/a").await.data, bytes("hers"));
}

pub(super) async fn parents_access_list_governs_create_and_delete(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    create(&peer, "/open", Acl::Open).await.expect("every session may create nodes in the root");
    create(&peer, "/open/hers", Acl::Creator).await.expect("the creator has credentials");
    other.delete("/open/hers").await;
    let create_only = vec![Grant { to: Identity::Anyone, permissions: Permissions::CREATE.and(Permissions::READ) }];
    create(&peer, "/box", Acl::Grants(create_only)).await.expect("an access list need not contain the creator");
    create(&other, "/box/letter", Acl::Open).await.expect("every session may create children of /box");
    for one in [&peer, &other] {
        assert_eq!(one.tree.delete(&path("/box/letter"), Expected::Any).await, Err(TreeError::Forbidden));
    }
}

pub(super) async fn creator_access_requires_credentials(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    for acl in [Acl::Creator, Acl::CreatorReadable, Acl::Grants(Vec::new())] {
        assert_eq!(create(&peer, "/a", acl).await.err(), Some(TreeError::InvalidAcl));
    }
    assert_eq!(peer.exists("/a").await, None);
}

pub(super) async fn access_list_change_requires_permission(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    create(&peer, "/a", Acl::CreatorReadable).await.expect("the creator has credentials");
    assert_eq!(other.tree.set_acl(&path("/a"), Acl::Open).await, Err(TreeError::Forbidden));
    let stat = peer.tree.set_acl(&path("/a"), Acl::Open).await.expect("the node belongs to the creator");
    assert_eq!((stat.acl_version, stat.version), (1, 0));
    // After another ZooKeeper server has confirmed the new list, the leader may use the old list for a moment.
    let allowed = async {
        while other.tree.set(&path("/a"), bytes("open"), Expected::Any).await == Err(TreeError::Forbidden) {
            subject.runtime().sleep(Duration::from_millis(5)).await;
        }
    };
    subject.runtime().timeout(LIMIT, allowed).await.expect("the new access list permits the change");
    peer.tree.set_acl(&path("/a"), Acl::Creator).await.expect("every session may access the node");
    other.tree.sync().await.expect("the engine responds");
    assert_eq!(other.tree.get(&path("/a")).await, Err(TreeError::Forbidden));
}

pub(super) async fn access_list_is_returned_as_created(subject: &dyn Subject) {
    let peer = Peer::open_as(subject, &[alice()]).await;
    let hers = Grant { to: alice().identity(), permissions: Permissions::ALL };
    let all = |permissions| Grant { to: Identity::Anyone, permissions };
    create(&peer, "/open", Acl::Open).await.expect("every session may create nodes in the root");
    create(&peer, "/hers", Acl::Creator).await.expect("the creator has credentials");
    create(&peer, "/readable", Acl::CreatorReadable).await.expect("the creator has credentials");
    assert_eq!(peer.tree.acl(&path("/open")).await, Ok(vec![all(Permissions::ALL)]));
    assert_eq!(peer.tree.acl(&path("/hers")).await, Ok(vec![hers.clone()]));
    assert_eq!(peer.tree.acl(&path("/readable")).await, Ok(vec![hers, all(Permissions::READ)]));
}

pub(super) async fn digest_is_visible_only_with_admin_permission(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    create(&peer, "/a", Acl::CreatorReadable).await.expect("the creator has credentials");
    other.tree.sync().await.expect("the engine responds");
    let hidden = Grant { to: Identity::Digest("alice:x".to_owned()), permissions: Permissions::ALL };
    let read = Grant { to: Identity::Anyone, permissions: Permissions::READ };
    assert_eq!(other.tree.acl(&path("/a")).await, Ok(vec![hidden, read]));
    peer.tree.set_acl(&path("/a"), Acl::Creator).await.expect("the node belongs to the creator");
    other.tree.sync().await.expect("the engine responds");
    assert_eq!(other.tree.acl(&path("/a")).await, Err(TreeError::Forbidden));
}

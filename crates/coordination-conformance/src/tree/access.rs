//! Who may do what.

use super::*;
use coordination::tree::{Grant, Identity, Permissions};

fn alice() -> Credentials {
    Credentials { name: "alice".to_owned(), password: "of the looking-glass".to_owned() }
}

fn stranger() -> Credentials {
    Credentials { name: "alice".to_owned(), password: "of nowhere".to_owned() }
}

async fn make(peer: &Peer<'_>, at: &str, acl: Acl) -> Result<Created, TreeError> {
    peer.tree.create(&path(at), bytes("data"), CreateMode::Persistent, acl).await
}

pub(super) async fn a_creators_node_is_closed_to_strangers(subject: &dyn Subject) {
    let peer = Peer::open_as(subject, &[alice()]).await;
    make(&peer, "/a", Acl::Creator).await.expect("she gave credentials");
    make(&peer, "/a/b", Acl::Creator).await.expect("it is hers");
    let at = path("/a");
    for other in [Peer::open(subject).await, Peer::open_as(subject, &[stranger()]).await] {
        other.tree.sync().await.expect("the engine answers");
        let refused = Some(TreeError::Forbidden);
        assert_eq!(other.tree.get(&at).await.err(), refused);
        assert_eq!(other.tree.children(&at).await.err(), refused);
        assert_eq!(other.tree.get_and_watch(&at).await.err(), refused);
        assert_eq!(other.tree.set(&at, bytes("x"), Expected::Any).await.err(), refused);
        assert_eq!(make(&other, "/a/c", Acl::Open).await.err(), refused);
        assert_eq!(other.tree.delete(&path("/a/b"), Expected::Any).await.err(), refused);
        assert_eq!(other.tree.acl(&at).await.err(), refused);
        assert_eq!(other.tree.set_acl(&at, Acl::Open).await.err(), refused);
    }
    let again = Peer::open_as(subject, &[stranger(), alice()]).await;
    assert_eq!(again.get("/a").await.data, bytes("data"), "who has her password is her");
    again.delete("/a/b").await;
    again.delete("/a").await;
}

pub(super) async fn a_readable_node_is_read_by_all_and_changed_by_its_creator(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    make(&peer, "/a", Acl::CreatorReadable).await.expect("she gave credentials");
    assert_eq!(other.get("/a").await.data, bytes("data"));
    assert_eq!(other.names("/a").await, [""; 0]);
    assert_eq!(other.tree.set(&path("/a"), bytes("x"), Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(make(&other, "/a/b", Acl::Open).await.err(), Some(TreeError::Forbidden));
    peer.set("/a", "hers").await;
    assert_eq!(other.get("/a").await.data, bytes("hers"));
}

pub(super) async fn a_parents_list_decides_who_makes_and_removes(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    make(&peer, "/open", Acl::Open).await.expect("the root is open");
    make(&peer, "/open/hers", Acl::Creator).await.expect("she gave credentials");
    other.delete("/open/hers").await;
    let create_only = vec![Grant { to: Identity::Anyone, permissions: Permissions::CREATE.and(Permissions::READ) }];
    make(&peer, "/box", Acl::Grants(create_only)).await.expect("a list may leave its maker out");
    make(&other, "/box/letter", Acl::Open).await.expect("all may put in");
    for one in [&peer, &other] {
        assert_eq!(one.tree.delete(&path("/box/letter"), Expected::Any).await, Err(TreeError::Forbidden));
    }
}

pub(super) async fn who_gave_no_credentials_makes_nothing_of_their_own(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    for acl in [Acl::Creator, Acl::CreatorReadable, Acl::Grants(Vec::new())] {
        assert_eq!(make(&peer, "/a", acl).await.err(), Some(TreeError::InvalidAcl));
    }
    assert_eq!(peer.exists("/a").await, None);
}

pub(super) async fn only_who_may_changes_the_list(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    make(&peer, "/a", Acl::CreatorReadable).await.expect("she gave credentials");
    assert_eq!(other.tree.set_acl(&path("/a"), Acl::Open).await, Err(TreeError::Forbidden));
    let stat = peer.tree.set_acl(&path("/a"), Acl::Open).await.expect("it is hers");
    assert_eq!((stat.acl_version, stat.version), (1, 0));
    other.set("/a", "open").await;
    peer.tree.set_acl(&path("/a"), Acl::Creator).await.expect("all may");
    other.tree.sync().await.expect("the engine answers");
    assert_eq!(other.tree.get(&path("/a")).await, Err(TreeError::Forbidden));
}

pub(super) async fn a_list_is_told_as_it_was_made(subject: &dyn Subject) {
    let peer = Peer::open_as(subject, &[alice()]).await;
    let hers = Grant { to: alice().identity(), permissions: Permissions::ALL };
    let all = |permissions| Grant { to: Identity::Anyone, permissions };
    make(&peer, "/open", Acl::Open).await.expect("the root is open");
    make(&peer, "/hers", Acl::Creator).await.expect("she gave credentials");
    make(&peer, "/readable", Acl::CreatorReadable).await.expect("she gave credentials");
    assert_eq!(peer.tree.acl(&path("/open")).await, Ok(vec![all(Permissions::ALL)]));
    assert_eq!(peer.tree.acl(&path("/hers")).await, Ok(vec![hers.clone()]));
    assert_eq!(peer.tree.acl(&path("/readable")).await, Ok(vec![hers, all(Permissions::READ)]));
}

pub(super) async fn a_digest_is_told_to_those_only_who_may_change_the_list(subject: &dyn Subject) {
    let (peer, other) = (Peer::open_as(subject, &[alice()]).await, Peer::open(subject).await);
    make(&peer, "/a", Acl::CreatorReadable).await.expect("she gave credentials");
    other.tree.sync().await.expect("the engine answers");
    let hidden = Grant { to: Identity::Digest("alice:x".to_owned()), permissions: Permissions::ALL };
    let read = Grant { to: Identity::Anyone, permissions: Permissions::READ };
    assert_eq!(other.tree.acl(&path("/a")).await, Ok(vec![hidden, read]));
    peer.tree.set_acl(&path("/a"), Acl::Creator).await.expect("it is hers");
    other.tree.sync().await.expect("the engine answers");
    assert_eq!(other.tree.acl(&path("/a")).await, Err(TreeError::Forbidden));
}

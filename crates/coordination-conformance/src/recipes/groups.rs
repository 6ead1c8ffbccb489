//! Groups of processes that are seen.

use super::*;
use coordination::recipes::{Followed, Group, Members, Presence, PresenceState};
use coordination::tree::CreateMode;

fn group(peer: &Peer<'_>) -> Group {
    Group::new(&peer.client, path("/groups/one"), Acl::Open)
}

async fn joined(peer: &Peer<'_>, name: &str) -> Presence {
    let presence = group(peer).join(name, Bytes::from_static(b"first")).expect("the name is one");
    within(peer.subject, "it is seen", presence.present()).await.expect("the group is open");
    presence
}

async fn are(subject: &dyn Subject, members: &mut Followed<Members>, names: &[&str]) {
    let are = members.until(|now| now.is_current && now.members.keys().eq(names));
    within(subject, &format!("they are {names:?}"), are).await;
}

pub(super) async fn members_come_and_go(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut members = group(&one).members().await.expect("the group is open");
    are(subject, &mut members, &[]).await;
    let (ann, bob) = (joined(&one, "ann").await, joined(&two, "bob").await);
    are(subject, &mut members, &["ann", "bob"]).await;
    bob.set(Bytes::from_static(b"second")).expect("it is not too much");
    let says = members.until(|now| now.members.get("bob").is_some_and(|data| data == "second"));
    within(subject, "what it says is seen", says).await;
    drop(bob);
    are(subject, &mut members, &["ann"]).await;
    drop(ann);
    are(subject, &mut members, &[]).await;
}

pub(super) async fn a_member_is_seen_again_after_its_session_was_lost(subject: &dyn Subject) {
    let (watching, cut) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let mut members = group(&watching).members().await.expect("the group is open");
    let presence = joined(&cut, "ann").await;
    are(subject, &mut members, &["ann"]).await;
    let mut theirs = group(&cut).members().await.expect("the group is open");
    are(subject, &mut theirs, &["ann"]).await;
    cut.process.cut(true);
    are(subject, &mut members, &[]).await;
    let stale = theirs.until(|now| !now.is_current);
    assert!(within(subject, "who is cut off knows it", stale).await.members.contains_key("ann"));
    presence.set(Bytes::from_static(b"later")).expect("it is not too much");
    cut.process.cut(false);
    are(subject, &mut members, &["ann"]).await;
    assert_eq!(members.now().members["ann"], "later");
    are(subject, &mut theirs, &["ann"]).await;
}

pub(super) async fn a_name_that_is_taken_is_told_and_had_once_it_is_free(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let first = joined(&one, "ann").await;
    let second = group(&two).join("ann", Bytes::new()).expect("the name is one");
    let mut seen = second.seen();
    within(subject, "it is told", seen.wait_for(|seen| *seen == PresenceState::Taken)).await.expect("it goes on");
    drop(first);
    within(subject, "it is seen", second.present()).await.expect("the group is open");
    // Beside another of the same session, too.
    let third = group(&two).join("ann", Bytes::new()).expect("the name is one");
    let mut waits = third.seen();
    within(subject, "it is told", waits.wait_for(|seen| *seen == PresenceState::Taken)).await.expect("it goes on");
    a_moment(subject).await;
    assert_eq!(
        (second.seen().borrow().clone(), waits.borrow().clone()),
        (PresenceState::Present, PresenceState::Taken)
    );
    for name in ["", "..", "a/b"] {
        assert!(group(&one).join(name, Bytes::new()).is_err());
    }
}

pub(super) async fn a_follower_sees_all_that_is_below_and_nothing_stale(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let tree = one.tree().await;
    let make = |at: &'static str| tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open);
    for at in ["/groups", "/groups/one", "/groups/one/a"] {
        make(at).await.expect("the root is open");
    }
    let mut members = group(&two).members().await.expect("the group is open");
    are(subject, &mut members, &["a"]).await;
    // Again and again at the same place.
    for round in 0..20 {
        tree.delete(&path("/groups/one/a"), Expected::Any).await.expect("it is there");
        let text = Bytes::from(round.to_string());
        let made = tree.create(&path("/groups/one/a"), text.clone(), CreateMode::Persistent, Acl::Open).await;
        made.expect("its parent is there");
        if round % 4 == 0 {
            let last = members.until(|now| now.members.get("a") == Some(&text));
            within(subject, "the last one is seen", last).await;
        }
    }
    let last = members.until(|now| now.members.get("a").is_some_and(|data| data == "19"));
    within(subject, "the last one is seen", last).await;
}

pub(super) async fn a_path_is_made_with_all_above_it_and_stays(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (deep, tree) = (path("/made/of/parts"), two.tree().await);
    let both = futures_util::future::join(one.client.ensure(&deep, &Acl::Open), two.client.ensure(&deep, &Acl::Open));
    assert_eq!(within(subject, "it is made", both).await, (Ok(()), Ok(())));
    tree.set(&deep, "kept".into(), Expected::Any).await.expect("it is there");
    assert_eq!(one.client.ensure(&deep, &Acl::Open).await, Ok(()));
    one.client.close().await.expect("it can be closed");
    let node = tree.get(&deep).await.expect("it stays");
    assert_eq!((node.stat.owner, &node.data[..]), (None, &b"kept"[..]));
}

//! Cases about groups and their members.

use super::*;
use coordination::recipes::{Followed, Group, Members, Presence, PresenceState};
use coordination::tree::CreateMode;

fn group(peer: &Peer<'_>) -> Group {
    Group::new(&peer.client, path("/groups/one"), Acl::Open)
}

async fn joined(peer: &Peer<'_>, name: &str) -> Presence {
    let presence = group(peer).join(name, Bytes::from_static(b"first")).expect("the member's name is valid");
    within(peer.subject, "the member's node exists", presence.present())
        .await
        .expect("every session may access the group");
    presence
}

async fn wait_for_members(subject: &dyn Subject, members: &mut Followed<Members>, names: &[&str]) {
    let are = members.until(|now| now.is_current && now.members.keys().eq(names));
    within(subject, &format!("the members are {names:?}"), are).await;
}

pub(super) async fn members_join_and_leave(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut members = group(&one).follow().await.expect("every session may access the group");
    wait_for_members(subject, &mut members, &[]).await;
    let (ann, bob) = (joined(&one, "ann").await, joined(&two, "bob").await);
    wait_for_members(subject, &mut members, &["ann", "bob"]).await;
    bob.set(Bytes::from_static(b"second")).expect("the member's data is within the size limit");
    let says = members.until(|now| now.members.get("bob").is_some_and(|data| data == "second"));
    within(subject, "the follower receives the member's new data", says).await;
    drop(bob);
    wait_for_members(subject, &mut members, &["ann"]).await;
    drop(ann);
    wait_for_members(subject, &mut members, &[]).await;
}

pub(super) async fn member_rejoins_after_a_lost_session(subject: &dyn Subject) {
    let (watching, cut) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let mut members = group(&watching).follow().await.expect("every session may access the group");
    let presence = joined(&cut, "ann").await;
    wait_for_members(subject, &mut members, &["ann"]).await;
    let mut theirs = group(&cut).follow().await.expect("every session may access the group");
    wait_for_members(subject, &mut theirs, &["ann"]).await;
    cut.process.cut(true);
    wait_for_members(subject, &mut members, &[]).await;
    let stale = theirs.until(|now| !now.is_current);
    assert!(
        within(subject, "a disconnected follower reports that its data is outdated", stale)
            .await
            .members
            .contains_key("ann")
    );
    presence.set(Bytes::from_static(b"later")).expect("the member's data is within the size limit");
    cut.process.cut(false);
    wait_for_members(subject, &mut members, &["ann"]).await;
    assert_eq!(members.now().members["ann"], "later");
    wait_for_members(subject, &mut theirs, &["ann"]).await;
}

pub(super) async fn taken_name_is_reported_and_obtained_once_free(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let first = joined(&one, "ann").await;
    let second = group(&two).join("ann", Bytes::new()).expect("the member's name is valid");
    let mut seen = second.follow();
    within(
        subject,
        "the second member reports that its name is taken",
        seen.until(|seen| *seen == PresenceState::Taken),
    )
    .await;
    drop(first);
    within(subject, "the node of the second member exists", second.present())
        .await
        .expect("every session may access the group");
    // Two members of the same session cannot have the same name.
    let third = group(&two).join("ann", Bytes::new()).expect("the member's name is valid");
    let mut waits = third.follow();
    within(
        subject,
        "the third member reports that its name is taken",
        waits.until(|seen| *seen == PresenceState::Taken),
    )
    .await;
    short_wait(subject).await;
    assert_eq!((second.follow().now(), waits.now()), (PresenceState::Present, PresenceState::Taken));
    for name in ["", "..", "a/b"] {
        assert!(group(&one).join(name, Bytes::new()).is_err());
    }
}

pub(super) async fn follower_shows_current_children_after_recreations(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let tree = one.tree().await;
    let create = |at: &'static str| tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open);
    for at in ["/groups", "/groups/one", "/groups/one/a"] {
        create(at).await.expect("every session may create nodes in the root");
    }
    let mut members = group(&two).follow().await.expect("every session may access the group");
    wait_for_members(subject, &mut members, &["a"]).await;
    // The session repeatedly deletes the node and creates it at the same path again.
    for round in 0..20 {
        tree.delete(&path("/groups/one/a"), Expected::Any).await.expect("the node exists");
        let text = Bytes::from(round.to_string());
        let created = tree.create(&path("/groups/one/a"), text.clone(), CreateMode::Persistent, Acl::Open).await;
        created.expect("the parent exists");
        if round % 4 == 0 {
            let last = members.until(|now| now.members.get("a") == Some(&text));
            within(subject, "the follower receives the last value of the node", last).await;
        }
    }
    let last = members.until(|now| now.members.get("a").is_some_and(|data| data == "19"));
    within(subject, "the follower receives the last value of the node", last).await;
}

pub(super) async fn ensured_path_has_all_parents_and_persists(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (deep, tree) = (path("/made/of/parts"), two.tree().await);
    let both = futures_util::future::join(one.client.ensure(&deep, &Acl::Open), two.client.ensure(&deep, &Acl::Open));
    assert_eq!(within(subject, "both clients create the path", both).await, (Ok(()), Ok(())));
    tree.set(&deep, "kept".into(), Expected::Any).await.expect("the node exists");
    assert_eq!(one.client.ensure(&deep, &Acl::Open).await, Ok(()));
    one.client.close().await.expect("the engine closes the session");
    let node = tree.get(&deep).await.expect("the node remains");
    assert_eq!((node.stat.owner, &node.data[..]), (None, &b"kept"[..]));
}

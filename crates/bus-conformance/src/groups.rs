//! Cases about the members of a group and their partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::{BusError, ConsumerOptions, TopicOptions};

use crate::Subject;
use crate::fixtures::{A_WHILE, LONG, Member, Scene, assert_one_owner, new_topic, unique, until_all};

pub(crate) async fn members_share_the_partitions(subject: &dyn Subject) {
    let scene = Scene::new(subject, 6).await;
    let mut members = vec![scene.join().await];
    until_all(&mut members, "one member owns all", |members| members[0].count() == 6).await;
    members.push(scene.join().await);
    until_all(&mut members, "each member owns 3", |members| members.iter().all(|one| one.count() == 3)).await;
    members.push(scene.join().await);
    until_all(&mut members, "each member owns 2", |members| members.iter().all(|one| one.count() == 2)).await;
    for index in 0..6 {
        scene.send(index, [u64::from(index)]).await;
    }
    let received = |member: &Member| member.received.values().flatten().count();
    until_all(&mut members, "each member has 2 records", |members| members.iter().all(|one| received(one) == 2)).await;
}

pub(crate) async fn each_group_receives_all_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    scene.send(0, 0..10).await;
    scene.send(1, 0..10).await;
    for _ in 0..2 {
        let options = ConsumerOptions { group: unique(&scene.runtime, "other"), ..scene.options() };
        let mut member = scene.join_with(options).await;
        member.until("all records arrive", |one| one.received.values().flatten().count() == 20).await;
        for index in 0..2 {
            assert_eq!(member.numbers(&scene.partition(index)), (0..10).collect::<Vec<_>>());
        }
        member.consumer.close().await.unwrap();
    }
}

pub(crate) async fn members_own_only_partitions_of_their_topics(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let second = new_topic(&scene.runtime, "refunds");
    scene.process.create_topic(&second, TopicOptions::with_partitions(2)).await.unwrap();
    let both = ConsumerOptions { topics: vec![scene.topic.clone(), second.clone()], ..scene.options() };
    let mut members = vec![scene.join().await, scene.join_with(both).await];
    until_all(&mut members, "all partitions have an owner", |members| {
        members.iter().map(Member::count).sum::<usize>() == 4 && members.iter().all(|one| one.count() > 0)
    })
    .await;
    assert!(members[0].owned.keys().all(|partition| partition.topic == scene.topic), "{:?}", members[0].owned);
}

pub(crate) async fn new_partitions_of_a_grown_topic_are_assigned(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let mut member = scene.join().await;
    member.until("the member owns the partition", |one| one.count() == 1).await;
    scene.process.grow_topic(&scene.topic, 3).await.unwrap();
    scene.send(2, [7]).await;
    member.until("the member owns all partitions", |one| one.count() == 3).await;
    member.until("the record arrives", |one| one.numbers(&scene.partition(2)) == [7]).await;
}

/// Returns two members. The group has revoked one of the two partitions of the first member, and this member holds it.
async fn members_with_revoked_partition(scene: &Scene) -> Vec<Member> {
    let mut members = vec![scene.join().await];
    members[0].holds_revoked = true;
    until_all(&mut members, "one member owns all", |members| members[0].count() == 2).await;
    members.push(scene.join().await);
    until_all(&mut members, "the partition is revoked", |members| !members[0].revocations.is_empty()).await;
    members
}

pub(crate) async fn revoked_partition_moves_only_after_its_release(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let mut members = members_with_revoked_partition(&scene).await;
    members[1].wait_a_while().await;
    assert_one_owner(&members);
    assert_eq!(members[1].count(), 0, "the first member has not released the partition");
    members[0].release();
    members[0].holds_revoked = false;
    until_all(&mut members, "each member owns 1", |members| members.iter().all(|one| one.count() == 1)).await;
}

pub(crate) async fn revoked_partition_moves_at_its_deadline(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let options = ConsumerOptions { revoke_timeout: Duration::from_secs(1), ..scene.options() };
    let mut members = vec![scene.join_with(options).await];
    members[0].holds_revoked = true;
    until_all(&mut members, "one member owns all", |members| members[0].count() == 2).await;
    let second = scene.join().await;
    let mut first = members.remove(0);
    first.until("the partition is revoked", |one| !one.revocations.is_empty()).await;
    let revoked: BTreeSet<_> = first.revocations.iter().flat_map(|one| one.partitions()).cloned().collect();
    let deadline = first.revocations[0].deadline();
    let now = scene.runtime.monotonic();
    assert!(deadline > now && deadline.since(now) <= Duration::from_secs(1), "the deadline is near");
    first.until("the member loses the partition", |one| !one.lost.is_empty()).await;
    assert!(scene.runtime.monotonic() >= deadline, "the partition is lost before its deadline");
    assert_eq!(first.lost, revoked);
    for partition in &revoked {
        assert_eq!(first.commit(partition, 0, "").await, Err(BusError::Fenced));
    }
    let mut members = vec![first, second];
    until_all(&mut members, "the second member owns 1", |members| members[1].count() == 1).await;
    assert_eq!(members[0].count(), 1, "the first member keeps its other partition");
}

pub(crate) async fn revoked_partition_delivers_no_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let mut members = members_with_revoked_partition(&scene).await;
    for index in 0..2 {
        scene.send(index, [1]).await;
    }
    let revoked = members[0].revocations[0].partitions()[0].clone();
    if scene.process.capabilities().delivers_during_revocation {
        members[0].until("a record of the other partition arrives", |one| !one.received.is_empty()).await;
    }
    members[0].wait_a_while().await;
    assert!(!members[0].received.contains_key(&revoked), "the revoked partition delivered a record");
    members[0].release();
    members[0].holds_revoked = false;
    until_all(&mut members, "the second member has the record", |members| members[1].numbers(&revoked) == [1]).await;
}

pub(crate) async fn partitions_of_a_closed_consumer_move_at_once(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let mut members = vec![scene.join().await, scene.join().await];
    until_all(&mut members, "each member owns 1", |members| members.iter().all(|one| one.count() == 1)).await;
    let began = scene.runtime.monotonic();
    let closed = members.remove(0);
    closed.consumer.close().await.unwrap();
    closed.consumer.close().await.unwrap();
    until_all(&mut members, "the other member owns all", |members| members[0].count() == 2).await;
    // A heartbeat of the other member is due within this time.
    assert!(scene.runtime.monotonic().since(began) < LONG / 2, "the partitions moved only after the session");
}

pub(crate) async fn member_without_contact_loses_its_partitions_before_they_move(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let options = ConsumerOptions { session_timeout: subject.session_timeout(), ..scene.options() };
    let mut first = scene.join_with(options.clone()).await;
    first.until("the first member owns the partition", |one| one.count() == 1).await;
    let other = subject.process().await;
    let second = Member::join(&scene.runtime, &*other, options).await;
    scene.process.cut(true);
    let mut members = vec![first, second];
    // `until_all` asserts that the partition never has two owners.
    until_all(&mut members, "the second member owns the partition", |members| members[1].count() == 1).await;
    assert_eq!(members[0].lost, BTreeSet::from([scene.partition(0)]));
    scene.process.cut(false);
    assert_eq!(members[0].commit(&scene.partition(0), 0, "").await, Err(BusError::Fenced));
}

pub(crate) async fn member_with_a_new_session_owns_partitions_again(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    scene.send(0, 0..3).await;
    let options = ConsumerOptions { session_timeout: subject.session_timeout(), ..scene.options() };
    let mut member = scene.join_with(options).await;
    member.until("the records arrive", |one| one.numbers(&scene.partition(0)).len() == 3).await;
    member.commit(&scene.partition(0), 2, "").await.unwrap();
    scene.process.cut(true);
    member.until("the member loses the partition", |one| !one.lost.is_empty()).await;
    scene.process.cut(false);
    member.until("the member owns the partition again", |one| one.count() == 1).await;
    // The member receives the record after the committed offset again.
    member.until("a record arrives again", |one| one.numbers(&scene.partition(0)) == [0, 1, 2, 2]).await;
    member.commit(&scene.partition(0), 3, "").await.unwrap();
}

pub(crate) async fn closed_consumer_has_no_events(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let mut member = scene.join().await;
    member.until("the member owns the partition", |one| one.count() == 1).await;
    member.consumer.close().await.unwrap();
    let next = scene.runtime.timeout(A_WHILE, member.consumer.next()).await.expect("the consumer is closed");
    assert_eq!(next.err(), Some(BusError::Closed));
    assert_eq!(member.commit(&scene.partition(0), 0, "").await, Err(BusError::Closed));
}

//! Cases about the functions for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bus::{BusError, Committed, ConsumerOptions, GroupDescription, Offset, TopicName, TopicOptions};

use crate::fixtures::{LIMIT, Member, Scene, new_topic, unique, until_all};
use crate::{Process, Subject};

pub(crate) async fn topics_are_listed_in_ascending_order(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let other = new_topic(&scene.runtime, "a-refund");
    scene.process.create_topic(&other, TopicOptions::with_partitions(1)).await.unwrap();
    // A commit makes Kafka create an internal topic.
    let mut member = scene.join().await;
    member.until("the member owns the partitions", |one| one.count() == 2).await;
    member.commit(&scene.partition(0), 0, "").await.unwrap();
    let topics = scene.process.topics().await.unwrap();
    assert!(topics.contains(&scene.topic) && topics.contains(&other), "{topics:?}");
    assert!(topics.is_sorted_by(|one, next| one < next), "{topics:?}");
    assert!(!topics.iter().map(TopicName::as_str).any(|topic| topic.starts_with("__")), "{topics:?}");
}

pub(crate) async fn stored_ends_are_after_the_last_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 3).await;
    assert_eq!(scene.process.stored_ends(&scene.topic).await.unwrap(), [0, 0, 0].map(Offset));
    scene.send(1, 0..5).await;
    assert_eq!(scene.process.stored_ends(&scene.topic).await.unwrap(), [0, 5, 0].map(Offset));
}

pub(crate) async fn records_are_found_only_before_the_end(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    scene.send(1, 0..5).await;
    for (from, expected) in [
        (&[0, 0][..], true),
        (&[0, 4], true),
        (&[0, 5], false),
        (&[7, 9], false),
        // The topic has no third partition.
        (&[0, 5, 0], false),
        (&[0], false),
        (&[], false),
    ] {
        let from: Vec<Offset> = from.iter().copied().map(Offset).collect();
        assert_eq!(scene.process.has_records(&scene.topic, &from).await, Ok(expected), "{from:?}");
    }
}

pub(crate) async fn groups_with_members_or_commits_are_listed_in_ascending_order(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let mut member = scene.join().await;
    member.until("the member owns the partition", |one| one.count() == 1).await;
    let left = ConsumerOptions { group: unique(&scene.runtime, "archive"), ..scene.options() };
    let mut earlier = scene.join_with(left.clone()).await;
    earlier.until("the member owns the partition", |one| one.count() == 1).await;
    earlier.commit(&scene.partition(0), 0, "").await.unwrap();
    earlier.consumer.close().await.unwrap();
    let groups = scene.process.groups().await.unwrap();
    assert!(groups.contains(&scene.group) && groups.contains(&left.group), "{groups:?}");
    assert!(groups.is_sorted_by(|one, next| one < next), "{groups:?}");
    assert!(!groups.contains(&unique(&scene.runtime, "unknown")), "{groups:?}");
}

/// Handles the events of the members until the description of the group fulfils the condition.
async fn until_described(
    scene: &Scene,
    process: &dyn Process,
    members: &mut [Member],
    event: &str,
    mut holds: impl FnMut(&GroupDescription) -> bool,
) -> GroupDescription {
    let deadline = scene.runtime.monotonic() + LIMIT;
    loop {
        let description = process.describe_group(&scene.group).await.unwrap();
        if holds(&description) {
            return description;
        }
        assert!(scene.runtime.monotonic() < deadline, "timed out waiting until {event}: {description:?}");
        if members.is_empty() {
            scene.runtime.sleep(Duration::from_millis(50)).await;
        }
        for member in &mut *members {
            member.step(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) async fn group_names_its_members_and_their_partitions(subject: &dyn Subject) {
    let scene = Scene::new(subject, 3).await;
    let named = |name: &str| ConsumerOptions { name: name.to_owned(), ..scene.options() };
    let mut members = vec![scene.join_with(named("höst 1")).await, scene.join_with(named("höst 1")).await];
    members.push(scene.join().await);
    until_all(&mut members, "each member owns 1", |members| members.iter().all(|one| one.count() == 1)).await;
    let process = &*scene.process;
    let described = until_described(&scene, process, &mut members, "each member has 1", |description| {
        description.members.len() == 3 && description.members.iter().all(|one| one.partitions.len() == 1)
    });
    let described = described.await.members;
    let mut names: Vec<&str> = described.iter().map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["höst 1", "höst 1", "reveille"]);
    let ids: BTreeSet<&str> = described.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids.len(), 3, "{described:?}");
    assert!(described.iter().all(|one| !one.host.is_empty()), "{described:?}");
    let partitions: BTreeSet<_> = described.iter().flat_map(|one| one.partitions.clone()).collect();
    assert_eq!(partitions, (0..3).map(|index| scene.partition(index)).collect());
    let unnamed = described.iter().find(|one| one.name == "reveille").unwrap();
    assert!(members[2].owns(&unnamed.partitions[0]), "{described:?}");
}

pub(crate) async fn group_is_rebalancing_until_each_member_responds(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let other = subject.process().await;
    let mut members = vec![scene.join().await];
    members[0].until("the member owns the partitions", |one| one.count() == 2).await;
    let is_done = |description: &GroupDescription| !description.is_rebalancing;
    until_described(&scene, &*other, &mut members, "the group has assigned its partitions", is_done).await;
    scene.process.cut(true);
    members.push(Member::join(&scene.runtime, &*other, scene.options()).await);
    until_described(&scene, &*other, &mut members[1..], "the group is rebalancing", |one| one.is_rebalancing).await;
    scene.process.cut(false);
    until_all(&mut members, "each member owns 1", |members| members.iter().all(|one| one.count() == 1)).await;
    until_described(&scene, &*other, &mut members, "the group has assigned its partitions", is_done).await;
}

pub(crate) async fn committed_offsets_remain_after_the_members_left(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    scene.send(0, 0..3).await;
    scene.send(1, 0..5).await;
    let mut member = scene.join().await;
    member.until("the member owns the partitions", |one| one.count() == 2).await;
    member.commit(&scene.partition(0), 2, "after 1").await.unwrap();
    member.commit(&scene.partition(1), 5, "").await.unwrap();
    member.consumer.close().await.unwrap();
    let described = scene.process.describe_group(&scene.group).await.unwrap();
    let committed = |offset, metadata: &str| Committed { offset: Offset(offset), metadata: metadata.to_owned() };
    let expected =
        BTreeMap::from([(scene.partition(0), committed(2, "after 1")), (scene.partition(1), committed(5, ""))]);
    assert_eq!(described, GroupDescription { committed: expected, ..GroupDescription::default() });
}

pub(crate) async fn member_without_contact_leaves_the_description_of_its_group(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let options = ConsumerOptions { session_timeout: subject.session_timeout(), ..scene.options() };
    let mut member = scene.join_with(options).await;
    member.until("the member owns the partition", |one| one.count() == 1).await;
    let other = subject.process().await;
    let described = other.describe_group(&scene.group).await.unwrap();
    assert_eq!(described.members.len(), 1, "{described:?}");
    scene.process.cut(true);
    until_described(&scene, &*other, &mut [], "the group has no member", |one| one.members.is_empty()).await;
}

pub(crate) async fn closed_member_without_partitions_leaves_its_group(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let mut members = vec![scene.join().await];
    until_all(&mut members, "one member owns the partition", |members| members[0].count() == 1).await;
    members.push(scene.join().await);
    until_described(&scene, &*scene.process, &mut members, "the group has 2 members", |one| one.members.len() == 2)
        .await;
    let idle = members.pop().unwrap();
    // The group may be assigning the partitions when the member closes.
    idle.consumer.close().await.unwrap();
    let described = scene.process.describe_group(&scene.group).await.unwrap();
    assert_eq!(described.members.len(), 1, "{described:?}");
    members.push(scene.join().await);
    until_all(&mut members, "the next member knows its partitions", |members| members[0].count() == 1).await;
    members[1].wait_a_while().await;
    members.remove(1).consumer.close().await.unwrap();
    let described = scene.process.describe_group(&scene.group).await.unwrap();
    assert_eq!(described.members.len(), 1, "{described:?}");
}

pub(crate) async fn description_of_an_unknown_group_is_empty(subject: &dyn Subject) {
    let process = subject.process().await;
    for group in [&unique(&subject.runtime(), "unknown"), "unknown\0"] {
        assert_eq!(process.describe_group(group).await, Ok(GroupDescription::default()), "{group:?}");
    }
}

pub(crate) async fn name_of_a_member_with_a_nul_is_rejected(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let joined = scene.process.consumer(ConsumerOptions { name: "a\0b".to_owned(), ..scene.options() }).await;
    assert!(matches!(joined.as_ref().err(), Some(BusError::Invalid(_))), "{:?}", joined.err());
}

//! Cases about the positions of members and their commits.

use bus::{BusError, Committed, ConsumerOptions, Offset, Start};

use crate::Subject;
use crate::fixtures::{Scene, unique, until_all};

pub(crate) async fn next_owner_starts_at_the_committed_offset(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    scene.send(0, 0..10).await;
    let mut first = scene.join().await;
    first.until("the records arrive", |one| one.numbers(&partition).len() == 10).await;
    assert_eq!(first.owned[&partition].committed, None);
    assert_eq!(first.owned[&partition].position, Offset(0));
    first.commit(&partition, 3, "first").await.unwrap();
    first.commit(&partition, 6, "gaps: 4").await.unwrap();
    first.consumer.close().await.unwrap();
    let mut second = scene.join().await;
    second.until("the other records arrive", |one| one.numbers(&partition).len() == 4).await;
    assert_eq!(second.numbers(&partition), [6, 7, 8, 9]);
    let committed = Committed { offset: Offset(6), metadata: "gaps: 4".to_owned() };
    assert_eq!(second.owned[&partition].committed, Some(committed));
    assert_eq!(second.owned[&partition].position, Offset(6));
}

pub(crate) async fn group_without_a_commit_starts_where_its_options_say(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    scene.send(0, 0..5).await;
    for (start, position, expected) in [(Start::Latest, 5, vec![5]), (Start::Earliest, 0, (0..6).collect())] {
        let group = unique(&scene.runtime, "start");
        let mut member = scene.join_with(ConsumerOptions { start, group, ..scene.options() }).await;
        member.until("the member owns the partition", |one| one.owns(&partition)).await;
        assert_eq!((member.owned[&partition].position, &member.owned[&partition].committed), (Offset(position), &None));
        if start == Start::Latest {
            scene.send(0, [5]).await;
        }
        member.until("the records arrive", |one| one.numbers(&partition).last() == Some(&5)).await;
        assert_eq!(member.numbers(&partition), expected);
        member.consumer.close().await.unwrap();
    }
}

pub(crate) async fn former_owner_cannot_commit(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    scene.send(0, 0..10).await;
    let options = ConsumerOptions { session_timeout: subject.session_timeout(), ..scene.options() };
    let mut first = scene.join_with(options.clone()).await;
    first.until("the records arrive", |one| one.numbers(&partition).len() == 10).await;
    scene.process.cut(true);
    first.until("the member loses the partition", |one| !one.lost.is_empty()).await;
    scene.process.cut(false);
    assert_eq!(first.commit(&partition, 10, "late").await, Err(BusError::Fenced));
    // A commit of several partitions is rejected as a whole, and a partition that the member has never owned, too.
    assert_eq!(first.commit(&scene.partition(1), 1, "").await, Err(BusError::Fenced));
    first.consumer.close().await.unwrap();
    let mut second = scene.join_with(options).await;
    second.until("the member owns the partition", |one| one.owns(&partition)).await;
    // The engine may have committed the first position.
    let assigned = &second.owned[&partition];
    let first = Committed { offset: Offset(0), metadata: String::new() };
    assert_eq!((assigned.position, assigned.committed.as_ref().unwrap_or(&first)), (Offset(0), &first));
}

pub(crate) async fn owner_can_commit_during_a_revocation(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    for index in 0..2 {
        scene.send(index, 0..10).await;
    }
    let mut members = vec![scene.join().await];
    members[0].holds_revoked = true;
    let received = |one: &crate::fixtures::Member| one.received.values().flatten().count();
    until_all(&mut members, "the records arrive", |members| received(&members[0]) == 20).await;
    members.push(scene.join().await);
    until_all(&mut members, "a partition is revoked", |members| !members[0].revocations.is_empty()).await;
    let partition = members[0].revocations[0].partitions()[0].clone();
    members[0].commit(&partition, 8, "drained").await.unwrap();
    members[0].release();
    until_all(&mut members, "the partition moves", |members| members[1].owns(&partition)).await;
    let committed = Committed { offset: Offset(8), metadata: "drained".to_owned() };
    assert_eq!(members[1].owned[&partition].committed, Some(committed));
    assert_eq!(members[0].commit(&partition, 9, "late").await, Err(BusError::Fenced));
    until_all(&mut members, "the other records arrive", |members| members[1].numbers(&partition) == [8, 9]).await;
}

pub(crate) async fn commit_with_too_large_metadata_is_rejected(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let limit = scene.process.capabilities().metadata_bytes_max;
    let mut member = scene.join().await;
    let partition = scene.partition(0);
    scene.send(0, 0..2).await;
    member.until("the records arrive", |one| one.numbers(&partition).len() == 2).await;
    member.commit(&partition, 1, "small").await.unwrap();
    let rejected = member.commit(&partition, 2, &"x".repeat(limit + 1)).await;
    assert_eq!(rejected, Err(BusError::MetadataTooLarge { bytes: limit + 1, limit }));
    member.consumer.close().await.unwrap();
    let mut next = scene.join().await;
    next.until("the member owns the partition", |one| one.owns(&partition)).await;
    assert_eq!(next.owned[&partition].committed.as_ref().unwrap().metadata, "small");
}

pub(crate) async fn metadata_of_the_largest_size_is_stored(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let metadata = "x".repeat(scene.process.capabilities().metadata_bytes_max);
    let mut member = scene.join().await;
    let partition = scene.partition(0);
    member.until("the member owns the partition", |one| one.owns(&partition)).await;
    member.commit(&partition, 0, &metadata).await.unwrap();
    member.consumer.close().await.unwrap();
    let mut next = scene.join().await;
    next.until("the member owns the partition", |one| one.owns(&partition)).await;
    assert_eq!(next.owned[&partition].committed.as_ref().unwrap().metadata, metadata);
}

pub(crate) async fn paused_partition_delivers_no_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let [paused, other] = [0, 1].map(|index| scene.partition(index));
    let mut member = scene.join().await;
    member.until("the member owns both", |one| one.count() == 2).await;
    member.consumer.pause(std::slice::from_ref(&paused));
    scene.send(0, 0..5).await;
    scene.send(1, 0..5).await;
    member.until("the records of the other partition arrive", |one| one.numbers(&other).len() == 5).await;
    member.wait_a_while().await;
    assert!(!member.received.contains_key(&paused), "the paused partition delivered a record");
    member.consumer.resume(std::slice::from_ref(&paused));
    member.until("the records arrive", |one| one.numbers(&paused).len() == 5).await;
    assert_eq!(member.numbers(&paused), [0, 1, 2, 3, 4]);
}

pub(crate) async fn partition_can_be_paused_before_its_first_record(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    scene.send(0, 0..5).await;
    let mut member = scene.join().await;
    member.until("the member owns the partition", |one| one.owns(&partition)).await;
    member.consumer.pause(std::slice::from_ref(&partition));
    member.wait_a_while().await;
    assert!(member.received.is_empty(), "the paused partition delivered a record");
    member.consumer.seek(&partition, Offset(2));
    member.consumer.resume(std::slice::from_ref(&partition));
    member.until("the records arrive", |one| one.numbers(&partition).len() == 3).await;
    assert_eq!(member.numbers(&partition), [2, 3, 4]);
}

pub(crate) async fn assignment_ends_a_pause(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    let options = ConsumerOptions { session_timeout: subject.session_timeout(), ..scene.options() };
    let mut member = scene.join_with(options).await;
    member.until("the member owns the partition", |one| one.owns(&partition)).await;
    member.consumer.pause(std::slice::from_ref(&partition));
    scene.send(0, [1]).await;
    scene.process.cut(true);
    member.until("the member loses the partition", |one| !one.lost.is_empty()).await;
    scene.process.cut(false);
    member.until("the member owns the partition again", |one| one.owns(&partition)).await;
    member.until("the record arrives", |one| one.numbers(&partition) == [1]).await;
}

pub(crate) async fn seek_moves_the_position(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let partition = scene.partition(0);
    scene.send(0, 0..10).await;
    let mut member = scene.join().await;
    member.until("the records arrive", |one| one.numbers(&partition).len() == 10).await;
    for (from, count) in [(4, 6), (9, 1), (0, 10)] {
        member.received.clear();
        member.consumer.seek(&partition, Offset(from));
        member.until("the records arrive again", |one| one.numbers(&partition).len() == count).await;
        assert_eq!(member.numbers(&partition), (from..10).collect::<Vec<_>>());
    }
    // The member receives the next record after the end.
    member.received.clear();
    member.consumer.seek(&partition, Offset(10));
    scene.send(0, [10]).await;
    member.until("the new record arrives", |one| !one.received.is_empty()).await;
    assert_eq!(member.numbers(&partition), [10]);
}

pub(crate) async fn batch_has_at_most_the_requested_number_of_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    scene.send(0, 0..10).await;
    let options = ConsumerOptions { batch_records_max: 3, ..scene.options() };
    let mut member = scene.join_with(options).await;
    let (partition, mut seen) = (scene.partition(0), 0);
    while seen < 10 {
        member.step(std::time::Duration::from_secs(5)).await;
        let received = member.numbers(&partition).len();
        assert!(received - seen <= 3, "a batch has {} records", received - seen);
        seen = received;
    }
    assert_eq!(member.numbers(&partition), (0..10).collect::<Vec<_>>());
}

//! Cases about topics.

use bus::{BusError, ConsumerOptions, NewRecord, Offset, ProducerOptions, TopicOptions};

use crate::Subject;
use crate::fixtures::{Scene, new_topic};

pub(crate) async fn created_topic_has_its_partitions(subject: &dyn Subject) {
    let scene = Scene::new(subject, 3).await;
    let new = scene.process.describe_topic(&scene.topic).await.unwrap();
    assert_eq!(new.offsets, vec![(Offset(0), Offset(0)); 3]);
    assert!(new.replicas >= 1);
    scene.send(1, 0..5).await;
    let filled = scene.process.describe_topic(&scene.topic).await.unwrap();
    assert_eq!(filled.offsets, [0, 5, 0].map(|end| (Offset(0), Offset(end))));
}

pub(crate) async fn topic_cannot_be_created_twice(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let again = scene.process.create_topic(&scene.topic, TopicOptions::with_partitions(2)).await;
    assert_eq!(again, Err(BusError::TopicExists(scene.topic.clone())));
    assert_eq!(scene.process.describe_topic(&scene.topic).await.unwrap().offsets.len(), 1);
}

pub(crate) async fn topic_without_partitions_is_rejected(subject: &dyn Subject) {
    let process = subject.process().await;
    let topic = new_topic(&subject.runtime(), "empty");
    let created = process.create_topic(&topic, TopicOptions::with_partitions(0)).await;
    assert!(matches!(created, Err(BusError::Invalid(_))), "{created:?}");
    assert_eq!(process.describe_topic(&topic).await, Err(BusError::UnknownTopic(topic)));
}

pub(crate) async fn request_for_an_unknown_topic_names_the_topic(subject: &dyn Subject) {
    let process = subject.process().await;
    let topic = new_topic(&subject.runtime(), "missing");
    let unknown = || BusError::UnknownTopic(topic.clone());
    assert_eq!(process.describe_topic(&topic).await.unwrap_err(), unknown());
    assert_eq!(process.grow_topic(&topic, 2).await.unwrap_err(), unknown());
    assert_eq!(process.stored_ends(&topic).await.unwrap_err(), unknown());
    assert_eq!(process.has_records(&topic, &[Offset(0)]).await.unwrap_err(), unknown());
    let producer = process.producer(ProducerOptions::default()).await.unwrap();
    assert_eq!(producer.send(vec![NewRecord::new(&topic, "key", "value")]).await, [Err(unknown())]);
    let joined = process.consumer(ConsumerOptions::new("billing", vec![topic.clone()])).await;
    assert_eq!(joined.err(), Some(unknown()));
}

pub(crate) async fn grown_topic_keeps_its_records(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    scene.send(0, 0..3).await;
    scene.process.grow_topic(&scene.topic, 4).await.unwrap();
    scene.send(3, 0..2).await;
    let grown = scene.process.describe_topic(&scene.topic).await.unwrap();
    assert_eq!(grown.offsets, [3, 0, 0, 2].map(|end| (Offset(0), Offset(end))));
}

pub(crate) async fn topic_cannot_shrink(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    for partitions in [0, 1, 2] {
        let grown = scene.process.grow_topic(&scene.topic, partitions).await;
        assert!(matches!(grown, Err(BusError::Invalid(_))), "{grown:?}");
    }
}

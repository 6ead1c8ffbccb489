//! Cases about producers and records.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use bus::{BusError, Header, NewRecord, Offset, ProducerOptions, partition_of};
use bytes::Bytes;
use futures_util::future::join_all;

use crate::Subject;
use crate::fixtures::{A_WHILE, Scene};

pub(crate) async fn consumer_receives_all_fields_of_a_record(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let header = |name: &str, value: Option<&'static [u8]>| Header {
        name: name.to_owned(),
        value: value.map(Bytes::from_static),
    };
    let sent_at = scene.runtime.now();
    let records = vec![
        NewRecord {
            headers: vec![header("trace", Some(b"a")), header("trace", Some(b"")), header("none", None)],
            ..NewRecord::new(&scene.topic, "key", &b"\0\xff"[..])
        },
        NewRecord { key: None, value: None, ..NewRecord::new(&scene.topic, "", "") },
        NewRecord { timestamp: Some(sent_at), ..NewRecord::new(&scene.topic, "", "") },
    ];
    let positions = scene.producer.send(records.clone()).await;
    for (position, offset) in positions.iter().zip(0..) {
        let position = position.as_ref().unwrap();
        assert_eq!((&position.partition, position.offset), (&scene.partition(0), Offset(offset)));
    }
    let mut member = scene.join().await;
    let partition = scene.partition(0);
    member.until("the records arrive", |member| member.received.values().flatten().count() == 3).await;
    for (record, sent) in member.received[&partition].iter().zip(&records) {
        assert_eq!((&record.key, &record.value, &record.headers), (&sent.key, &sent.value, &sent.headers));
        let age = record.timestamp.as_millis().abs_diff(sent_at.as_millis());
        assert!(age < 60_000, "the time of the record is {age} ms away from the time of the call");
    }
    assert_eq!(member.received[&partition][2].timestamp.as_millis(), sent_at.as_millis());
}

pub(crate) async fn partition_keeps_the_order_of_concurrent_sends(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let sends: Vec<_> = (0..50)
        .map(|number| {
            let record = |partition| scene.record(partition, number);
            scene.producer.send(vec![record(0), record(1), record(0)])
        })
        .collect();
    // The caller waits for the outcomes in the opposite order.
    assert!(join_all(sends.into_iter().rev()).await.into_iter().flatten().all(|outcome| outcome.is_ok()));
    let mut member = scene.join().await;
    member.until("the records arrive", |member| member.received.values().flatten().count() == 150).await;
    let twice = |number| [number, number];
    assert_eq!(member.numbers(&scene.partition(0)), (0..50).flat_map(twice).collect::<Vec<_>>());
    assert_eq!(member.numbers(&scene.partition(1)), (0..50).collect::<Vec<_>>());
    for records in member.received.values() {
        assert!(records.iter().zip(0..).all(|(record, offset)| record.offset == Offset(offset)), "{records:?}");
    }
}

pub(crate) async fn key_determines_the_partition(subject: &dyn Subject) {
    let scene = Scene::new(subject, 5).await;
    let keys: Vec<String> = (0..40).map(|number| format!("order-{number}")).collect();
    let records = keys.iter().map(|key| NewRecord::new(&scene.topic, key.clone(), "")).collect();
    let size = NonZeroU32::new(5).unwrap();
    for (position, key) in scene.producer.send(records).await.into_iter().zip(&keys) {
        assert_eq!(position.unwrap().partition.index, partition_of(key.as_bytes(), size), "{key}");
    }
}

pub(crate) async fn producer_can_name_the_partition(subject: &dyn Subject) {
    let scene = Scene::new(subject, 3).await;
    let record = |index| NewRecord { partition: Some(index), ..NewRecord::new(&scene.topic, "key", "value") };
    for index in 0..3 {
        let position = scene.producer.send(vec![record(index)]).await.remove(0).unwrap();
        assert_eq!(position.partition.index, index);
    }
    let outside = scene.producer.send(vec![record(3)]).await.remove(0);
    assert!(matches!(outside, Err(BusError::Invalid(_))), "{outside:?}");
}

pub(crate) async fn records_without_a_key_reach_every_partition(subject: &dyn Subject) {
    let scene = Scene::new(subject, 3).await;
    let mut used = BTreeSet::new();
    for _ in 0..200 {
        let record = NewRecord { key: None, ..NewRecord::new(&scene.topic, "", "value") };
        used.insert(scene.producer.send(vec![record]).await.remove(0).unwrap().partition.index);
        if used.len() == 3 {
            return;
        }
    }
    panic!("200 records without a key reached only the partitions {used:?}");
}

pub(crate) async fn too_large_record_is_rejected_without_the_rest_of_its_batch(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let limit = scene.process.capabilities().record_bytes_max;
    let large = |bytes: usize| NewRecord { key: None, ..NewRecord::new(&scene.topic, "", vec![b'x'; bytes]) };
    let outcomes = scene.producer.send(vec![large(1), large(limit + 1), large(limit)]).await;
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(outcomes[1], Err(BusError::RecordTooLarge { bytes: limit + 1, limit }));
    let mut member = scene.join().await;
    member.until("the records arrive", |member| member.received.values().flatten().count() == 2).await;
    let sizes: Vec<usize> = member.received[&scene.partition(0)].iter().map(bus::Record::bytes).collect();
    assert_eq!(sizes, [1, limit]);
}

pub(crate) async fn record_is_stored_once_if_its_acknowledgement_is_lost(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    scene.send(0, [0]).await;
    scene.process.cut_answers();
    let first = scene.producer.send(vec![scene.record(0, 1)]);
    let second = scene.producer.send(vec![scene.record(0, 2)]);
    scene.runtime.sleep(A_WHILE).await;
    scene.process.cut(false);
    let outcomes = [first.await.remove(0), second.await.remove(0)];
    assert_eq!(outcomes.map(|outcome| outcome.unwrap().offset), [1, 2].map(Offset));
    let topic = scene.process.describe_topic(&scene.topic).await.unwrap();
    assert_eq!(topic.offsets, [(Offset(0), Offset(3))]);
}

pub(crate) async fn producer_reports_records_without_an_acknowledgement_in_time(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    let options = ProducerOptions { delivery_timeout: Duration::from_secs(2), ..ProducerOptions::default() };
    let producer = scene.process.producer(options).await.unwrap();
    assert!(producer.send(vec![scene.record(0, 0)]).await[0].is_ok());
    scene.process.cut(true);
    let outcomes = producer.send(vec![scene.record(0, 1), scene.record(0, 2)]).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(BusError::Disconnected(_)))), "{outcomes:?}");
    scene.process.cut(false);
    assert!(producer.send(vec![scene.record(0, 3)]).await[0].is_ok());
}

pub(crate) async fn closed_producer_has_sent_its_records_and_rejects_others(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1).await;
    // The case drops the futures, and the producer still sends the records.
    drop(scene.producer.send(vec![scene.record(0, 0)]));
    drop(scene.producer.send(vec![scene.record(0, 1)]));
    scene.producer.close().await.unwrap();
    let topic = scene.process.describe_topic(&scene.topic).await.unwrap();
    assert_eq!(topic.offsets, [(Offset(0), Offset(2))]);
    let late = scene.producer.send(vec![scene.record(0, 2), scene.record(0, 3)]).await;
    assert_eq!(late, [Err(BusError::Closed), Err(BusError::Closed)]);
}

//! Cases about readers of whole topics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{BusError, Offset, Reader};

use crate::Subject;
use crate::fixtures::{A_WHILE, LIMIT, Scene, new_topic};

/// Reads until the partitions have these numbers of records. Returns the offsets of each partition.
async fn read(scene: &Scene, reader: &Arc<dyn Reader>, counts: [usize; 2]) -> BTreeMap<u32, Vec<Offset>> {
    let mut offsets = BTreeMap::from([(0, Vec::new()), (1, Vec::new())]);
    while offsets.values().map(Vec::len).ne(counts) {
        let next = scene.runtime.timeout(LIMIT, reader.next()).await;
        let batch = next.expect("timed out waiting for records").unwrap();
        let last = batch.records.last().expect("a batch is not empty").offset;
        assert!(last < batch.end, "the end {} is not after the record {last}", batch.end);
        offsets.get_mut(&batch.partition.index).unwrap().extend(batch.records.iter().map(|record| record.offset));
    }
    offsets
}

fn offsets(range: std::ops::Range<u64>) -> Vec<Offset> {
    range.map(Offset).collect()
}

pub(crate) async fn reader_receives_all_records_and_then_new_ones(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    scene.send(0, 0..5).await;
    scene.send(1, 0..3).await;
    // A group has committed an offset, which does not concern readers.
    let mut member = scene.join().await;
    member.until("the records arrive", |one| one.numbers(&scene.partition(0)).len() == 5).await;
    member.commit(&scene.partition(0), 5, "").await.unwrap();
    let first = scene.process.reader(&scene.topic).await.unwrap();
    assert_eq!(read(&scene, &first, [5, 3]).await, BTreeMap::from([(0, offsets(0..5)), (1, offsets(0..3))]));
    let waited = scene.runtime.timeout(A_WHILE, first.next()).await;
    assert!(waited.is_none(), "the reader received {waited:?} twice");
    scene.send(0, 5..9).await;
    assert_eq!(read(&scene, &first, [4, 0]).await, BTreeMap::from([(0, offsets(5..9)), (1, Vec::new())]));
    let second = scene.process.reader(&scene.topic).await.unwrap();
    assert_eq!(read(&scene, &second, [9, 3]).await, BTreeMap::from([(0, offsets(0..9)), (1, offsets(0..3))]));
}

pub(crate) async fn reader_continues_after_a_lost_connection(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2).await;
    let other = subject.process().await;
    scene.send(0, 0..5).await;
    let reader = other.reader(&scene.topic).await.unwrap();
    assert_eq!(read(&scene, &reader, [5, 0]).await, BTreeMap::from([(0, offsets(0..5)), (1, Vec::new())]));
    other.cut(true);
    scene.send(0, 5..7).await;
    scene.send(1, 0..2).await;
    let waited = scene.runtime.timeout(Duration::from_secs(2), reader.next()).await;
    assert!(waited.is_none(), "a reader without a connection received {waited:?}");
    other.cut(false);
    assert_eq!(read(&scene, &reader, [2, 2]).await, BTreeMap::from([(0, offsets(5..7)), (1, offsets(0..2))]));
}

pub(crate) async fn reader_of_an_unknown_topic_is_rejected(subject: &dyn Subject) {
    let topic = new_topic(&subject.runtime(), "missing");
    let outcome = subject.process().await.reader(&topic).await;
    assert_eq!(outcome.err(), Some(BusError::UnknownTopic(topic)));
}

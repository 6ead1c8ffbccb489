//! Processes, topics and members that the cases share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bus::{
    Assigned, BusError, Commit, Committed, Consumer, ConsumerOptions, Event, NewRecord, Offset, Partition, Position,
    Producer, ProducerOptions, Record, Revocation, TopicName, TopicOptions,
};
use runtime::Runtime;

use crate::{Process, Subject};

/// Timeout of a session that does not end during a case.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Longest time that a case waits for an event.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Time in which a case waits for an event that must not happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(500);

/// Process with a topic, a producer, and the name of a group.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) process: Arc<dyn Process>,
    pub(crate) producer: Arc<dyn Producer>,
    pub(crate) topic: TopicName,
    pub(crate) group: String,
}

pub(crate) fn unique(runtime: &Runtime, name: &str) -> String {
    format!("{name}-{:016x}", runtime.random())
}

pub(crate) fn new_topic(runtime: &Runtime, name: &str) -> TopicName {
    TopicName::new(&unique(runtime, name)).unwrap()
}

impl Scene {
    /// Opens a scene whose topic has this number of partitions.
    pub(crate) async fn new(subject: &dyn Subject, partitions: u32) -> Self {
        let (runtime, process) = (subject.runtime(), subject.process().await);
        let (topic, group) = (new_topic(&runtime, "orders"), unique(&runtime, "billing"));
        process.create_topic(&topic, TopicOptions::with_partitions(partitions)).await.unwrap();
        let producer = process.producer(ProducerOptions::default()).await.unwrap();
        Scene { runtime, process, producer, topic, group }
    }

    pub(crate) fn partition(&self, index: u32) -> Partition {
        Partition { topic: self.topic.clone(), index }
    }

    /// Returns a record whose value is the decimal `number`.
    pub(crate) fn record(&self, partition: u32, number: u64) -> NewRecord {
        NewRecord { partition: Some(partition), key: None, ..NewRecord::new(&self.topic, "", number.to_string()) }
    }

    /// Sends a record with each of the numbers to the partition.
    pub(crate) async fn send(&self, partition: u32, numbers: impl IntoIterator<Item = u64>) -> Vec<Position> {
        let records = numbers.into_iter().map(|number| self.record(partition, number)).collect();
        self.producer.send(records).await.into_iter().map(Result::unwrap).collect()
    }

    pub(crate) fn options(&self) -> ConsumerOptions {
        ConsumerOptions { session_timeout: LONG, ..ConsumerOptions::new(&self.group, vec![self.topic.clone()]) }
    }

    /// Joins the group from this process.
    pub(crate) async fn join(&self) -> Member {
        self.join_with(self.options()).await
    }

    pub(crate) async fn join_with(&self, options: ConsumerOptions) -> Member {
        Member::join(&self.runtime, &*self.process, options).await
    }
}

/// Consumer and the state that its events describe.
pub(crate) struct Member {
    runtime: Runtime,
    pub(crate) consumer: Arc<dyn Consumer>,
    /// Partitions that the consumer owns, including revoked partitions that it has not released.
    pub(crate) owned: BTreeMap<Partition, Assigned>,
    /// Revocations that the member has not answered. The member answers at once unless `holds_revoked` is true.
    pub(crate) revocations: Vec<Revocation>,
    pub(crate) holds_revoked: bool,
    /// Partitions that the consumer has lost at least once.
    pub(crate) lost: BTreeSet<Partition>,
    pub(crate) received: BTreeMap<Partition, Vec<Record>>,
}

impl Member {
    pub(crate) async fn join(runtime: &Runtime, process: &dyn Process, options: ConsumerOptions) -> Self {
        Member {
            runtime: runtime.clone(),
            consumer: process.consumer(options).await.unwrap(),
            owned: BTreeMap::new(),
            revocations: Vec::new(),
            holds_revoked: false,
            lost: BTreeSet::new(),
            received: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.owned.len()
    }

    pub(crate) fn owns(&self, partition: &Partition) -> bool {
        self.owned.contains_key(partition)
    }

    /// Returns the numbers of the received records of a partition.
    pub(crate) fn numbers(&self, partition: &Partition) -> Vec<u64> {
        let number = |record: &Record| std::str::from_utf8(record.value.as_ref().unwrap()).unwrap().parse().unwrap();
        self.received.get(partition).into_iter().flatten().map(number).collect()
    }

    /// Handles one event, if an event arrives within `limit`.
    pub(crate) async fn step(&mut self, limit: Duration) {
        let Some(event) = self.runtime.timeout(limit, self.consumer.next()).await else { return };
        match event {
            Ok(Event::Assigned(assigned)) => {
                for one in assigned {
                    let earlier = self.owned.insert(one.partition.clone(), one);
                    assert!(earlier.is_none(), "the consumer already owned {earlier:?}");
                }
            }
            Ok(Event::Revoked(revocation)) => {
                assert!(revocation.partitions().iter().all(|one| self.owns(one)), "{revocation:?}");
                self.revocations.push(revocation);
                if !self.holds_revoked {
                    self.release();
                }
            }
            Ok(Event::Lost(partitions)) => {
                for partition in partitions {
                    assert!(self.owned.remove(&partition).is_some(), "the consumer did not own {partition}");
                    self.lost.insert(partition);
                }
                let owned = &self.owned;
                self.revocations.retain(|one| one.partitions().iter().all(|partition| owned.contains_key(partition)));
            }
            Ok(Event::Records(batch)) => {
                assert!(self.owns(&batch.partition), "the consumer does not own {}", batch.partition);
                let last = batch.records.last().expect("a batch is not empty").offset;
                assert!(last < batch.end, "the end {} is not after the record {last}", batch.end);
                self.received.entry(batch.partition).or_default().extend(batch.records);
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }

    /// Answers the revocations.
    pub(crate) fn release(&mut self) {
        for revocation in self.revocations.drain(..) {
            revocation.partitions().iter().for_each(|partition| drop(self.owned.remove(partition)));
            revocation.release();
        }
    }

    pub(crate) async fn until(&mut self, event: &str, mut holds: impl FnMut(&Member) -> bool) {
        let deadline = self.runtime.monotonic() + LIMIT;
        while !holds(self) {
            assert!(self.runtime.monotonic() < deadline, "timed out waiting until {event}");
            self.step(Duration::from_millis(50)).await;
        }
    }

    /// Handles all events of the time [`A_WHILE`].
    pub(crate) async fn wait_a_while(&mut self) {
        let end = self.runtime.monotonic() + A_WHILE;
        while self.runtime.monotonic() < end {
            self.step(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn commit(&self, partition: &Partition, offset: u64, metadata: &str) -> Result<(), BusError> {
        let committed = Committed { offset: Offset(offset), metadata: metadata.to_owned() };
        self.consumer.commit(vec![Commit { partition: partition.clone(), committed }]).await
    }
}

/// Handles the events of all members until the condition holds. Asserts that no partition belongs to two members at the
/// same time.
pub(crate) async fn until_all(members: &mut [Member], event: &str, mut holds: impl FnMut(&[Member]) -> bool) {
    let runtime = members[0].runtime.clone();
    let deadline = runtime.monotonic() + LIMIT;
    while !holds(members) {
        assert!(runtime.monotonic() < deadline, "timed out waiting until {event}");
        for at in 0..members.len() {
            members[at].step(Duration::from_millis(10)).await;
            // Another member may have lost a partition during this step. It reports the loss before other events.
            for other in (0..members.len()).filter(|other| *other != at) {
                members[other].step(Duration::ZERO).await;
            }
            assert_one_owner(members);
        }
    }
}

pub(crate) fn assert_one_owner(members: &[Member]) {
    let owned: Vec<&Partition> = members.iter().flat_map(|member| member.owned.keys()).collect();
    let distinct: BTreeSet<&Partition> = owned.iter().copied().collect();
    assert_eq!(owned.len(), distinct.len(), "two members own one partition: {owned:?}");
}

//! State of the bus: topics, records, producers and groups. It is a pure state machine: the caller provides the time.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use instants::{Monotonic, Timestamp};

use super::group::{Grant, Group, MemberId, Sizes};
use crate::admin::GroupDescription;
use crate::consumer::{Commit, Committed, RecordBatch};
use crate::producer::NewRecord;
use crate::topic::{Offset, Partition, Position, Record, TopicDescription, TopicName};
use crate::{Assigned, BusError, Capabilities, ConsumerOptions, Start, TopicOptions, partition_of};

/// Largest number of partitions of a topic.
const PARTITIONS_MAX: u32 = 10_000;

/// Number of a producer. The bus uses each number once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ProducerId(u64);

/// Outcomes of the records of a batch.
pub(super) type Outcomes = Vec<Result<Position, BusError>>;

pub(super) struct Broker {
    capabilities: Capabilities,
    /// Records of each partition of each topic. The offset of a record is its index.
    topics: BTreeMap<TopicName, Vec<Vec<Record>>>,
    groups: BTreeMap<String, Group>,
    /// Number and outcomes of the last batch of each producer.
    producers: BTreeMap<ProducerId, (u64, Outcomes)>,
    last_id: u64,
    /// Partition of the next record without a key.
    next_without_key: u32,
}

impl Broker {
    pub(super) fn new(capabilities: Capabilities) -> Self {
        Broker {
            capabilities,
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            producers: BTreeMap::new(),
            last_id: 0,
            next_without_key: 0,
        }
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn sizes(&self) -> Sizes {
        let size = |logs: &Vec<Vec<Record>>| u32::try_from(logs.len()).expect("PARTITIONS_MAX is a u32");
        self.topics.iter().map(|(topic, logs)| (topic.clone(), size(logs))).collect()
    }

    fn logs(&self, topic: &TopicName) -> Result<&Vec<Vec<Record>>, BusError> {
        self.topics.get(topic).ok_or_else(|| BusError::UnknownTopic(topic.clone()))
    }

    pub(super) fn create_topic(&mut self, topic: &TopicName, options: &TopicOptions) -> Result<(), BusError> {
        if self.topics.contains_key(topic) {
            return Err(BusError::TopicExists(topic.clone()));
        }
        check_partitions(options.partitions)?;
        if options.replicas.is_some_and(|replicas| replicas != 1) {
            return Err(BusError::Invalid("the bus has one server, so the number of replicas must be 1".to_owned()));
        }
        if options.is_compacted && !self.capabilities.compacts_topics {
            return Err(BusError::Unsupported("compacted topics"));
        }
        self.topics.insert(topic.clone(), vec![Vec::new(); options.partitions as usize]);
        Ok(())
    }

    pub(super) fn describe_topic(&self, topic: &TopicName) -> Result<TopicDescription, BusError> {
        let offsets = self.logs(topic)?.iter().map(|log| (Offset(0), end(log))).collect();
        Ok(TopicDescription { replicas: 1, offsets })
    }

    pub(super) fn ends(&self, topic: &TopicName) -> Result<Vec<Offset>, BusError> {
        Ok(self.logs(topic)?.iter().map(|log| end(log)).collect())
    }

    pub(super) fn grow_topic(&mut self, topic: &TopicName, partitions: u32) -> Result<(), BusError> {
        check_partitions(partitions)?;
        let logs = self.topics.get_mut(topic).ok_or_else(|| BusError::UnknownTopic(topic.clone()))?;
        if partitions as usize <= logs.len() {
            let reason = format!("the topic already has {} partitions; name a larger number", logs.len());
            return Err(BusError::Invalid(reason));
        }
        logs.resize(partitions as usize, Vec::new());
        let sizes = self.sizes();
        self.groups.values_mut().for_each(|group| group.rebalance(&sizes));
        Ok(())
    }

    pub(super) fn topics(&self) -> Vec<TopicName> {
        self.topics.keys().cloned().collect()
    }

    pub(super) fn groups(&mut self, now: Monotonic) -> Vec<String> {
        let sizes = self.sizes();
        self.groups.values_mut().for_each(|group| group.expire(now, &sizes));
        self.groups.iter().filter(|(_, group)| !group.is_empty()).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn describe_group(&mut self, group: &str, now: Monotonic) -> GroupDescription {
        let sizes = self.sizes();
        let Some(group) = self.groups.get_mut(group) else { return GroupDescription::default() };
        group.expire(now, &sizes);
        group.describe()
    }

    pub(super) fn open_producer(&mut self) -> ProducerId {
        ProducerId(self.new_id())
    }

    /// Stores the batch with the number `number` of a producer. If the broker has already stored this batch, returns the
    /// outcomes of the first time.
    pub(super) fn produce(&mut self, id: ProducerId, number: u64, batch: &[NewRecord], at: Timestamp) -> Outcomes {
        if let Some((last, outcomes)) = self.producers.get(&id)
            && *last == number
        {
            return outcomes.clone();
        }
        let outcomes: Outcomes = batch.iter().map(|record| self.append(record, at)).collect();
        self.producers.insert(id, (number, outcomes.clone()));
        outcomes
    }

    fn append(&mut self, record: &NewRecord, at: Timestamp) -> Result<Position, BusError> {
        let (bytes, limit) = (record.bytes(), self.capabilities.record_bytes_max);
        if bytes > limit {
            return Err(BusError::RecordTooLarge { bytes, limit });
        }
        let logs = self.topics.get_mut(&record.topic).ok_or_else(|| BusError::UnknownTopic(record.topic.clone()))?;
        let size = u32::try_from(logs.len()).ok().and_then(NonZeroU32::new).expect("a topic has partitions");
        let index = match (record.partition, &record.key) {
            (Some(index), _) => index,
            (None, Some(key)) => partition_of(key, size),
            (None, None) => {
                self.next_without_key = self.next_without_key.wrapping_add(1);
                self.next_without_key % size
            }
        };
        let Some(log) = logs.get_mut(index as usize) else {
            let reason = format!("the topic {} has {size} partitions, so it has no partition {index}", record.topic);
            return Err(BusError::Invalid(reason));
        };
        let offset = end(log);
        log.push(Record {
            offset,
            timestamp: record.timestamp.unwrap_or(at),
            key: record.key.clone(),
            value: record.value.clone(),
            headers: record.headers.clone(),
        });
        Ok(Position { partition: Partition { topic: record.topic.clone(), index }, offset })
    }

    /// Returns records from the first partition of `wanted` that has records at its position or after it.
    pub(super) fn fetch(&self, wanted: &[(Partition, Offset)], records_max: usize) -> Option<RecordBatch> {
        wanted.iter().find_map(|(partition, from)| {
            let log = &self.topics.get(&partition.topic)?[partition.index as usize];
            let rest = log.get(usize::try_from(from.0).ok()?..).filter(|rest| !rest.is_empty())?;
            let records = rest.iter().take(records_max).cloned().collect();
            Some(RecordBatch { partition: partition.clone(), records, end: end(log) })
        })
    }

    pub(super) fn join(&mut self, options: &ConsumerOptions, now: Monotonic) -> Result<MemberId, BusError> {
        options.topics.iter().try_for_each(|topic| self.logs(topic).map(drop))?;
        let (id, sizes) = (MemberId(self.new_id()), self.sizes());
        let topics: BTreeSet<TopicName> = options.topics.iter().cloned().collect();
        let group = self.groups.entry(options.group.clone()).or_default();
        group.expire(now, &sizes);
        group.join(id, &options.name, topics, options.session_timeout, now, &sizes);
        Ok(id)
    }

    /// Renews a member's session. Returns the partitions that the member may hold. If the member does not hold a
    /// partition yet, its position is its committed offset or the position of `start`.
    pub(super) fn heartbeat(
        &mut self,
        group: &str,
        id: MemberId,
        held: &BTreeSet<Partition>,
        start: Start,
        now: Monotonic,
    ) -> Result<Vec<(Assigned, Grant)>, BusError> {
        let sizes = self.sizes();
        let group = self.groups.get_mut(group).ok_or(BusError::Fenced)?;
        group.expire(now, &sizes);
        let assigned = group.heartbeat(id, held, now)?;
        let with_position = |(partition, grant): (Partition, Grant)| {
            let end = end(&self.topics[&partition.topic][partition.index as usize]);
            let committed = group.committed(&partition).cloned();
            let position = match (&committed, start) {
                (Some(Committed { offset, .. }), _) if *offset <= end => *offset,
                (_, Start::Earliest) => Offset(0),
                (_, Start::Latest) => end,
            };
            (Assigned { partition, position, committed }, grant)
        };
        Ok(assigned.into_iter().map(with_position).collect())
    }

    pub(super) fn commit(
        &mut self,
        group: &str,
        id: MemberId,
        commits: Vec<(Commit, Grant)>,
        now: Monotonic,
    ) -> Result<(), BusError> {
        let limit = self.capabilities.metadata_bytes_max;
        if let Some(bytes) =
            commits.iter().map(|(commit, _)| commit.committed.metadata.len()).find(|bytes| *bytes > limit)
        {
            return Err(BusError::MetadataTooLarge { bytes, limit });
        }
        let sizes = self.sizes();
        let group = self.groups.get_mut(group).ok_or(BusError::Fenced)?;
        group.expire(now, &sizes);
        group.commit(id, commits, now)
    }

    /// Returns the number of changes of all groups. After a change, the next heartbeat of a member may have another
    /// response.
    pub(super) fn group_changes(&self) -> u64 {
        self.groups.values().map(Group::changes).sum()
    }

    pub(super) fn leave(&mut self, group: &str, id: MemberId) {
        let sizes = self.sizes();
        if let Some(group) = self.groups.get_mut(group) {
            group.leave(id, &sizes);
        }
    }
}

/// Returns the offset after the last record of a partition.
fn end(log: &[Record]) -> Offset {
    Offset(log.len() as u64)
}

fn check_partitions(partitions: u32) -> Result<(), BusError> {
    if (1..=PARTITIONS_MAX).contains(&partitions) {
        return Ok(());
    }
    Err(BusError::Invalid(format!("the number of partitions is {partitions}; it must be from 1 to {PARTITIONS_MAX}")))
}

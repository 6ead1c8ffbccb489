//! Records of a topic that a command reads, from a reader or from a member of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{
    Admin, Answer, BusError, Commit, Committed, Consumer, ConsumerOptions, Event, Offset, Partition, Reader,
    RecordBatch, TopicName,
};
use runtime::Runtime;

use super::{explain, note};
use crate::stop::Signals;

/// Time without a record after which a partition has no further records before its end. The bus may have deleted the
/// last records, and Kafka stores marks of transactions as records that no consumer receives.
const QUIET: Duration = Duration::from_secs(5);
/// Wait before a request that failed is repeated.
const RETRY_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Feed {
    runtime: Runtime,
    bus: Arc<dyn Admin>,
    topic: TopicName,
    source: Source,
    /// State of each partition that this command reads.
    partitions: BTreeMap<u32, State>,
    /// End of each partition when the command started; `None` if the feed has no end.
    ends: Option<Vec<Offset>>,
    signals: Signals,
}

enum Source {
    Reader(Arc<dyn Reader>),
    Member(Arc<dyn Consumer>),
}

/// State of one partition.
struct State {
    /// Offset of the next record that the command receives.
    position: Offset,
    /// Committed offset of the group. A reader commits nothing, so this is the offset of the first record.
    committed: Committed,
}

impl State {
    fn new(position: Offset, committed: Option<Committed>) -> Self {
        State { position, committed: committed.unwrap_or(Committed { offset: position, metadata: String::new() }) }
    }
}

/// Result of [`Feed::next`].
pub(super) enum Next {
    Records(RecordBatch),
    /// The command has received all records that the topic had when the command started.
    End,
    /// The process received a signal to stop.
    Stopped,
}

impl Source {
    fn next(&self) -> Answer<'_, Event> {
        match self {
            Source::Reader(reader) => Box::pin(async { reader.next().await.map(Event::Records) }),
            Source::Member(consumer) => consumer.next(),
        }
    }
}

impl Feed {
    /// Opens a feed of all records of a topic. If `until_end` is true, the feed ends at the present end of the topic.
    ///
    /// # Errors
    /// Returns an error if the topic does not exist, or if the bus does not respond.
    pub(super) async fn read(
        runtime: &Runtime,
        bus: Arc<dyn Admin>,
        topic: &TopicName,
        until_end: bool,
    ) -> anyhow::Result<Self> {
        let reader = bus.reader(topic).await.map_err(explain)?;
        let offsets = bus.describe_topic(topic).await.map_err(explain)?.offsets;
        let partitions = (0..).zip(&offsets).map(|(index, (first, _))| (index, State::new(*first, None))).collect();
        let ends = until_end.then(|| offsets.into_iter().map(|(_, end)| end).collect());
        let (runtime, topic, signals) = (runtime.clone(), topic.clone(), Signals::listen()?);
        Ok(Feed { runtime, bus, topic, source: Source::Reader(reader), partitions, ends, signals })
    }

    /// Opens a feed of the records that a group assigns to this command. If `until_end` is true, the feed ends when all
    /// assigned partitions are at their present ends. It waits until the group assigns a partition.
    ///
    /// # Errors
    /// Returns an error if the topic does not exist, if the bus does not respond, or if it rejects the options.
    pub(super) async fn join(
        runtime: &Runtime,
        bus: Arc<dyn Admin>,
        topic: &TopicName,
        options: ConsumerOptions,
        until_end: bool,
    ) -> anyhow::Result<Self> {
        let offsets = bus.describe_topic(topic).await.map_err(explain)?.offsets;
        let ends = until_end.then(|| offsets.into_iter().map(|(_, end)| end).collect());
        let (runtime, topic, signals) = (runtime.clone(), topic.clone(), Signals::listen()?);
        let source = Source::Member(bus.consumer(options).await.map_err(explain)?);
        Ok(Feed { runtime, bus, topic, source, partitions: BTreeMap::new(), ends, signals })
    }

    /// Returns the next records. Before this call, the caller must have finished the records that it received before,
    /// because the group may move a partition.
    ///
    /// # Errors
    /// Returns an error if the feed can receive no further records, or if the bus does not respond near the end of the
    /// topic.
    pub(super) async fn next(&mut self) -> anyhow::Result<Next> {
        loop {
            if self.is_at_end() {
                return Ok(Next::End);
            }
            let may_end = self.ends.is_some() && !self.partitions.is_empty();
            let received = async {
                match may_end {
                    true => self.runtime.timeout(QUIET, self.source.next()).await,
                    false => Some(self.source.next().await),
                }
            };
            let received = tokio::select! {
                biased;
                () = self.signals.next() => return Ok(Next::Stopped),
                received = received => received,
            };
            match received {
                Some(Ok(event)) => {
                    if let Some(batch) = self.receive(event) {
                        return Ok(Next::Records(batch));
                    }
                }
                Some(Err(error)) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                Some(Err(error)) => return Err(explain(error)),
                None => {
                    // Records may also be missing because the bus is away. Then this request fails.
                    self.bus.describe_topic(&self.topic).await.map_err(explain)?;
                    self.report_missing();
                    return Ok(Next::End);
                }
            }
        }
    }

    fn is_at_end(&self) -> bool {
        self.ends.is_some() && !self.partitions.is_empty() && self.missing().next().is_none()
    }

    /// Returns the partitions that are not read up to their ends, with their positions and ends.
    fn missing(&self) -> impl Iterator<Item = (u32, Offset, Offset)> {
        let end = |index: u32| self.ends.as_ref()?.get(usize::try_from(index).ok()?).copied();
        let states = self.partitions.iter();
        states.filter_map(move |(index, state)| {
            let end = end(*index).filter(|end| state.position < *end)?;
            Some((*index, state.position, end))
        })
    }

    fn report_missing(&self) {
        for (index, position, end) in self.missing() {
            note(&format!(
                "the bus delivered no record for {} s: the offsets from {position} to the end {end} of the partition {index} \
                 may have no records, for example after a transaction",
                QUIET.as_secs()
            ));
        }
    }

    fn receive(&mut self, event: Event) -> Option<RecordBatch> {
        match event {
            Event::Assigned(assigned) => {
                let states =
                    assigned.into_iter().map(|one| (one.partition.index, State::new(one.position, one.committed)));
                self.partitions.extend(states);
            }
            // The drop of the revocation releases the partitions. The caller has finished all records.
            Event::Revoked(revocation) => self.forget(revocation.partitions()),
            Event::Lost(partitions) => self.forget(&partitions),
            Event::Records(batch) => {
                let after = batch.records.last()?.offset.next();
                if let Some(state) = self.partitions.get_mut(&batch.partition.index) {
                    state.position = after;
                }
                return Some(batch);
            }
        }
        None
    }

    fn forget(&mut self, partitions: &[Partition]) {
        self.partitions.retain(|index, _| !partitions.iter().any(|partition| partition.index == *index));
    }

    /// Returns the committed offset of a partition. If the group has never committed, this is its first position. Returns
    /// `None` if this command does not have the partition.
    pub(super) fn committed(&self, partition: &Partition) -> Option<&Committed> {
        self.partitions.get(&partition.index).map(|state| &state.committed)
    }

    /// Commits an offset of the group. Does nothing if the feed has no group.
    ///
    /// # Errors
    /// Returns the errors of [`Consumer::commit`].
    pub(super) async fn commit(&mut self, partition: &Partition, committed: Committed) -> Result<(), BusError> {
        let Source::Member(consumer) = &self.source else { return Ok(()) };
        let commit = Commit { partition: partition.clone(), committed: committed.clone() };
        consumer.commit(vec![commit]).await?;
        if let Some(state) = self.partitions.get_mut(&partition.index) {
            state.committed = committed;
        }
        Ok(())
    }

    /// Leaves the group.
    pub(super) async fn close(self) {
        if let Source::Member(consumer) = &self.source
            && let Err(error) = consumer.close().await
        {
            tracing::debug!(%error, "cannot leave the group; the session ends after its timeout");
        }
    }
}

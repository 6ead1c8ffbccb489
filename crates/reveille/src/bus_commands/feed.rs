//! Records of a topic that a command reads, from a reader or from a member of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{
    Admin, Answer, Assigned, BusError, Commit, Committed, Consumer, ConsumerOptions, Event, Offset, Partition, Reader,
    RecordBatch, TopicName,
};
use futures_util::future::{BoxFuture, Fuse, FutureExt as _};
use runtime::Runtime;

use super::explain;
use crate::stop::Signals;

/// Time without a record of an unfinished partition after which the feed ends. Kafka stores marks of transactions as records
/// that no consumer receives, so the feed cannot distinguish a partition without further records from a bus that delivers
/// none.
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
    /// Future that completes when the process must stop.
    stop: Fuse<BoxFuture<'static, ()>>,
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
    /// The bus delivered no records for [`QUIET`] before the end. The text names the missing offsets.
    Missing(String),
    /// The process received a signal to stop.
    Stopped,
}

/// Returns a future that completes at a signal to stop.
///
/// # Errors
/// Returns an error if the process cannot listen for signals.
pub(super) fn stop() -> anyhow::Result<BoxFuture<'static, ()>> {
    let mut signals = Signals::listen()?;
    Ok(async move { signals.next().await }.boxed())
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
    /// Opens a feed of all records of a topic. If `until_end` is true, the feed ends at the present end of the topic. It also
    /// ends when `stop` completes.
    ///
    /// # Errors
    /// Returns an error if the topic does not exist, or if the bus does not respond.
    pub(super) async fn read(
        runtime: &Runtime,
        bus: Arc<dyn Admin>,
        topic: &TopicName,
        until_end: bool,
        stop: BoxFuture<'static, ()>,
    ) -> anyhow::Result<Self> {
        let reader = bus.reader(topic).await.map_err(explain)?;
        let offsets = bus.describe_topic(topic).await.map_err(explain)?.offsets;
        let partitions = (0..).zip(&offsets).map(|(index, (first, _))| (index, State::new(*first, None))).collect();
        let ends = until_end.then(|| offsets.into_iter().map(|(_, end)| end).collect());
        let (runtime, topic, stop) = (runtime.clone(), topic.clone(), stop.fuse());
        Ok(Feed { runtime, bus, topic, source: Source::Reader(reader), partitions, ends, stop })
    }

    /// Opens a feed of the records that a group assigns to this command. If `until_end` is true, the feed ends when all
    /// assigned partitions are at their present ends. It waits until the group assigns a partition. It also ends when `stop`
    /// completes.
    ///
    /// # Errors
    /// Returns an error if the topic does not exist, if the bus does not respond, or if it rejects the options.
    pub(super) async fn join(
        runtime: &Runtime,
        bus: Arc<dyn Admin>,
        topic: &TopicName,
        options: ConsumerOptions,
        until_end: bool,
        stop: BoxFuture<'static, ()>,
    ) -> anyhow::Result<Self> {
        let offsets = bus.describe_topic(topic).await.map_err(explain)?.offsets;
        let ends = until_end.then(|| offsets.into_iter().map(|(_, end)| end).collect());
        let (runtime, topic, stop) = (runtime.clone(), topic.clone(), stop.fuse());
        let source = Source::Member(bus.consumer(options).await.map_err(explain)?);
        Ok(Feed { runtime, bus, topic, source, partitions: BTreeMap::new(), ends, stop })
    }

    /// Returns the next records. Before this call, the caller must have finished the records that it received before,
    /// because the group may move a partition.
    ///
    /// # Errors
    /// Returns an error if the feed can receive no further records, or if the bus does not respond near the end of the
    /// topic.
    pub(super) async fn next(&mut self) -> anyhow::Result<Next> {
        let mut quiet_since = self.runtime.monotonic();
        loop {
            if self.is_at_end() {
                return Ok(Next::End);
            }
            let may_end = self.ends.is_some() && !self.partitions.is_empty();
            let quiet = QUIET.saturating_sub(self.runtime.monotonic().since(quiet_since));
            // Finished partitions may always have further records, so the time also ends without a timeout of the call.
            if may_end && quiet.is_zero() {
                match self.missing_text().await? {
                    Some(text) => return Ok(Next::Missing(text)),
                    None => continue,
                }
            }
            let received = async {
                match may_end {
                    true => self.runtime.timeout(quiet, self.source.next()).await,
                    false => Some(self.source.next().await),
                }
            };
            let received = tokio::select! {
                biased;
                () = &mut self.stop => return Ok(Next::Stopped),
                received = received => received,
            };
            match received {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Records(_)) {
                        quiet_since = self.runtime.monotonic();
                    }
                    if let Some(batch) = self.receive(event) {
                        return Ok(Next::Records(batch));
                    }
                }
                Some(Err(error)) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                Some(Err(error)) => return Err(explain(error)),
                None => {}
            }
        }
    }

    fn is_at_end(&self) -> bool {
        self.ends.is_some() && !self.partitions.is_empty() && self.missing().next().is_none()
    }

    /// Returns the end of a partition; `None` if the feed has no end. A partition that the topic did not have when the
    /// command started has the end 0.
    fn end(&self, index: u32) -> Option<Offset> {
        let ends = self.ends.as_ref()?;
        Some(usize::try_from(index).ok().and_then(|index| ends.get(index).copied()).unwrap_or_default())
    }

    /// Returns the partitions that are not read up to their ends, with their positions and ends.
    fn missing(&self) -> impl Iterator<Item = (u32, Offset, Offset)> {
        self.partitions.iter().filter_map(|(index, state)| {
            let end = self.end(*index).filter(|end| state.position < *end)?;
            Some((*index, state.position, end))
        })
    }

    /// Returns a text with the missing offsets; `None` if the bus has deleted their records.
    ///
    /// # Errors
    /// Returns an error if the bus does not respond. Then the records are missing for this reason.
    async fn missing_text(&mut self) -> anyhow::Result<Option<String>> {
        let offsets = self.bus.describe_topic(&self.topic).await.map_err(explain)?.offsets;
        for (index, (first, _)) in (0..).zip(offsets) {
            if let Some(state) = self.partitions.get_mut(&index) {
                state.position = state.position.max(first);
            }
        }
        let missing: Vec<String> = self
            .missing()
            .map(|(index, position, end)| {
                format!("the offsets from {position} to the end {end} of the partition {index}")
            })
            .collect();
        let text = || {
            format!(
                "the bus delivered no record for {} s: {} may have no records, for example after a transaction",
                QUIET.as_secs(),
                missing.join(", ")
            )
        };
        Ok((!missing.is_empty()).then(text))
    }

    /// Removes the records after the end of the partition. Returns `None` if no records remain.
    fn cut(&mut self, mut batch: RecordBatch) -> Option<RecordBatch> {
        let after = batch.records.last()?.offset.next();
        let end = self.end(batch.partition.index);
        if let Some(state) = self.partitions.get_mut(&batch.partition.index) {
            state.position = after;
        }
        if let Some(end) = end {
            batch.records.retain(|record| record.offset < end);
            if after >= end {
                self.pause(&[batch.partition.clone()]);
            }
        }
        (!batch.records.is_empty()).then_some(batch)
    }

    fn receive(&mut self, event: Event) -> Option<RecordBatch> {
        match event {
            Event::Assigned(assigned) => {
                let is_finished = |one: &Assigned| self.end(one.partition.index).is_some_and(|end| one.position >= end);
                let finished = assigned.iter().filter(|one| is_finished(one)).map(|one| one.partition.clone());
                self.pause(&finished.collect::<Vec<_>>());
                let states =
                    assigned.into_iter().map(|one| (one.partition.index, State::new(one.position, one.committed)));
                self.partitions.extend(states);
            }
            // The drop of the revocation releases the partitions. The caller has finished all records.
            Event::Revoked(revocation) => self.forget(revocation.partitions()),
            Event::Lost(partitions) => self.forget(&partitions),
            Event::Records(batch) => return self.cut(batch),
        }
        None
    }

    /// Stops the records of finished partitions. A reader cannot pause partitions, so [`Feed::cut`] removes their records.
    fn pause(&self, finished: &[Partition]) {
        if let Source::Member(consumer) = &self.source {
            consumer.pause(finished);
        }
    }

    /// Returns true if the group has not assigned all partitions of the topic to this command.
    pub(super) fn lacks_partitions(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| self.partitions.len() < ends.len())
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

#[cfg(test)]
mod tests;

//! Bus that reports the events of a member to the history. It also adds deliberate bugs between the processor and the
//! bus, so that the processor behaves as if it had the bug.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bus::memory::MemoryBus;
use bus::{
    Answer, Bus, BusError, Capabilities, Commit, Committed, Consumer, ConsumerOptions, Event, NewRecord, Offset,
    Partition, Position, Producer, ProducerOptions, Reader, Revocation, TopicDescription, TopicName, TopicOptions,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use super::history::History;

/// Deliberate bug of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The member commits records before their handlers end.
    CommitsEarly,
    /// The member does not send its commits.
    CommitsNothing,
    /// The member forgets the finished records after the committed offset.
    ForgetsGaps,
    /// The member does not notice that it has lost a partition.
    IgnoresLost,
    /// The member does not pause partitions at its bounds.
    IgnoresPause,
    /// The member finishes a failed record although the bus has not acknowledged its copy.
    LosesCopies,
    /// The member releases a revoked partition at once, and continues to handle its records.
    ReleasesAtOnce,
    /// An earlier commit of the member replaces a later commit.
    RepeatsOldCommits,
    /// The records of one key are in two lanes.
    SplitsLanes,
}

impl Mutant {
    /// All bugs. For each bug, texts in the messages of the checks that can catch it first.
    pub const ALL: [(Mutant, &[&str]); 9] = [
        (Mutant::CommitsEarly, &["early"]),
        (Mutant::CommitsNothing, &["repeated"]),
        (Mutant::ForgetsGaps, &["repeated"]),
        (Mutant::IgnoresLost, &["continued", "all records are handled"]),
        (Mutant::IgnoresPause, &["unbounded"]),
        (Mutant::LosesCopies, &["all records are handled"]),
        (Mutant::ReleasesAtOnce, &["continued"]),
        (Mutant::RepeatsOldCommits, &["repeated"]),
        (Mutant::SplitsLanes, &["inverted"]),
    ];
}

/// Bus of a member.
pub(super) struct WatchedBus {
    runtime: Runtime,
    inner: Arc<MemoryBus>,
    member: &'static str,
    history: Arc<History>,
    mutant: Option<Mutant>,
}

impl WatchedBus {
    pub(super) fn new(
        runtime: &Runtime,
        inner: Arc<MemoryBus>,
        member: &'static str,
        history: Arc<History>,
        mutant: Option<Mutant>,
    ) -> Self {
        WatchedBus { runtime: runtime.clone(), inner, member, history, mutant }
    }
}

impl Bus for WatchedBus {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.inner.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.inner.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.inner.grow_topic(topic, partitions)
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        async {
            let inner = self.inner.producer(options).await?;
            let (member, history) = (self.member, self.history.clone());
            let producer = WatchedProducer { inner, member, history, loses: self.mutant == Some(Mutant::LosesCopies) };
            Ok(Arc::new(producer) as Arc<dyn Producer>)
        }
        .boxed()
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        async {
            let inner = self.inner.consumer(options).await?;
            let consumer = WatchedConsumer {
                runtime: self.runtime.clone(),
                inner,
                member: self.member,
                history: self.history.clone(),
                mutant: self.mutant,
                records: AtomicU64::new(0),
                last_commit: Mutex::default(),
            };
            Ok(Arc::new(consumer) as Arc<dyn Consumer>)
        }
        .boxed()
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.inner.reader(topic)
    }
}

/// Producer of the copies of failed records.
struct WatchedProducer {
    inner: Arc<dyn Producer>,
    member: &'static str,
    history: Arc<History>,
    loses: bool,
}

impl Producer for WatchedProducer {
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>> {
        let (member, history) = (self.member, self.history.clone());
        let outcomes = if self.loses {
            let position = |record: &NewRecord| {
                let partition = Partition { topic: record.topic.clone(), index: 0 };
                Ok(Position { partition, offset: Offset(0) })
            };
            std::future::ready(records.iter().map(position).collect()).boxed()
        } else {
            self.inner.send(records.clone())
        };
        async move {
            let outcomes = outcomes.await;
            let stored = records.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
            stored.for_each(|(record, _)| history.copied(member, record));
            outcomes
        }
        .boxed()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

struct WatchedConsumer {
    runtime: Runtime,
    inner: Arc<dyn Consumer>,
    member: &'static str,
    history: Arc<History>,
    mutant: Option<Mutant>,
    /// Number of received records.
    records: AtomicU64,
    last_commit: Mutex<Vec<Commit>>,
}

impl WatchedConsumer {
    fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn replace_last_commit(&self, commits: Vec<Commit>) -> Vec<Commit> {
        std::mem::replace(&mut *self.last_commit.lock().expect("no holder of this lock panics"), commits)
    }

    /// Returns a revocation for the processor. When the processor releases it, the member releases the original.
    fn pass_on(&self, revocation: Revocation) -> Revocation {
        let assignments = self.history.assignments(self.member, revocation.partitions());
        let (passed, released) = Revocation::new(revocation.partitions().to_vec(), revocation.deadline());
        if self.has(Mutant::ReleasesAtOnce) {
            self.history.unassign(&assignments);
            revocation.release();
            return passed;
        }
        let history = self.history.clone();
        drop(self.runtime.spawn("watched revocation", async move {
            // The receiver ends with an error if the processor drops the revocation.
            _ = released.await;
            history.unassign(&assignments);
            revocation.release();
        }));
        passed
    }

    fn change(&self, event: Event) -> Option<Event> {
        match event {
            Event::Assigned(mut assigned) => {
                for one in &mut assigned {
                    self.history.assign(self.member, &one.partition);
                    if let Some(committed) = one.committed.as_mut().filter(|_| self.has(Mutant::ForgetsGaps)) {
                        committed.metadata.clear();
                    }
                }
                Some(Event::Assigned(assigned))
            }
            Event::Revoked(revocation) => Some(Event::Revoked(self.pass_on(revocation))),
            Event::Lost(_) if self.has(Mutant::IgnoresLost) => None,
            Event::Lost(partitions) => {
                self.history.unassign(&self.history.assignments(self.member, &partitions));
                Some(Event::Lost(partitions))
            }
            Event::Records(mut batch) => {
                if self.has(Mutant::SplitsLanes) {
                    for record in &mut batch.records {
                        let lane = self.records.fetch_add(1, Ordering::Relaxed) % 2;
                        let key = record.key.as_deref().unwrap_or_default();
                        record.key = Some(Bytes::from([key, format!("#{lane}").as_bytes()].concat()));
                    }
                }
                Some(Event::Records(batch))
            }
        }
    }
}

impl Consumer for WatchedConsumer {
    fn next(&self) -> Answer<'_, Event> {
        async {
            loop {
                if let Some(event) = self.change(self.inner.next().await?) {
                    return Ok(event);
                }
            }
        }
        .boxed()
    }

    fn commit(&self, mut commits: Vec<Commit>) -> Answer<'_, ()> {
        if self.has(Mutant::CommitsEarly) {
            let ahead = |offset: Offset| Offset(offset.0 + 1);
            commits.iter_mut().for_each(|commit| {
                commit.committed = Committed { offset: ahead(commit.committed.offset), metadata: String::new() };
            });
        }
        let described = self.history.commit(self.member, &commits);
        async move {
            if !self.has(Mutant::CommitsNothing) {
                self.inner.commit(commits.clone()).await?;
            }
            self.history.committed(described);
            if self.has(Mutant::RepeatsOldCommits) {
                let earlier = self.replace_last_commit(commits);
                drop(self.inner.commit(earlier).await);
            }
            Ok(())
        }
        .boxed()
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        self.inner.seek(partition, offset);
    }

    fn pause(&self, partitions: &[Partition]) {
        if !self.has(Mutant::IgnoresPause) {
            self.inner.pause(partitions);
        }
    }

    fn resume(&self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

//! Deliberate bugs in an engine. The conformance suite must detect each of them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{
    Admin, Answer, Bus, BusError, Capabilities, Commit, Consumer, ConsumerOptions, Event, GroupDescription, NewRecord,
    Offset, Partition, Position, Producer, ProducerOptions, Reader, RecordBatch, Start, TopicDescription, TopicName,
    TopicOptions,
};
use bus_conformance::{Process, Subject, case};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use simulator::Simulation;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    CommitIsIgnored,
    DescriptionHasNoCommits,
    DescriptionHasNoPartitions,
    DescriptionIsNeverRebalancing,
    FencedCommitIsAccepted,
    HeadersAreLost,
    KeyIsIgnored,
    LostIsIgnored,
    MetadataIsLost,
    MissingRecordsCount,
    PauseIsIgnored,
    ReaderSkipsRecords,
    RecordIsStoredTwice,
    RevokedIsReleasedAtOnce,
    SeekIsIgnored,
    StartIsIgnored,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::CommitIsIgnored, "next_owner_starts_at_the_committed_offset"),
    (Bug::DescriptionHasNoCommits, "committed_offsets_remain_after_the_members_left"),
    (Bug::DescriptionHasNoPartitions, "group_names_its_members_and_their_partitions"),
    (Bug::DescriptionIsNeverRebalancing, "group_is_rebalancing_until_each_member_responds"),
    (Bug::FencedCommitIsAccepted, "former_owner_cannot_commit"),
    (Bug::HeadersAreLost, "consumer_receives_all_fields_of_a_record"),
    (Bug::KeyIsIgnored, "key_determines_the_partition"),
    (Bug::LostIsIgnored, "member_without_contact_loses_its_partitions_before_they_move"),
    (Bug::MetadataIsLost, "metadata_of_the_largest_size_is_stored"),
    (Bug::MissingRecordsCount, "records_are_found_only_before_the_end"),
    (Bug::PauseIsIgnored, "paused_partition_delivers_no_records"),
    (Bug::ReaderSkipsRecords, "reader_receives_all_records_and_then_new_ones"),
    (Bug::RecordIsStoredTwice, "record_is_stored_once_if_its_acknowledgement_is_lost"),
    (Bug::RevokedIsReleasedAtOnce, "revoked_partition_moves_only_after_its_release"),
    (Bug::SeekIsIgnored, "seek_moves_the_position"),
    (Bug::StartIsIgnored, "group_without_a_commit_starts_where_its_options_say"),
];

#[test]
fn conformance_suite_detects_each_deliberate_bug() {
    let missed: Vec<_> = CAUGHT_BY.iter().filter(|(bug, case)| !(0..4).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed detects {missed:?}");
}

/// Returns true if the case fails on an engine with this bug. The tests of the suite show that the case passes on an
/// engine without bugs.
fn catches(bug: Bug, name: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let bus = MemoryBus::new(sim.outside(), MemoryOptions::default());
        let subject = Broken { bug, runtime: sim.outside(), bus: Arc::new(bus) };
        AssertUnwindSafe(case(name).run(&subject)).catch_unwind().await.is_err()
    })
}

/// Engine with a bug. It is also the bus of each process.
struct Broken {
    bug: Bug,
    runtime: Runtime,
    bus: Arc<MemoryBus>,
}

impl Subject for Broken {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        let bus = Arc::new(self.bus.reopen(self.runtime.clone()));
        async { Arc::new(Broken { bug: self.bug, runtime: self.runtime.clone(), bus }) as Arc<dyn Process> }.boxed()
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_millis(400)
    }
}

impl Process for Broken {
    fn cut(&self, is_cut: bool) {
        self.bus.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.bus.cut_answers();
    }
}

impl Bus for Broken {
    fn capabilities(&self) -> Capabilities {
        self.bus.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.bus.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.bus.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.bus.grow_topic(topic, partitions)
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        async {
            let inner = self.bus.producer(options).await?;
            Ok(Arc::new(BrokenProducer { bug: self.bug, inner }) as Arc<dyn Producer>)
        }
        .boxed()
    }

    fn consumer(&self, mut options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        if self.bug == Bug::StartIsIgnored {
            options.start = Start::Earliest;
        }
        async {
            let inner = self.bus.consumer(options).await?;
            Ok(Arc::new(BrokenConsumer { bug: self.bug, inner }) as Arc<dyn Consumer>)
        }
        .boxed()
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        let opening = self.bus.reader(topic);
        async {
            let inner = opening.await?;
            if self.bug == Bug::ReaderSkipsRecords {
                return Ok(Arc::new(SkippingReader(inner)) as Arc<dyn Reader>);
            }
            Ok(inner)
        }
        .boxed()
    }
}

impl Admin for Broken {
    fn topics(&self) -> Answer<'_, Vec<TopicName>> {
        self.bus.topics()
    }

    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>> {
        self.bus.stored_ends(topic)
    }

    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool> {
        let having = self.bus.has_records(topic, from);
        async { Ok(having.await? || self.bug == Bug::MissingRecordsCount) }.boxed()
    }

    fn groups(&self) -> Answer<'_, Vec<String>> {
        self.bus.groups()
    }

    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription> {
        let describing = self.bus.describe_group(group);
        async {
            let mut description = describing.await?;
            match self.bug {
                Bug::DescriptionHasNoCommits => description.committed.clear(),
                Bug::DescriptionIsNeverRebalancing => description.is_rebalancing = false,
                Bug::DescriptionHasNoPartitions => {
                    description.members.iter_mut().for_each(|one| one.partitions.clear());
                }
                _ => {}
            }
            Ok(description)
        }
        .boxed()
    }
}

/// Reader that returns only every second batch.
struct SkippingReader(Arc<dyn Reader>);

impl Reader for SkippingReader {
    fn next(&self) -> Answer<'_, RecordBatch> {
        async {
            drop(self.0.next().await?);
            self.0.next().await
        }
        .boxed()
    }
}

struct BrokenProducer {
    bug: Bug,
    inner: Arc<dyn Producer>,
}

impl Producer for BrokenProducer {
    fn send(&self, mut records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>> {
        for record in &mut records {
            match self.bug {
                Bug::HeadersAreLost => record.headers.clear(),
                Bug::KeyIsIgnored => record.partition = record.partition.or(Some(0)),
                _ => {}
            }
        }
        if self.bug == Bug::RecordIsStoredTwice {
            drop(self.inner.send(records.clone()));
        }
        self.inner.send(records)
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

struct BrokenConsumer {
    bug: Bug,
    inner: Arc<dyn Consumer>,
}

impl Consumer for BrokenConsumer {
    fn next(&self) -> Answer<'_, Event> {
        async {
            loop {
                match self.inner.next().await? {
                    Event::Lost(_) if self.bug == Bug::LostIsIgnored => {}
                    Event::Revoked(revocation) if self.bug == Bug::RevokedIsReleasedAtOnce => {
                        let (again, _) = bus::Revocation::new(revocation.partitions().to_vec(), revocation.deadline());
                        revocation.release();
                        return Ok(Event::Revoked(again));
                    }
                    event => return Ok(event),
                }
            }
        }
        .boxed()
    }

    fn commit(&self, mut commits: Vec<Commit>) -> Answer<'_, ()> {
        match self.bug {
            Bug::CommitIsIgnored => return async { Ok(()) }.boxed(),
            Bug::MetadataIsLost => commits.iter_mut().for_each(|commit| commit.committed.metadata.clear()),
            Bug::FencedCommitIsAccepted => {
                let committed = self.inner.commit(commits);
                return committed
                    .map(|outcome| outcome.or_else(|error| (error == BusError::Fenced).then_some(()).ok_or(error)))
                    .boxed();
            }
            _ => {}
        }
        self.inner.commit(commits)
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        if self.bug != Bug::SeekIsIgnored {
            self.inner.seek(partition, offset);
        }
    }

    fn pause(&self, partitions: &[Partition]) {
        if self.bug != Bug::PauseIsIgnored {
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

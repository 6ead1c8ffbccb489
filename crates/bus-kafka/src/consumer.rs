//! Consumer of the Kafka engine. One task answers the rebalances of the group and proves the membership by commits, and
//! another task makes the commits. Each call of [`Consumer::next`] takes records from librdkafka's queues.
//!
//! Each partition has a queue of its own, so that a paused partition does not hold up others, and the task can poll
//! rebalances while the caller does not want records.

mod group;
mod native;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bus::ownership::Ownership;
use bus::{Answer, BusError, Commit, Committed, Consumer, ConsumerOptions, Event, Offset, Partition, RecordBatch};
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Notify, mpsc, oneshot};

use self::native::{Native, Queue};
use crate::METADATA_BYTES_MAX;
use crate::options::KafkaUrl;
use crate::records::Copier;

/// Longest session timeout, which is Kafka's default for `group.max.session.timeout.ms`.
const SESSION_MAX: Duration = Duration::from_secs(30 * 60);

pub(crate) struct KafkaConsumer {
    shared: Arc<Shared>,
    /// Tasks of the consumer. It is `None` after the caller has closed the consumer.
    tasks: Mutex<Option<TaskSet>>,
}

struct Shared {
    runtime: Runtime,
    options: ConsumerOptions,
    /// The queues in the state must end before the client, because the last of them would otherwise close the client on
    /// the thread of the caller.
    state: Mutex<State>,
    native: Native,
    /// Wakes the call of `next` after a change of the state, and after a partition's queue has received records.
    changed: Arc<Notify>,
    commits: mpsc::UnboundedSender<CommitJob>,
}

struct State {
    /// Partitions that the caller owns.
    ownership: Ownership<Queue>,
    copier: Copier,
    /// End of the proved membership by the clock of this process.
    ends: Monotonic,
    /// Last committed offsets of the partitions in librdkafka's assignment. A repetition of such a commit proves the
    /// membership and changes nothing.
    committed: BTreeMap<Partition, Committed>,
    /// True if a proof waits for the task that makes commits.
    is_proving: bool,
    /// Error after which the consumer can receive no further event.
    failure: Option<BusError>,
    is_closed: bool,
}

/// Commit that waits for the task. The task makes the commits one after the other.
enum CommitJob {
    /// Commit of the caller, with the assignments of the partitions.
    Caller { commits: Vec<Commit>, assignments: Vec<u64>, outcome: CommitOutcome },
    /// Commit of the first positions of an assignment.
    First { commits: Vec<Commit>, outcome: CommitOutcome },
    /// Repetition of a commit.
    Proof,
}

type CommitOutcome = oneshot::Sender<Result<(), BusError>>;

impl KafkaConsumer {
    pub(crate) fn join(runtime: &Runtime, url: &KafkaUrl, options: ConsumerOptions) -> Result<Self, BusError> {
        let is_timeout = (Duration::from_millis(1)..=SESSION_MAX).contains(&options.session_timeout);
        if options.topics.is_empty() || options.batch_records_max == 0 || options.group.is_empty() || !is_timeout {
            let reason = "a consumer needs a group, a topic, a session timeout from 1 ms to 30 minutes, and batches of \
                          at least one record";
            return Err(BusError::Invalid(reason.to_owned()));
        }
        options.check_name()?;
        let changed = Arc::new(Notify::new());
        let native = Native::open(url, &options, changed.clone())?;
        let (commits, jobs) = mpsc::unbounded_channel();
        let state = State {
            ownership: Ownership::default(),
            copier: Copier::default(),
            ends: runtime.monotonic(),
            committed: BTreeMap::new(),
            is_proving: false,
            failure: None,
            is_closed: false,
        };
        let runtime = runtime.clone();
        let tasks = TaskSet::new(&runtime);
        let shared = Arc::new(Shared { runtime, native, options, state: Mutex::new(state), changed, commits });
        let (grouped, committing) = (shared.clone(), shared.clone());
        tasks.spawn("kafka group", async move { grouped.follow_group().await });
        tasks.spawn("kafka commits", async move { committing.make_commits(jobs).await });
        Ok(KafkaConsumer { shared, tasks: Mutex::new(Some(tasks)) })
    }

    fn tasks(&self) -> MutexGuard<'_, Option<TaskSet>> {
        self.tasks.lock().expect("no code panics while it holds this mutex")
    }
}

impl State {
    /// Takes all partitions from the caller if the proof of the membership has ended.
    fn expire(&mut self, now: Monotonic) {
        if now >= self.ends {
            self.ownership.lose_all();
        }
    }

    /// Returns the number of the assignment of a partition that the caller owns.
    fn assignment(&self, partition: &Partition) -> Option<u64> {
        self.ownership.known(partition).map(|owned| owned.data.assignment())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this mutex")
    }

    fn now(&self) -> Monotonic {
        self.runtime.monotonic()
    }

    /// Adds a commit to the queue, and waits for its outcome.
    async fn commit(&self, job: impl FnOnce(CommitOutcome) -> CommitJob) -> Result<(), BusError> {
        let (outcome, received) = oneshot::channel();
        // If the task has ended, the channel of the outcome ends.
        drop(self.commits.send(job(outcome)));
        received.await.unwrap_or(Err(BusError::Closed))
    }

    async fn make_commits(&self, mut jobs: mpsc::UnboundedReceiver<CommitJob>) {
        while let Some(job) = jobs.recv().await {
            match job {
                CommitJob::Caller { commits, assignments, outcome } => {
                    let is_current = || {
                        let state = self.state();
                        let mut owned = commits.iter().map(|one| state.assignment(&one.partition));
                        assignments.iter().all(|assignment| owned.next() == Some(Some(*assignment)))
                    };
                    drop(outcome.send(self.make_commit(&commits, is_current).await));
                }
                CommitJob::First { commits, outcome } => {
                    drop(outcome.send(self.make_commit(&commits, || !self.native.has_rebalance()).await));
                }
                CommitJob::Proof => {
                    let last = self.state().committed.first_key_value().map(|(partition, committed)| Commit {
                        partition: partition.clone(),
                        committed: committed.clone(),
                    });
                    if let Some(last) = last
                        && let Err(error) = self.make_commit(&[last], || !self.native.has_rebalance()).await
                    {
                        tracing::debug!(%error, "the bus did not accept the proof of a membership");
                    }
                    self.state().is_proving = false;
                }
            }
        }
    }

    async fn make_commit(&self, commits: &[Commit], is_valid: impl Fn() -> bool) -> Result<(), BusError> {
        let sent = self.native.commit(&self.runtime, commits, is_valid).await?;
        let mut state = self.state();
        // The broker started the session again after the commit arrived.
        state.expire(self.now());
        state.ends = state.ends.max(sent + self.options.session_timeout);
        for Commit { partition, committed } in commits {
            if let Some(last) = state.committed.get_mut(partition) {
                last.clone_from(committed);
            }
        }
        Ok(())
    }

    /// Returns records of a partition that has some, beginning with the partition after the last one.
    fn fetch(&self, state: &mut State) -> Option<Event> {
        let State { ownership, copier, .. } = state;
        for (partition, position) in ownership.wanted() {
            let owned = ownership.known(&partition)?;
            let records = owned.data.take(copier, position, self.options.batch_records_max);
            if let Some(last) = records.last() {
                let end = self.native.end(&partition).unwrap_or_default().max(last.offset.next());
                return ownership.deliver(position, RecordBatch { partition, records, end });
            }
        }
        None
    }

    async fn next(&self) -> Result<Event, BusError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let ends = {
                let mut state = self.state();
                if state.is_closed {
                    return Err(BusError::Closed);
                }
                state.expire(self.now());
                if let Some(event) = state.ownership.take_event() {
                    return Ok(event);
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                if let Some(event) = self.fetch(&mut state) {
                    return Ok(event);
                }
                // Without partitions, the end of the proof causes no event.
                (!state.ownership.is_empty()).then_some(state.ends)
            };
            match ends {
                Some(ends) => {
                    tokio::select! {
                        () = changed => {}
                        () = self.runtime.sleep_until(ends) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    fn set_paused(&self, partitions: &[Partition], is_paused: bool) {
        self.state().ownership.set_paused(partitions, is_paused);
        self.changed.notify_one();
    }
}

impl Consumer for KafkaConsumer {
    fn next(&self) -> Answer<'_, Event> {
        Box::pin(self.shared.next())
    }

    fn commit(&self, commits: Vec<Commit>) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            let (left, assignments) = {
                let mut state = shared.state();
                if state.is_closed {
                    return Err(BusError::Closed);
                }
                state.expire(shared.now());
                let assignments = commits.iter().map(|one| state.assignment(&one.partition));
                let assignments = assignments.collect::<Option<Vec<u64>>>().ok_or(BusError::Fenced)?;
                (state.ends.since(shared.now()), assignments)
            };
            let limit = METADATA_BYTES_MAX;
            if let Some(bytes) = commits.iter().map(|one| one.committed.metadata.len()).find(|bytes| *bytes > limit) {
                return Err(BusError::MetadataTooLarge { bytes, limit });
            }
            if commits.is_empty() {
                return Ok(());
            }
            let late = || Err(BusError::Disconnected("the session ended before the response".to_owned()));
            let committed = shared.commit(|outcome| CommitJob::Caller { commits, assignments, outcome });
            shared.runtime.timeout(left, committed).await.unwrap_or_else(late)
        })
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        let queue = {
            let mut state = self.shared.state();
            let Some(queue) = state.ownership.seek(partition, offset) else { return };
            queue.begin_seek();
            queue.clone()
        };
        let (shared, partition) = (self.shared.clone(), partition.clone());
        let seek = async move { shared.native.seek(&shared.runtime, queue, partition, offset).await };
        // The task ends soon, or when the consumer no longer has the partition.
        drop(self.shared.runtime.spawn("kafka seek", seek));
    }

    fn pause(&self, partitions: &[Partition]) {
        self.shared.set_paused(partitions, true);
    }

    fn resume(&self, partitions: &[Partition]) {
        self.shared.set_paused(partitions, false);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            {
                let mut state = shared.state();
                if std::mem::replace(&mut state.is_closed, true) {
                    return Ok(());
                }
                state.ownership.clear();
            }
            shared.changed.notify_one();
            drop(self.tasks().take());
            shared.native.leave(shared.options.session_timeout).await
        })
    }
}

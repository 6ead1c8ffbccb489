//! Processing of a group's records with order per key.
//!
//! A [`Processor`] is a member of a group. It calls a [`Handler`] for each record. Records with the same key of one
//! partition are handled one after the other, in their order. Records with different keys, and records without a key,
//! are handled at the same time.
//!
//! - The processor commits only finished records. A record is finished when the handler succeeds, or when it fails and
//!   the [`Retry`] policy allows no further attempt. If a later record finishes before an earlier record, the metadata
//!   of the commit describes the later record. It is not processed again, except if the metadata is full.
//! - The numbers of records and bytes in hand are bounded. The processor pauses partitions at these bounds.
//! - When the group moves a partition to another member, the processor waits for the running handlers, commits and
//!   releases the partition. When the consumer has lost a partition, the processor drops its running handlers at once
//!   and commits nothing.
//! - If a handler panics, its record fails.
//! - A record whose calls have all failed can wait in retry topics, while later records of its key are handled. Then it
//!   can become a dead letter. The processor finishes the record only after the bus has stored the copy durably.

mod copies;
mod lanes;
mod progress;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::copies::Copies;
pub use self::copies::{CALLS_HEADER, ERROR_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER, VALUE_OMITTED_HEADER};
use self::lanes::{AssignmentId, Bounds, Lanes};
use crate::consumer::{Assigned, Commit, Consumer, ConsumerOptions, Event, Revocation};
use crate::topic::{Partition, Position, Record, TopicName};
use crate::{Bus, BusError};

/// Number of tasks that run the handlers.
const WORKERS: usize = 4;
/// Wait before the processor asks for the next event after an error.
const RETRY_WAIT: Duration = Duration::from_millis(100);

/// Options of a processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessorOptions {
    /// Options of the consumer.
    pub consumer: ConsumerOptions,
    /// Largest number of handlers that run at the same time. The default is 1,000.
    pub concurrency: usize,
    /// Largest number of records in hand: running or waiting. The processor may exceed it by one batch. After a rebalance,
    /// records that wait in retry topics may exceed it by the same number again. The default is 10,000.
    pub records_max: usize,
    /// Largest size of the records in hand, in bytes. The processor may exceed it by one batch. The default is 64 MiB.
    pub bytes_max: usize,
    /// Time between two commits. The default is 1 s.
    pub commit_interval: Duration,
    /// Longest wait for running handlers when the group moves a partition or the processor stops. When the group moves a
    /// partition, the wait is also at most nine tenths of [`ConsumerOptions::revoke_timeout`], so that time is left for
    /// the commit. The default is 20 s.
    pub drain_timeout: Duration,
    /// Policy for records whose handler fails. The default is [`Retry::None`].
    pub retry: Retry,
    /// Waits of the retry topics, one for each topic. A record whose calls have failed as often as `retry` allows waits in
    /// the first retry topic for its next call. If this call fails, the record waits in the next retry topic. The later
    /// records of its key do not wait. A topic has the name `TOPIC-GROUP-retry-N`, from 0. The processor creates the
    /// topics, with as many partitions and replicas as the topic of the record. By default there are no retry topics.
    pub retry_waits: Vec<Duration>,
    /// Topic for copies of records whose calls have all failed, or whose failure is not retriable. The processor creates
    /// the topic if it does not exist. By default the processor only logs such records.
    pub dead_letters: Option<TopicName>,
}

impl ProcessorOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(consumer: ConsumerOptions) -> Self {
        ProcessorOptions {
            consumer,
            concurrency: 1_000,
            records_max: 10_000,
            bytes_max: 64 << 20,
            commit_interval: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(20),
            retry: Retry::None,
            retry_waits: Vec::new(),
            dead_letters: None,
        }
    }
}

/// Policy for records whose handler fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Retry {
    /// There is no further call in this topic.
    None,
    /// The handler is called again for the same record after a wait. The later records of the same key wait, and other
    /// keys do not.
    Blocking {
        /// Wait before the second call.
        first_wait: Duration,
        /// Longest wait. Each wait is twice the wait before, up to this time.
        wait_max: Duration,
        /// Largest number of calls; `None` for no limit.
        calls_max: Option<u32>,
    },
}

impl Retry {
    /// Returns the wait before the next call, after `calls` failed calls; `None` if the record is finished.
    fn wait(&self, calls: u32) -> Option<Duration> {
        match self {
            Retry::None => None,
            Retry::Blocking { calls_max: Some(max), .. } if calls >= *max => None,
            Retry::Blocking { first_wait, wait_max, .. } => {
                let factor = 1_u32.checked_shl(calls.saturating_sub(1)).unwrap_or(u32::MAX);
                Some(first_wait.saturating_mul(factor).min(*wait_max))
            }
        }
    }
}

/// Record that the processor passes to a handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Partition of the record.
    pub partition: Partition,
    /// The record.
    pub record: Record,
    /// Position of the original record. It differs from the position of `record` if this is a copy in a retry topic.
    pub origin: Position,
    /// Number of this call for the record. The first call has the number 1. The count of the calls in one topic starts
    /// again after a rebalance or a restart.
    pub call: u32,
}

/// Code that handles records.
pub trait Handler: Send + Sync + 'static {
    /// Handles a record. The processor may call the handler again for a record whose effect has already happened, so
    /// the effect must be idempotent. The processor drops the future when the consumer has lost the partition.
    ///
    /// # Errors
    /// An error makes the record fail.
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>>;
}

/// Failure of a handler.
#[derive(Debug)]
pub struct HandlerError {
    /// Description of the failure, for the log.
    pub reason: String,
    /// False if a further call of the handler cannot succeed.
    pub is_retriable: bool,
}

impl HandlerError {
    /// Returns a failure after which the processor may call the handler again.
    pub fn retriable(reason: impl fmt::Display) -> Self {
        HandlerError { reason: reason.to_string(), is_retriable: true }
    }

    /// Returns a failure after which the record is finished.
    pub fn not_retriable(reason: impl fmt::Display) -> Self {
        HandlerError { reason: reason.to_string(), is_retriable: false }
    }
}

/// Running member of a group that calls a handler. A drop of this object stops the processor at once, without a commit.
pub struct Processor {
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskSet,
}

struct Shared {
    runtime: Runtime,
    consumer: Arc<dyn Consumer>,
    handler: Arc<dyn Handler>,
    copies: Copies,
    options: ProcessorOptions,
    state: Mutex<State>,
    /// Makes the commits one after the other, so that an earlier commit cannot replace a later one.
    committing: tokio::sync::Mutex<()>,
    /// Wakes the workers after lanes have become ready.
    ready: Notify,
    /// Wakes the task that handles events after workers have finished records.
    progressed: Notify,
    /// Wakes the revocations that wait for workers.
    drained: Notify,
}

struct State {
    lanes: Lanes,
    /// Stops the handlers of an assignment.
    cancellations: HashMap<AssignmentId, CancellationToken>,
}

impl Processor {
    /// Joins the group and starts to handle records.
    ///
    /// # Errors
    /// Returns the errors of [`Bus::consumer`] and [`Bus::create_topic`], and [`BusError::Invalid`] if an option is zero.
    pub async fn start(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: ProcessorOptions,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, BusError> {
        if options.concurrency == 0 || options.records_max == 0 || options.bytes_max == 0 {
            return Err(BusError::Invalid("the bounds of a processor must be above zero".to_owned()));
        }
        let bounds = Bounds {
            records: options.records_max,
            bytes: options.bytes_max,
            metadata_bytes: bus.capabilities().metadata_bytes_max,
        };
        let copies = Copies::open(bus, &options).await?;
        let mut consumer = options.consumer.clone();
        consumer.topics.extend(copies.topics().cloned());
        let consumer = bus.consumer(consumer).await?;
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            consumer,
            handler,
            copies,
            state: Mutex::new(State { lanes: Lanes::new(bounds, runtime.random()), cancellations: HashMap::new() }),
            options,
            committing: tokio::sync::Mutex::new(()),
            ready: Notify::new(),
            progressed: Notify::new(),
            drained: Notify::new(),
        });
        let tasks = TaskSet::new(runtime);
        let stop = CancellationToken::new();
        for worker in 0..WORKERS {
            let (shared, stop) = (shared.clone(), stop.clone());
            tasks.spawn("processor worker", async move { shared.work(worker, &stop).await });
        }
        let (running, stopped) = (shared.clone(), stop.clone());
        tasks.spawn("processor", async move { running.run(&stopped).await });
        Ok(Processor { shared, stop, tasks })
    }

    /// Stops the processor: waits for the running handlers, commits, and leaves the group.
    ///
    /// # Errors
    /// Returns an error if the last commit failed or the consumer could not leave the group. Then other members process
    /// some records again.
    pub async fn stop(self) -> Result<(), BusError> {
        let Processor { shared, stop, tasks } = self;
        let assignments = shared.state().lanes.ids();
        let drained = shared.drain(&assignments, shared.options.drain_timeout, shared.options.consumer.session_timeout);
        let drained = drained.await;
        stop.cancel();
        let closed = shared.consumer.close().await;
        drop(tasks);
        // All copies of finished records are acknowledged.
        let closed_producer = shared.copies.close().await;
        drained.and(closed).and(closed_producer)
    }

    /// Returns the number of records in hand: running or waiting.
    #[must_use]
    pub fn records_in_hand(&self) -> usize {
        self.shared.state().lanes.record_count()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this mutex")
    }

    /// Handles the events of the consumer until the processor stops.
    async fn run(&self, stop: &CancellationToken) {
        let mut revocations = FuturesUnordered::new();
        let mut next_commit = self.runtime.monotonic() + self.options.commit_interval;
        let mut next = self.consumer.next();
        loop {
            let wake = self.wake_lanes();
            self.adjust_flow();
            let timer = wake.map_or(next_commit, |wake| wake.min(next_commit));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(()) = revocations.next(), if !revocations.is_empty() => {}
                event = &mut next => {
                    next = self.consumer.next();
                    match event {
                        Ok(Event::Revoked(revocation)) => revocations.push(self.release(revocation)),
                        Ok(event) => self.accept(event),
                        Err(BusError::Closed) => return,
                        Err(error) => {
                            tracing::warn!(%error, "the consumer reports an error");
                            self.runtime.sleep(RETRY_WAIT).await;
                        }
                    }
                }
                () = self.progressed.notified() => {}
                () = self.runtime.sleep_until(timer) => {
                    if self.runtime.monotonic() >= next_commit {
                        next_commit = self.runtime.monotonic() + self.options.commit_interval;
                        revocations.push(self.commit_changed());
                    }
                }
            }
        }
    }

    fn accept(&self, event: Event) {
        match event {
            Event::Assigned(assigned) => assigned.iter().for_each(|one| self.assign(one)),
            Event::Lost(partitions) => {
                let assignments = self.state().lanes.ids_of(&partitions);
                self.give_up(&assignments);
            }
            Event::Records(batch) => {
                let partition = batch.partition.clone();
                let due = |record: &Record| self.copies.due(&self.runtime, &partition.topic, record);
                if let Some(offset) = self.state().lanes.push(batch, due) {
                    self.consumer.seek(&partition, offset);
                }
                self.ready.notify_waiters();
            }
            Event::Revoked(_) => unreachable!("the caller handles revocations"),
        }
    }

    fn assign(&self, assigned: &Assigned) {
        let mut state = self.state();
        let is_delayed = self.copies.is_retry_topic(&assigned.partition.topic);
        let (id, position, error) = state.lanes.assign(assigned, is_delayed);
        state.cancellations.insert(id, CancellationToken::new());
        if let Some(error) = error {
            let partition = &assigned.partition;
            tracing::warn!(%partition, %error, "the metadata of the commit is ignored; finished records are processed again");
        }
        if let Some(offset) = position {
            self.consumer.seek(&assigned.partition, offset);
        }
    }

    /// Stops the handlers of assignments, and removes their records.
    fn give_up(&self, assignments: &[AssignmentId]) {
        let mut state = self.state();
        for id in assignments {
            state.lanes.give_up(*id);
            if let Some(cancellation) = state.cancellations.remove(id) {
                cancellation.cancel();
            }
        }
    }

    /// Drains revoked partitions and releases them.
    fn release(&self, revocation: Revocation) -> BoxFuture<'_, ()> {
        let assignments = self.state().lanes.ids_of(revocation.partitions());
        Box::pin(async move {
            // The handlers stop before the deadline, so that time is left for the commit.
            let rest = revocation.deadline().since(self.runtime.monotonic());
            let drain_time = self.options.drain_timeout.min(rest * 9 / 10);
            if let Err(error) = self.drain(&assignments, drain_time, rest / 10).await {
                tracing::warn!(%error, "the last commit of revoked partitions failed");
            }
            self.give_up(&assignments);
            revocation.release();
        })
    }

    /// Waits until no handler of the assignments is running, at most for `drain_time`. Then commits, for at most
    /// `commit_time`.
    async fn drain(
        &self,
        assignments: &[AssignmentId],
        drain_time: Duration,
        commit_time: Duration,
    ) -> Result<(), BusError> {
        assignments.iter().for_each(|id| self.state().lanes.revoke(*id));
        let drained = async {
            loop {
                let mut drained = std::pin::pin!(self.drained.notified());
                drained.as_mut().enable();
                if assignments.iter().all(|id| self.state().lanes.is_drained(*id)) {
                    return;
                }
                drained.await;
            }
        };
        self.runtime.timeout(drain_time, drained).await;
        let late = || Err(BusError::Disconnected("no response to the last commit in time".to_owned()));
        self.runtime.timeout(commit_time, self.commit()).await.unwrap_or_else(late)
    }

    fn commit_changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.commit().await {
                tracing::warn!(%error, "a commit failed");
            }
        })
    }

    /// Commits the finished records of all partitions.
    async fn commit(&self) -> Result<(), BusError> {
        let _one_at_a_time = self.committing.lock().await;
        let commits = self.state().lanes.commits();
        if commits.is_empty() {
            return Ok(());
        }
        let outcome = self.consumer.commit(commits.clone()).await;
        if outcome.is_err() {
            let mut state = self.state();
            commits.iter().for_each(|Commit { partition, .. }| state.lanes.commit_failed(partition));
        }
        outcome
    }

    /// Moves lanes whose wait is over to the workers. Returns the end of the next wait.
    fn wake_lanes(&self) -> Option<Monotonic> {
        let mut state = self.state();
        let next = state.lanes.wake(self.runtime.monotonic());
        if state.lanes.is_ready() {
            self.ready.notify_waiters();
        }
        next
    }

    fn adjust_flow(&self) {
        let (pause, resume) = self.state().lanes.flow();
        if !pause.is_empty() {
            self.consumer.pause(&pause);
        }
        if !resume.is_empty() {
            self.consumer.resume(&resume);
        }
    }
}

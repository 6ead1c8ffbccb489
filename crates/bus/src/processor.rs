//! Processing of a group's records with order per key.
//!
//! A [`Processor`] is a member of a group. It calls a [`Handler`] for each record. Records with the same key of one
//! partition are handled one after the other, in their order. Records with different keys, and records without a key,
//! are handled at the same time.
//!
//! - The processor commits only finished records. A record is finished when the handler succeeds, or when it fails and
//!   the [`Retry`] policy allows no further attempt. If a later record finishes before an earlier record, the metadata
//!   of the commit describes the later record. It is not processed again, except if the metadata is full.
//! - The numbers of records and bytes in hand are bounded, and so is the number of finished records that no accepted commit
//!   describes. The processor pauses partitions at these bounds.
//! - When the group moves a partition to another member, the processor waits for the running handlers, commits and
//!   releases the partition. When the consumer has lost a partition, the processor drops its running handlers at once
//!   and commits nothing.
//! - If a handler panics, its record fails. A [`BatchHandler`] receives several records in one call.
//! - A record whose calls have all failed can wait in retry topics, while later records of its key are handled. Then it
//!   can become a dead letter. The processor finishes the record only after the bus has stored the copy durably.
//! - An [`Operator`] lists the records whose keys wait, and skips records.

mod control;
mod copies;
mod handler;
mod lanes;
mod metrics;
mod options;
mod progress;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::control::Control;
pub use self::control::{Blocked, Operator};
use self::copies::Copies;
pub use self::copies::{
    CALLS_HEADER, ERROR_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER, TIME_HEADER, VALUE_OMITTED_HEADER,
};
use self::handler::Calls;
pub use self::handler::{BatchHandler, Delivery, Handler, HandlerError};
pub(crate) use self::handler::{MakeHandler, StatefulHandler};
use self::lanes::{AssignmentId, Bounds, Lanes};
use self::metrics::Counters;
pub use self::metrics::ProcessorMetrics;
pub use self::options::{ProcessorOptions, Retry};
use crate::consumer::{Assigned, Commit, Consumer, Event, Revocation};
use crate::topic::{Offset, Partition, Position, Record};
use crate::{Bus, BusError};

/// Number of tasks that run the handlers.
const WORKERS: usize = 4;
/// Wait before the processor asks for the next event after an error.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Largest number of calls of [`Processor::seek`] that wait for the task of the processor.
const SEEKS_MAX: usize = 16;

/// Running member of a group that calls a handler. A drop of this object stops the processor at once, without a commit.
pub struct Processor {
    shared: Arc<Shared>,
    stop: CancellationToken,
    seeks: mpsc::Sender<Seek>,
    tasks: TaskSet,
}

/// Request to set the position of the group in a partition.
struct Seek {
    partition: Partition,
    offset: Offset,
    outcome: oneshot::Sender<Result<(), BusError>>,
}

struct Shared {
    runtime: Runtime,
    consumer: Arc<dyn Consumer>,
    calls: Calls,
    copies: Copies,
    control: Option<Control>,
    counters: Counters,
    options: ProcessorOptions,
    lanes: Mutex<Lanes>,
    /// Makes the commits one after the other, so that an earlier commit cannot replace a later one.
    committing: tokio::sync::Mutex<()>,
    /// Wakes the workers after lanes have become ready.
    ready: Notify,
    /// Wakes the task that handles events after workers have finished records.
    progressed: Notify,
    /// Wakes the revocations that wait for workers.
    drained: Notify,
}

impl Processor {
    /// Joins the group and starts to handle records, one in each call of the handler.
    ///
    /// # Errors
    /// Returns the errors of [`Bus::consumer`] and [`Bus::create_topic`], and [`BusError::Invalid`] if an option is zero.
    pub async fn start(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: ProcessorOptions,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, BusError> {
        Processor::start_with(runtime, bus, options, Calls::Single(handler)).await
    }

    /// Joins the group and starts to handle records, at most `records_max` in each call of the handler.
    ///
    /// # Errors
    /// See [`Processor::start`].
    pub async fn start_batches(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: ProcessorOptions,
        records_max: usize,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, BusError> {
        Processor::start_with(runtime, bus, options, Calls::Batches(handler, records_max)).await
    }

    /// Joins the group and starts to handle records, one in each call. Each assignment of a partition has a handler of its
    /// own, which `make` returns.
    ///
    /// # Errors
    /// See [`Processor::start`].
    pub(crate) async fn start_stateful(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: ProcessorOptions,
        make: MakeHandler,
    ) -> Result<Self, BusError> {
        Processor::start_with(runtime, bus, options, Calls::Stateful(make)).await
    }

    async fn start_with(
        runtime: &Runtime,
        bus: &dyn Bus,
        options: ProcessorOptions,
        calls: Calls,
    ) -> Result<Self, BusError> {
        let bounds = [options.records_max, options.bytes_max, options.uncommitted_max, calls.records_max()];
        if options.concurrency == 0 || bounds.contains(&0) {
            return Err(BusError::Invalid("the bounds of a processor must be above zero".to_owned()));
        }
        let bounds = Bounds {
            records: options.records_max,
            bytes: options.bytes_max,
            uncommitted: options.uncommitted_max,
            metadata_bytes: bus.capabilities().metadata_bytes_max,
        };
        let copies = Copies::open(bus, &options).await?;
        let control = match &options.control {
            Some(topic) => Some(Control::open(runtime, bus, topic).await?),
            None => None,
        };
        let mut consumer = options.consumer.clone();
        consumer.topics.extend(copies.topics().cloned());
        let consumer = bus.consumer(consumer).await?;
        let mut lanes = Lanes::new(bounds, runtime.random());
        lanes.set_held(options.starts_paused);
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            consumer,
            calls,
            copies,
            control,
            counters: Counters::new(),
            lanes: Mutex::new(lanes),
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
        if shared.control.is_some() {
            let (shared, stop) = (shared.clone(), stop.clone());
            tasks.spawn("processor control", async move { shared.follow_commands(&stop).await });
        }
        let (seeks, requests) = mpsc::channel(SEEKS_MAX);
        let (running, stopped) = (shared.clone(), stop.clone());
        tasks.spawn("processor", async move { running.run(requests, &stopped).await });
        Ok(Processor { shared, stop, seeks, tasks })
    }

    /// Stops the processor: waits for the running handlers, commits, and leaves the group.
    ///
    /// # Errors
    /// Returns an error if the last commit failed or the consumer could not leave the group. Then other members process
    /// some records again.
    pub async fn stop(self) -> Result<(), BusError> {
        let Processor { shared, stop, seeks: _, tasks } = self;
        let assignments = shared.lanes().ids();
        let drained = shared.drain(&assignments, shared.options.drain_timeout, shared.options.consumer.session_timeout);
        let drained = drained.await;
        stop.cancel();
        let closed = shared.consumer.close().await;
        drop(tasks);
        // All copies of finished records are acknowledged.
        let closed_producer = shared.copies.close().await;
        let closed_control = match &shared.control {
            Some(control) => control.close().await,
            None => Ok(()),
        };
        drained.and(closed).and(closed_producer).and(closed_control)
    }

    /// Pauses the processor. It starts no further calls of the handler and receives no further records, but it stays a
    /// member of its group and keeps its partitions. Running calls continue.
    pub fn pause(&self) {
        self.set_held(true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.set_held(false);
    }

    fn set_held(&self, is_held: bool) {
        self.shared.lanes().set_held(is_held);
        self.shared.progressed.notify_one();
    }

    /// Sets the position of the group in a partition to `offset`, and commits it. The processor stops its running calls for
    /// records of this partition. The group then handles all records from `offset`, including records that it has already
    /// finished. It handles no earlier record.
    ///
    /// # Errors
    /// Returns [`BusError::Fenced`] if this processor does not own the partition, and the errors of [`Consumer::commit`].
    /// After such an error, the position may be the old or the new one.
    pub async fn seek(&self, partition: &Partition, offset: Offset) -> Result<(), BusError> {
        let (outcome, received) = oneshot::channel();
        let seek = Seek { partition: partition.clone(), offset, outcome };
        self.seeks.send(seek).await.map_err(|_| BusError::Closed)?;
        received.await.unwrap_or(Err(BusError::Closed))
    }

    /// Adds the metrics of this processor to the metrics of the process.
    pub fn add_to(&self, metrics: &ProcessorMetrics) {
        metrics.add(&self.shared);
    }

    /// Returns the number of records in hand: running or waiting.
    #[must_use]
    pub fn records_in_hand(&self) -> usize {
        self.shared.lanes().record_count()
    }
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().expect("no code panics while it holds this mutex")
    }

    /// Handles the events of the consumer until the processor stops.
    async fn run(&self, mut seeks: mpsc::Receiver<Seek>, stop: &CancellationToken) {
        let mut running = FuturesUnordered::new();
        let mut next_commit = self.runtime.monotonic() + self.options.commit_interval;
        let mut next = self.consumer.next();
        loop {
            let (wake, needs_commit) = self.adjust();
            if needs_commit {
                running.push(self.commit_early());
            }
            let timer = wake.map_or(next_commit, |wake| wake.min(next_commit));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(()) = running.next(), if !running.is_empty() => {}
                Some(seek) = seeks.recv() => running.push(self.seek(seek)),
                event = &mut next => {
                    next = self.consumer.next();
                    match event {
                        Ok(Event::Revoked(revocation)) => running.push(self.release(revocation)),
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
                        running.push(self.commit_changed());
                    }
                }
            }
        }
    }

    /// Applies the commands of operators until the processor stops.
    async fn follow_commands(&self, stop: &CancellationToken) {
        let Some(control) = &self.control else { return };
        loop {
            let read = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                read = control.read() => read,
            };
            if let Err(error) = read {
                tracing::warn!(%error, "the commands of operators cannot be read");
                self.runtime.sleep(RETRY_WAIT).await;
                continue;
            }
            self.wake_skipped(control);
        }
    }

    /// Ends the waits of the records that an operator skips.
    fn wake_skipped(&self, control: &Control) {
        if !control.has_commands() {
            return;
        }
        self.lanes().wake_where(|partition, offset, calls| {
            let position = || Position { partition: partition.clone(), offset };
            control.is_skipped(position, self.copies.source(&partition.topic), calls > 0)
        });
        self.progressed.notify_one();
    }

    fn accept(&self, event: Event) {
        match event {
            Event::Assigned(assigned) => assigned.iter().for_each(|one| self.assign(one)),
            Event::Lost(partitions) => {
                let assignments = self.lanes().ids_of(&partitions);
                self.counters.lost.inc_by(assignments.len() as u64);
                self.give_up(&assignments);
            }
            Event::Records(batch) => {
                let partition = batch.partition.clone();
                let due = |record: &Record| self.copies.due(&self.runtime, &partition.topic, record);
                if let Some(offset) = self.lanes().push(batch, due) {
                    self.consumer.seek(&partition, offset);
                }
                self.ready.notify_waiters();
            }
            Event::Revoked(_) => unreachable!("the caller handles revocations"),
        }
    }

    fn assign(&self, assigned: &Assigned) {
        let is_delayed = self.copies.is_retry_topic(&assigned.partition.topic);
        let handler = self.calls.assigned(&assigned.partition);
        if let Some(committed) =
            assigned.committed.as_ref().filter(|one| handler.is_some() && one.offset < assigned.position)
        {
            let (partition, oldest) = (&assigned.partition, committed.offset);
            tracing::warn!(%partition, %oldest, "the bus has deleted records that the state of this partition depends on; keep records longer");
        }
        let mut lanes = self.lanes();
        let (position, error) = lanes.assign(assigned, is_delayed, handler);
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
        let mut lanes = self.lanes();
        assignments.iter().for_each(|id| lanes.give_up(*id));
    }

    /// Sets the position of a partition at once, and then commits it.
    fn seek(&self, seek: Seek) -> BoxFuture<'_, ()> {
        let Seek { partition, offset, outcome } = seek;
        let owned = self.lanes().ids_of(std::slice::from_ref(&partition));
        let is_owned = owned.iter().any(|id| !self.lanes().is_revoked(*id));
        if is_owned {
            self.give_up(&owned);
            self.assign(&Assigned { partition: partition.clone(), position: offset, committed: None });
            self.lanes().mark_changed(&partition);
            self.consumer.seek(&partition, offset);
            // The new assignment is not paused.
            self.consumer.resume(&[partition]);
        }
        Box::pin(async move {
            let committed = if is_owned { self.commit().await } else { Err(BusError::Fenced) };
            // The caller may have dropped its future.
            drop(outcome.send(committed));
        })
    }

    /// Drains revoked partitions and releases them.
    fn release(&self, revocation: Revocation) -> BoxFuture<'_, ()> {
        let assignments = self.lanes().ids_of(revocation.partitions());
        let began = self.runtime.monotonic();
        Box::pin(async move {
            // The handlers stop before the deadline, so that time is left for the commit.
            let rest = revocation.deadline().since(self.runtime.monotonic());
            let drain_time = self.options.drain_timeout.min(rest * 9 / 10);
            if let Err(error) = self.drain(&assignments, drain_time, rest / 10).await {
                tracing::warn!(%error, "the last commit of revoked partitions failed");
            }
            self.give_up(&assignments);
            revocation.release();
            self.counters.rebalance_seconds.observe(self.runtime.monotonic().since(began).as_secs_f64());
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
        assignments.iter().for_each(|id| self.lanes().revoke(*id));
        let drained = async {
            loop {
                let mut drained = std::pin::pin!(self.drained.notified());
                drained.as_mut().enable();
                if assignments.iter().all(|id| self.lanes().is_drained(*id)) {
                    return;
                }
                drained.await;
            }
        };
        self.runtime.timeout(drain_time, drained).await;
        let late = || Err(BusError::Disconnected("no response to the last commit in time".to_owned()));
        self.runtime.timeout(commit_time, self.commit()).await.unwrap_or_else(late)
    }

    fn commit_early(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.commit().await {
                tracing::warn!(%error, "a commit failed");
            }
        })
    }

    /// Makes the commit of an interval, and the work that is due once in an interval.
    fn commit_changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.commit_early().await;
            if let Some(control) = &self.control {
                // A record may have begun to wait at the same time as its command arrived.
                self.wake_skipped(control);
                let is_finished = |one: &Position| self.lanes().is_finished(&one.partition, one.offset) == Some(true);
                control.delete_finished(is_finished).await;
            }
        })
    }

    /// Commits the finished records of all partitions.
    async fn commit(&self) -> Result<(), BusError> {
        let _one_at_a_time = self.committing.lock().await;
        let commits = self.lanes().commits();
        if commits.is_empty() {
            return Ok(());
        }
        let mut running = RunningCommit { shared: self, commits, is_accepted: false };
        let outcome = self.consumer.commit(running.commits.clone()).await;
        running.is_accepted = outcome.is_ok();
        outcome
    }

    /// Moves lanes whose wait is over to the workers, and pauses or resumes partitions. Returns the end of the next wait, and
    /// true if a commit is necessary before its time.
    fn adjust(&self) -> (Option<Monotonic>, bool) {
        let mut lanes = self.lanes();
        let wake = lanes.wake(self.runtime.monotonic());
        let is_ready = lanes.is_ready();
        let (pause, resume) = lanes.flow();
        let needs_commit = lanes.needs_commit();
        drop(lanes);
        if is_ready {
            self.ready.notify_waiters();
        }
        if !pause.is_empty() {
            self.consumer.pause(&pause);
        }
        if !resume.is_empty() {
            self.consumer.resume(&resume);
        }
        (wake, needs_commit)
    }
}

/// Commit whose outcome is not known. Its drop records the outcome, also if the caller has dropped the future of the commit.
struct RunningCommit<'a> {
    shared: &'a Shared,
    commits: Vec<Commit>,
    is_accepted: bool,
}

impl Drop for RunningCommit<'_> {
    fn drop(&mut self) {
        if !self.is_accepted {
            self.shared.counters.commits_failed.inc();
        }
        self.shared.lanes().end_commit(&self.commits, self.is_accepted);
    }
}

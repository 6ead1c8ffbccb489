//! Producer that keeps records on the local disk while the bus is away.
//!
//! A [`BufferedProducer`] passes records straight to the bus while the bus responds. When a record has no outcome for some
//! time, the producer writes it and all later records to a journal. [`BufferedProducer::send`] then returns when the record
//! is on disk, and [`Accepted::stored`] waits for the bus. When the bus responds again, the producer sends the records of
//! the journal, and returns to the direct way after the last of them.
//!
//! - An accepted record is durable: the bus has acknowledged it, or it is on disk. After a crash, the next producer with the
//!   same folder sends it.
//! - The bus receives the records in the order of the calls, on both ways and across the switches between them. So the order
//!   per key is the order of the bus.
//! - The bus stores each accepted record at least once. After a crash, all records from the first one without an
//!   acknowledgement on are sent again, in their order, if they are on disk.
//! - The number of bytes on disk is bounded. At the bound, a call waits or fails, as the options say.
//!
//! docs/decisions/0236-buffer-records-in-a-journal.md gives the reasons for the design.

#![warn(missing_docs)]

mod drain;
mod entry;
mod state;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bus::{Bus, BusError, Compression, NewRecord, Position, Producer, ProducerOptions};
use bytes::Bytes;
use journal::{AppendError, Commit, Journal, Opened};
use runtime::{Runtime, TaskSet};
use tokio::sync::{Notify, mpsc, oneshot};

pub use crate::entry::EntryError;
use crate::state::{Promise, State};

/// Longest time for which the producer of the bus repeats its requests. A record that fails before its successors could
/// change the order of its key, so the time is long.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(20 * 86_400);
/// Size of an entry without the content of its record, in bytes.
const ENTRY_BYTES_MIN: usize = 4_096;
/// Time between two entries of the journal that name the finished records.
const FINISHED_PERIOD: Duration = Duration::from_millis(50);
/// Largest size of the records that the bus has received and not acknowledged, in bytes.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Wait before a failed record is sent again, and before an entry is appended again to a full disk.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Options of a buffered producer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferOptions {
    /// Folder of the journal. Only one process may use it at a time.
    pub folder: PathBuf,
    /// Largest size of the journal from the first record on that the bus has not acknowledged, in bytes. The files may be larger
    /// by three segments, and by 64 MiB of records that were on their way to the bus. The default is 1 GiB.
    pub bytes_max: u64,
    /// Size of a file of the journal, in bytes; a multiple of 4,096. The default is 64 MiB.
    pub segment_bytes: u64,
    /// Behaviour of [`BufferedProducer::send`] while the disk or the buffer is full. The default is [`WhenFull::Wait`].
    pub when_full: WhenFull,
    /// Time without an outcome after which records go to the disk. The default is 200 ms.
    pub patience: Duration,
    /// Largest number of records that the bus has received and not acknowledged. They are in memory, at most 64 MiB. Further
    /// records go to the disk. The default is 10,000.
    pub in_flight_max: usize,
    /// Compression of the records between the producer and the consumers.
    pub compression: Compression,
}

impl BufferOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        BufferOptions {
            folder: folder.into(),
            bytes_max: 1 << 30,
            segment_bytes: 64 << 20,
            when_full: WhenFull::Wait,
            patience: Duration::from_millis(200),
            in_flight_max: 10_000,
            compression: Compression::None,
        }
    }
}

/// Behaviour of a full buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// The call waits until there is space.
    Wait,
    /// The call fails with [`BufferError::Full`].
    Reject,
}

/// Failure of a record that the buffer has not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BufferError {
    /// The buffer or the disk is full. If the record was already on its way to the bus, the bus may store it.
    #[error("the buffer of the producer is full; wait until the bus responds, or raise the bound of the buffer")]
    Full,
    /// The caller has closed the producer.
    #[error("the producer is closed")]
    Closed,
    /// The bus rejects the record.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Reason why a buffered producer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is zero.
    #[error("the bounds and the patience of a buffered producer must be above zero")]
    Options,
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] journal::ReadError),
    /// The journal has an entry that this program does not know.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The bus cannot open a producer.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Record that is durable.
#[derive(Debug)]
pub struct Accepted(oneshot::Receiver<Result<Position, BusError>>);

impl Accepted {
    /// Waits until the bus has stored the record. Returns its position.
    ///
    /// # Errors
    /// Returns [`BusError::Closed`] if the producer was closed before; the next producer with the same folder sends the
    /// record. With another error, the bus rejects the record, and the buffer has dropped it.
    pub async fn stored(self) -> Result<Position, BusError> {
        self.0.await.unwrap_or(Err(BusError::Closed))
    }
}

/// State of the buffer at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// True if new records go to the disk.
    pub is_buffering: bool,
    /// Number of records from the first one on that the bus has not acknowledged.
    pub records: u64,
    /// Size of the part of the journal that contains these records, in bytes.
    pub bytes: u64,
}

/// Producer with a durable buffer. Several tasks may use it at the same time. A drop without [`BufferedProducer::close`]
/// loses no accepted record, but the folder stays in use for a moment.
pub struct BufferedProducer {
    shared: Arc<Shared>,
    /// Receives no value. The channel ends with the task that sends the records of the journal.
    drained: Option<oneshot::Receiver<()>>,
    _tasks: TaskSet,
}

/// Action of the buffer after an entry of the journal is durable.
enum Ticket {
    /// Accepts the record with this number.
    Record(u64),
    /// Notes that the records below this number are finished, and tells the caller.
    Finished(u64, oneshot::Sender<()>),
}

/// Turn of a sender.
type Turn = tokio::sync::OwnedMutexGuard<()>;

struct Shared {
    runtime: Runtime,
    options: BufferOptions,
    record_bytes_max: usize,
    producer: Arc<dyn Producer>,
    journal: Journal<Ticket>,
    /// Gives the senders their turns, so that the order of their calls is the order of the records.
    turns: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    /// Wakes the task that sends the records of the journal.
    woken: Notify,
    /// Wakes the callers that wait for space or for the bus.
    advanced: Notify,
}

impl BufferedProducer {
    /// Opens the buffer, and begins to send the records that it contains.
    ///
    /// This function blocks its thread while it reads the journal. If the engine needs contact to the bus to open a producer,
    /// the function waits for it; the engine for Kafka needs none.
    ///
    /// # Errors
    /// Returns an error if the folder is in use, if the journal is damaged, or if the bus opens no producer.
    pub async fn open(runtime: &Runtime, bus: &dyn Bus, options: BufferOptions) -> Result<Self, OpenError> {
        if options.bytes_max == 0 || options.in_flight_max == 0 || options.patience.is_zero() {
            return Err(OpenError::Options);
        }
        let compression = options.compression;
        let producing = ProducerOptions { delivery_timeout: DELIVERY_TIMEOUT, compression };
        let producer = loop {
            match bus.producer(producing.clone()).await {
                Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
                opened => break opened?,
            }
        };
        let tasks = TaskSet::new(runtime);
        let record_bytes_max = bus.capabilities().record_bytes_max;
        let defaults = journal::Options::default();
        let journaling = journal::Options {
            segment_bytes: options.segment_bytes,
            // The lengths of the fields need further bytes, also for empty headers.
            entry_bytes_max: 2 * record_bytes_max + ENTRY_BYTES_MIN,
            batch_bytes_max: defaults.batch_bytes_max.min(options.segment_bytes / 4),
            spare_segments_max: 2,
            ..defaults
        };
        let opened = Journal::open(runtime, &tasks, &options.folder, journaling).await?;
        let Opened { journal, commits, first, .. } = opened;
        let mut state = State::new(runtime.monotonic());
        let mut reader = journal.reader(first);
        while let Some((index, entry)) = reader.next().await? {
            let bytes = entry.len() as u64;
            state.recover(index, bytes, &entry::decode(entry)?);
        }
        drop(reader);
        // The last segment may be almost empty.
        state.end_recovery((journal.stats().segments as u64 - 1) * options.segment_bytes);
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            record_bytes_max,
            options,
            producer,
            journal,
            turns: Arc::default(),
            state: Mutex::new(state),
            woken: Notify::new(),
            advanced: Notify::new(),
        });
        // The reader keeps the entries that it has not read.
        let reader = shared.journal.reader(first);
        shared.release();
        let (committing, watching, draining) = (shared.clone(), shared.clone(), shared.clone());
        tasks.spawn("bus buffer commits", async move { committing.receive_commits(commits).await });
        tasks.spawn("bus buffer watch", async move { watching.watch().await });
        let (ends, drained) = oneshot::channel::<()>();
        tasks.spawn_thread("bus buffer", async move {
            draining.drain(reader).await;
            drop(ends);
        });
        Ok(BufferedProducer { shared, drained: Some(drained), _tasks: tasks })
    }

    /// Accepts records, and returns one outcome for each of them when it is durable. The order of the calls is the order of
    /// the records. If the caller drops the future while it waits for outcomes, the buffer still accepts the records.
    ///
    /// # Errors
    /// See [`BufferError`]. After [`BufferError::Full`], the buffer accepts no later record of the same call.
    pub async fn send(&self, records: Vec<NewRecord>) -> Vec<Result<Accepted, BufferError>> {
        let limit = self.shared.record_bytes_max;
        let mut outcomes = Vec::with_capacity(records.len());
        let mut queued = Vec::with_capacity(records.len());
        let now = self.shared.runtime.now();
        for mut record in records {
            let bytes = record.bytes();
            // The time of a record is the time of this call, even if the bus receives it much later.
            record.timestamp.get_or_insert(now);
            if bytes > limit {
                outcomes.push(Err(BusError::RecordTooLarge { bytes, limit }.into()));
                continue;
            }
            let (promise, durable, stored) = Promise::new();
            queued.push((record, promise));
            outcomes.push(Ok((durable, Accepted(stored))));
        }
        let turn = self.shared.turns.clone().lock_owned().await;
        match self.shared.send_directly(queued) {
            Ok(()) => drop(turn),
            Err(queued) => {
                let shared = self.shared.clone();
                let appending = async move { shared.append_all(queued, &turn).await };
                // A task of its own, so that a caller that drops its future cannot interrupt it.
                self.shared.runtime.detached("bus buffer append", appending).await;
            }
        }
        let mut accepted = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            accepted.push(match outcome {
                Ok((durable, stored)) => durable.await.unwrap_or(Err(BufferError::Closed)).map(|()| stored),
                Err(error) => Err(error),
            });
        }
        accepted
    }

    /// Returns the state of the buffer.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.shared.state().backlog()
    }

    /// Waits until the bus has acknowledged all accepted records, at most for `limit`, and closes the producer. Returns the
    /// largest number of records that remain on disk. The next producer with the same folder sends them.
    pub async fn close(mut self, limit: Duration) -> u64 {
        let (shared, drained) = (&self.shared, self.drained.take());
        let stored = async {
            loop {
                let mut advanced = std::pin::pin!(shared.advanced.notified());
                advanced.as_mut().enable();
                if shared.state().backlog().records == 0 {
                    return;
                }
                advanced.await;
            }
        };
        shared.runtime.timeout(limit, stored).await;
        // Senders that wait for room return.
        shared.stop();
        if let Some(drained) = drained {
            drop(drained.await);
        }
        let turn = shared.turns.lock().await;
        shared.begin_buffering().await;
        drop(turn);
        // If the disk is full, the journal may store this entry only later.
        shared.runtime.timeout(RETRY_WAIT, shared.store_finished()).await;
        shared.journal.close().await;
        shared.state().backlog().records
    }
}

impl Drop for BufferedProducer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Record and the outcomes that its caller waits for.
type Queued = (NewRecord, Promise);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this mutex")
    }

    /// Stops the task that sends the records of the journal, and rejects new records.
    fn stop(&self) {
        self.state().is_closed = true;
        self.advanced.notify_waiters();
        self.woken.notify_one();
    }

    /// Passes records to the bus if it responds. Otherwise returns the records. The caller has its turn.
    fn send_directly(self: &Arc<Self>, queued: Vec<Queued>) -> Result<(), Vec<Queued>> {
        let (mut numbers, mut sent) = (Vec::new(), Vec::new());
        let sending = {
            let mut state = self.state();
            let bytes: usize = queued.iter().map(|(record, _)| record.bytes()).sum();
            let has_room = state.room(self.options.in_flight_max) >= queued.len()
                && state.in_flight_bytes() + bytes as u64 <= IN_FLIGHT_BYTES_MAX;
            if state.is_buffering || state.is_closed || !has_room {
                return Err(queued);
            }
            let now = self.runtime.monotonic();
            for (record, promise) in queued {
                numbers.push(state.hand_over_new(now, record.clone(), promise));
                sent.push(record);
            }
            self.producer.send(sent)
        };
        self.follow(numbers, sending);
        Ok(())
    }

    /// Appends new records to the journal, in their order. After a failure, no later record is accepted.
    async fn append_all(&self, queued: Vec<Queued>, _turn: &Turn) {
        if !self.state().is_buffering {
            self.begin_buffering().await;
        }
        let mut queued = queued.into_iter();
        while let Some((record, promise)) = queued.next() {
            if let Err((error, promise)) = self.append(&record, promise).await {
                let rejected = std::iter::once(promise).chain(queued.map(|(_, promise)| promise));
                rejected.for_each(|promise| promise.reject(&error));
                return;
            }
        }
    }

    /// Waits for the outcomes of records in a task of its own.
    fn follow(
        self: &Arc<Self>,
        numbers: Vec<u64>,
        sending: impl Future<Output = Vec<Result<Position, BusError>>> + Send + 'static,
    ) {
        // The task does not keep the producer of the bus alive. It ends soon after this producer.
        let shared = Arc::downgrade(self);
        drop(self.runtime.spawn("bus buffer outcomes", async move {
            let outcomes = sending.await;
            let Some(shared) = shared.upgrade() else { return };
            {
                let mut state = shared.state();
                let now = shared.runtime.monotonic();
                numbers.into_iter().zip(outcomes).for_each(|(number, outcome)| state.end(now, number, outcome));
            }
            shared.release();
        }));
    }

    /// Releases the finished entries of the journal.
    fn release(&self) {
        let below = self.state().release();
        if let Some(below) = below {
            self.journal.release(below);
        }
        self.advanced.notify_waiters();
        self.woken.notify_one();
    }

    /// Appends a new record to the journal. Returns the promise if the buffer does not accept the record.
    async fn append(&self, record: &NewRecord, promise: Promise) -> Result<(), (BufferError, Promise)> {
        let number = self.state().next;
        let entry = entry::encode_record(number, record);
        let bytes = entry.len() as u64;
        if let Err(error) = self.wait_for_room(bytes).await {
            return Err((error, promise));
        }
        self.state().append_new(number, bytes, promise);
        self.append_entry(number, entry).await.map_err(|error| {
            let promise = self.state().cancel(number, bytes);
            self.release();
            (error, promise)
        })
    }

    /// Waits until the buffer has room for an entry, or fails, as the options say.
    async fn wait_for_room(&self, bytes: u64) -> Result<(), BufferError> {
        loop {
            let mut advanced = std::pin::pin!(self.advanced.notified());
            advanced.as_mut().enable();
            {
                let mut state = self.state();
                let used = state.backlog().bytes;
                if state.is_closed {
                    return Err(BufferError::Closed);
                }
                let is_full = used > 0 && used + bytes > self.options.bytes_max;
                state.is_full = is_full && self.options.when_full == WhenFull::Wait;
                if !is_full {
                    return Ok(());
                }
            }
            if self.options.when_full == WhenFull::Reject {
                return Err(BufferError::Full);
            }
            advanced.await;
        }
    }

    /// Appends the entry of a record to the journal. While the disk is full, the call waits or fails, as the options say.
    async fn append_entry(&self, number: u64, entry: Bytes) -> Result<(), BufferError> {
        loop {
            match self.journal.append(entry.clone(), Ticket::Record(number)).await {
                Ok(()) => return Ok(()),
                Err(AppendError::Full) if self.options.when_full == WhenFull::Wait && !self.state().is_closed => {
                    self.runtime.sleep(RETRY_WAIT).await;
                }
                Err(AppendError::Closed) => return Err(BufferError::Closed),
                Err(AppendError::Full) => return Err(BufferError::Full),
                Err(AppendError::TooLarge { bytes, bytes_max: limit }) => {
                    return Err(BusError::RecordTooLarge { bytes, limit }.into());
                }
            }
        }
    }

    /// Begins to write records to the disk, first those that the bus has received and not acknowledged. The caller has its
    /// turn, so no new record can overtake them.
    async fn begin_buffering(&self) {
        let entries = self.state().begin_buffering();
        let mut failure = None;
        for (number, entry) in entries {
            let bytes = entry.len() as u64;
            // After a failure, no later record is accepted.
            if failure.is_none() {
                failure = self.append_entry(number, entry).await.err();
            }
            if let Some(error) = &failure {
                self.state().reject(number, bytes, error.clone());
            }
        }
        self.release();
    }

    async fn receive_commits(&self, mut commits: mpsc::Receiver<Commit<Ticket>>) {
        while let Some(Commit { first_index, entries, .. }) = commits.recv().await {
            {
                let mut state = self.state();
                state.forget_dropped(2 * entries.len());
                let bytes = entries.iter().map(|(entry, _)| entry.len() as u64).sum();
                for (index, (entry, ticket)) in (first_index..).zip(entries) {
                    match ticket {
                        Ticket::Record(number) => state.commit(index, entry.len() as u64, number),
                        Ticket::Finished(below, stored) => {
                            state.store_finished(below);
                            _ = stored.send(());
                        }
                    }
                }
                state.pad(bytes);
            }
            self.release();
        }
    }

    /// Begins to buffer when the bus has not responded for some time, and stores the number of the finished records.
    async fn watch(&self) {
        let period = (self.options.patience / 4).min(FINISHED_PERIOD);
        loop {
            self.runtime.sleep(period).await;
            let since = self.runtime.monotonic();
            if self.state().is_late(since, self.options.patience)
                && let Some(_turn) = self.runtime.timeout(self.options.patience, self.turns.lock()).await
            {
                self.begin_buffering().await;
            }
            self.store_finished().await;
        }
    }

    /// Stores the number of the finished records, so that a restart does not send them again.
    async fn store_finished(&self) {
        let Some(below) = self.state().new_finished() else { return };
        let (ticket, stored) = oneshot::channel();
        let appended = self.journal.append(entry::encode_finished(below), Ticket::Finished(below, ticket)).await;
        // If the journal is full or closed, a restart sends more records again.
        if appended.is_ok() {
            drop(stored.await);
        }
    }
}

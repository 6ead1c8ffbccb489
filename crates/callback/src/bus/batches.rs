//! Batches of records. One task collects the records and gives them to the producers.
//!
//! The records of one tenant to one topic with one delivery timeout form a *lane*. Each lane has its own batches, so that
//! the records of one tenant never wait for the outcomes of a batch of another tenant. A record leaves at once if no batch
//! of its lane is in flight. Otherwise it waits until that batch has its outcomes, until the waiting records are large
//! enough for a batch, or for [`BusOptions::linger_max`] (the rule of Nagle, RFC 896). A lone callback therefore never
//! waits, and a busy topic gets large batches.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, NewRecord, Position, Producer, ProducerOptions, TopicName};
use domain::TenantId;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use runtime::{Monotonic, Runtime, TaskSet};
use scheduler::Delivery;
use tokio::sync::{OnceCell, mpsc, oneshot};

use super::BusOptions;

/// Delivery timeouts of the producers, in milliseconds. A record gets the longest one that ends in time.
const DELIVERY_TIMEOUTS_MS: [u64; 10] = [300, 800, 1_300, 2_300, 4_800, 9_800, 14_800, 29_800, 59_800, 149_800];

/// Part of an attempt's timeout that the producer does not use: the longest wait for a batch, and the time until the
/// attempt receives the outcome.
const MARGIN: Duration = Duration::from_millis(300);

/// Number of records at which a batch leaves although an earlier batch is in flight.
const BATCH_RECORDS: usize = 1_000;

/// Outcome of a record.
pub(super) enum Sent {
    /// The producer did not get the record, because the deadline of the attempt passed before.
    Late,
    /// The producer did not get the record, because the producer opened too late or not at all.
    Failed(BusError),
    Outcome(Result<Position, BusError>),
}

/// Key of a lane.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LaneKey {
    tenant: TenantId,
    topic: TopicName,
    /// Index in [`DELIVERY_TIMEOUTS_MS`].
    timeout: usize,
}

struct Waiting {
    record: NewRecord,
    /// Instant from which the producer must not get the record, because another member may own the shard.
    deadline: Monotonic,
    /// Last instant at which the producer may get the record. The bus could store a later record after the end of the
    /// attempt.
    send_by: Monotonic,
    sent: oneshot::Sender<Sent>,
}

/// Sender of batches. A drop of this value stops its task.
pub(super) struct Batches {
    runtime: Runtime,
    /// Channel to the task. The limit of attempts in flight bounds the number of its entries.
    waiting: mpsc::UnboundedSender<(LaneKey, Waiting)>,
    _task: TaskSet,
}

impl Batches {
    pub(super) fn start(runtime: &Runtime, bus: Arc<dyn Bus>, options: BusOptions) -> Self {
        let (waiting, received) = mpsc::unbounded_channel();
        let opened = Default::default();
        let producers = Arc::new(Producers { runtime: runtime.clone(), bus, options: options.clone(), opened });
        let task = TaskSet::new(runtime);
        let batcher = Batcher {
            runtime: runtime.clone(),
            producers,
            options,
            lanes: BTreeMap::new(),
            lingering: BTreeSet::new(),
            in_flight: FuturesUnordered::new(),
        };
        task.spawn("callback-batches", batcher.run(received));
        Batches { runtime: runtime.clone(), waiting, _task: task }
    }

    /// Sends a record within the timeout of its attempt, and returns its outcome.
    pub(super) async fn send(&self, delivery: &Delivery, record: NewRecord, timeout: Duration) -> Sent {
        let (sent, outcome) = oneshot::channel();
        let (tenant, topic, index) = (delivery.tenant.id, record.topic.clone(), delivery_timeout(timeout));
        let key = LaneKey { tenant, topic, timeout: index };
        let spare = timeout.saturating_sub(2 * Duration::from_millis(DELIVERY_TIMEOUTS_MS[index]));
        let send_by = self.runtime.monotonic() + spare;
        let waiting = Waiting { record, deadline: delivery.deadline, send_by, sent };
        // If the task has ended, the channel of the outcome is closed.
        drop(self.waiting.send((key, waiting)));
        outcome.await.unwrap_or(Sent::Outcome(Err(BusError::Closed)))
    }
}

/// Returns the index of the delivery timeout for an attempt with this timeout. A producer that does not know the topic asks
/// the bus about it for at most one delivery timeout, and then sends the record for at most another one.
fn delivery_timeout(timeout: Duration) -> usize {
    let limit = timeout.saturating_sub(MARGIN) / 2;
    DELIVERY_TIMEOUTS_MS.iter().rposition(|millis| Duration::from_millis(*millis) <= limit).unwrap_or(0)
}

/// Producers, one for each delivery timeout that a record has used.
struct Producers {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    options: BusOptions,
    opened: [OnceCell<Arc<dyn Producer>>; DELIVERY_TIMEOUTS_MS.len()],
}

impl Producers {
    /// Sends a batch, and reports the outcome of each record to its attempt.
    async fn send(&self, key: &LaneKey, batch: Vec<Waiting>) {
        let producer = match self.get(key.timeout).await {
            Ok(producer) => producer,
            Err(error) => {
                tracing::warn!(%error, "cannot open a producer of the message bus; the callbacks to it fail");
                batch.into_iter().for_each(|waiting| drop(waiting.sent.send(Sent::Failed(error.clone()))));
                return;
            }
        };
        let (mut records, mut senders) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let now = self.runtime.monotonic();
        for Waiting { record, deadline, send_by, sent } in batch {
            if now >= deadline {
                drop(sent.send(Sent::Late));
            } else if now > send_by || sent.is_closed() {
                let reason = "the record waited for too long".to_owned();
                drop(sent.send(Sent::Failed(BusError::Disconnected(reason))));
            } else {
                records.push(record);
                senders.push(sent);
            }
        }
        for (sent, outcome) in senders.into_iter().zip(producer.send(records).await) {
            // The attempt may have ended.
            drop(sent.send(Sent::Outcome(outcome)));
        }
    }

    /// Opens a producer, or returns the open one.
    async fn get(&self, timeout: usize) -> Result<Arc<dyn Producer>, BusError> {
        let delivery_timeout = Duration::from_millis(DELIVERY_TIMEOUTS_MS[timeout]);
        let options = ProducerOptions { delivery_timeout, compression: self.options.compression };
        let opening = self.opened[timeout].get_or_try_init(|| self.bus.producer(options));
        let opened = self.runtime.timeout(delivery_timeout, opening).await;
        opened.ok_or_else(|| BusError::Disconnected("the bus has opened no producer in time".to_owned()))?.cloned()
    }
}

/// State of the task.
struct Batcher {
    runtime: Runtime,
    producers: Arc<Producers>,
    options: BusOptions,
    /// Lanes with waiting records or batches in flight.
    lanes: BTreeMap<LaneKey, Lane>,
    /// Lanes with waiting records, by the instant at which their oldest record must leave.
    lingering: BTreeSet<(Monotonic, LaneKey)>,
    in_flight: FuturesUnordered<BoxFuture<'static, LaneKey>>,
}

#[derive(Default)]
struct Lane {
    waiting: Vec<Waiting>,
    bytes: usize,
    /// Instant at which the oldest waiting record must leave.
    leaves_by: Monotonic,
    /// Number of batches in flight.
    batches: usize,
}

impl Batcher {
    async fn run(mut self, mut received: mpsc::UnboundedReceiver<(LaneKey, Waiting)>) {
        let mut arrived = Vec::with_capacity(BATCH_RECORDS);
        loop {
            let leaves_by = self.lingering.first().map(|(at, _)| *at);
            let runtime = self.runtime.clone();
            let timer = async {
                match leaves_by {
                    Some(at) => runtime.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(key) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    let lane = self.lanes.get_mut(&key).expect("a lane with a batch in flight exists");
                    lane.batches -= 1;
                    self.leave(&key);
                }
                count = received.recv_many(&mut arrived, BATCH_RECORDS) => {
                    if count == 0 {
                        return;
                    }
                    self.add(&mut arrived);
                }
                () = timer => {
                    let now = self.runtime.monotonic();
                    while let Some((at, key)) = self.lingering.first().cloned() && at <= now {
                        self.leave(&key);
                    }
                }
            }
        }
    }

    fn add(&mut self, arrived: &mut Vec<(LaneKey, Waiting)>) {
        let now = self.runtime.monotonic();
        let mut changed = BTreeSet::new();
        for (key, waiting) in arrived.drain(..) {
            let lane = self.lanes.entry(key.clone()).or_default();
            if lane.waiting.is_empty() {
                lane.leaves_by = now + self.options.linger_max;
                self.lingering.insert((lane.leaves_by, key.clone()));
            }
            lane.bytes += waiting.record.bytes();
            lane.waiting.push(waiting);
            changed.insert(key);
        }
        changed.iter().for_each(|key| self.leave(key));
    }

    /// Sends the waiting records of a lane if they may leave, and removes an idle lane.
    fn leave(&mut self, key: &LaneKey) {
        let now = self.runtime.monotonic();
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let is_large = lane.bytes >= self.options.batch_bytes || lane.waiting.len() >= BATCH_RECORDS;
        if !lane.waiting.is_empty() && (lane.batches == 0 || is_large || now >= lane.leaves_by) {
            self.lingering.remove(&(lane.leaves_by, key.clone()));
            lane.bytes = 0;
            lane.batches += 1;
            let (producers, key, batch) = (self.producers.clone(), key.clone(), std::mem::take(&mut lane.waiting));
            self.in_flight.push(Box::pin(async move {
                // A panic must end only the attempts of this batch. Their outcomes then are errors.
                let sent = AssertUnwindSafe(producers.send(&key, batch)).catch_unwind().await;
                if sent.is_err() {
                    tracing::error!(topic = %key.topic, "sending a batch of records panicked");
                }
                key
            }));
        }
        if lane.waiting.is_empty() && lane.batches == 0 {
            self.lanes.remove(key);
        }
    }
}

//! Job that the members of a group share by the partitions of a topic, for example a cache of a large catalogue.
//!
//! Each id belongs to one partition of the topic, by its hash. A member works on the ids of its partitions. When the
//! partitions of a member change, or the topic grows, the member stops its job and starts it again with the new
//! partitions. The topic contains only the records of the terms.
//!
//! No two members work on an id at the same time, under the conditions of [`crate::leader`]. The exception is a growing
//! topic: for some seconds, members may compute with different numbers of partitions. A write that depends on exclusion must
//! therefore contain the [`Generation`] of its id, and the receiver must reject earlier generations of this id.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, pending};
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::claim::{RETRY_WAIT, Terms, Times, Validity, claim, prove};
use crate::consumer::{Consumer, Event, Revocation};
use crate::producer::Producer;
use crate::topic::{Offset, Partition, TopicName};
use crate::{Bus, BusError, partition_of};

/// Time between two checks of the number of partitions.
const GROWTH_PERIOD: Duration = Duration::from_secs(5);
/// Time after which a member without partitions writes a warning.
const IDLE_WARNING: Duration = Duration::from_secs(60);

/// Function that maps an id to a partition. All members must use the same function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ShardHash {
    /// Partition of a record whose key is the id ([`partition_of`]).
    #[default]
    Murmur2,
    /// Java's `Math.floorMod(id.hashCode(), partitions)`, so that Java programs can share the job.
    JavaString,
}

impl ShardHash {
    /// Returns the number of the partition of an id.
    #[must_use]
    pub fn partition(self, id: &str, partitions: NonZeroU32) -> u32 {
        match self {
            ShardHash::Murmur2 => partition_of(id.as_bytes(), partitions),
            ShardHash::JavaString => {
                let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
                let hash = id.encode_utf16().fold(0, add);
                let remainder = i64::from(hash).rem_euclid(i64::from(partitions.get()));
                u32::try_from(remainder).expect("the remainder is smaller than the divisor")
            }
        }
    }
}

/// Options of a member. All members must use the same options, except the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardOptions {
    /// Topic whose partitions are the shards. No other program may send records to it. Members without a partition are
    /// idle, so the topic needs at least as many partitions as there are members.
    pub topic: TopicName,
    /// Name of the group of members.
    pub group: String,
    /// Text about this member in the records of its terms, for example a host name. It is also the name of the member in
    /// the group.
    pub name: String,
    /// Function that maps an id to a partition. The default is [`ShardHash::Murmur2`].
    pub hash: ShardHash,
    /// Time without contact to the bus after which other members receive the partitions. The default is 10 s.
    pub session_timeout: Duration,
    /// Time between the end of a job without contact and the end of its session. The default is 1 s.
    pub margin: Duration,
    /// Longest time for which the job may continue after the group has selected other members for its partitions. The
    /// default is 3 s.
    pub grace: Duration,
}

impl ShardOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(topic: TopicName, group: &str, name: &str) -> Self {
        ShardOptions {
            topic,
            group: group.to_owned(),
            name: name.to_owned(),
            hash: ShardHash::default(),
            session_timeout: Duration::from_secs(10),
            margin: Duration::from_secs(1),
            grace: Duration::from_secs(3),
        }
    }

    fn times(&self) -> Times {
        Times { session_timeout: self.session_timeout, margin: self.margin, grace: self.grace }
    }
}

/// Number of an assignment of an id. Each later member that works on the id has a greater generation, as long as the topic
/// exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation {
    /// Number of partitions of the topic.
    pub partitions: u32,
    /// Term of the partition of the id.
    pub term: Offset,
}

/// Partitions for which a member runs the job.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Terms of the partitions of this member.
    terms: Arc<BTreeMap<u32, Offset>>,
    partitions: NonZeroU32,
    hash: ShardHash,
    /// Token that is cancelled when the job must start no new action, because the partitions of the member change.
    pub closing: CancellationToken,
    /// Token that is cancelled when the member has lost its partitions.
    pub over: CancellationToken,
    validity: Arc<Validity>,
}

impl Shard {
    /// Returns the generation of an id; `None` if the id belongs to another member.
    #[must_use]
    pub fn generation(&self, id: &str) -> Option<Generation> {
        let term = *self.terms.get(&self.hash.partition(id, self.partitions))?;
        Some(Generation { partitions: self.partitions.get(), term })
    }

    /// Returns the numbers of the partitions of this member.
    pub fn partitions(&self) -> impl Iterator<Item = u32> {
        self.terms.keys().copied()
    }

    /// Returns the number of partitions of the topic.
    #[must_use]
    pub fn partition_count(&self) -> u32 {
        self.partitions.get()
    }

    /// Returns true if the member owns its partitions at this moment. The job calls this function right before an action
    /// that it cannot undo.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.over.is_cancelled() && self.validity.is_valid()
    }

    fn end(&self) {
        self.over.cancel();
        self.closing.cancel();
    }
}

/// Job that this process shares with other members of a group.
pub struct ShardedJob {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    options: ShardOptions,
    producer: Arc<dyn Producer>,
}

impl ShardedJob {
    /// Opens the topic. The process joins the group in [`ShardedJob::run`].
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist, and [`BusError::Invalid`] if the name is empty,
    /// contains a NUL or is longer than the metadata of a commit, or if the grace and the margin together are not shorter
    /// than the session timeout.
    pub async fn open(runtime: &Runtime, bus: Arc<dyn Bus>, options: ShardOptions) -> Result<Self, BusError> {
        options.times().check()?;
        Times::check_name(&*bus, &options.name)?;
        bus.describe_topic(&options.topic).await?;
        let producer = options.times().producer(&*bus).await?;
        Ok(ShardedJob { runtime: runtime.clone(), bus, options, producer })
    }

    /// Joins the group, and runs `job` for the partitions of this process. When they change, the function cancels
    /// [`Shard::closing`], waits for the job for at most the grace, drops it, and starts it again with the new partitions.
    /// When the process has lost its partitions, the function drops the job at once. A job that ends by itself starts again
    /// only after the next change. After a caller has cancelled `stop`, the function stops the job in the same way, leaves
    /// the group and returns.
    ///
    /// # Errors
    /// Returns an error that is not [retryable](BusError::is_retryable) if a longer wait does not help.
    pub async fn run<F: Future<Output = ()>>(
        &self,
        stop: &CancellationToken,
        mut job: impl FnMut(Shard) -> F,
    ) -> Result<(), BusError> {
        let ShardOptions { group, topic, name, .. } = &self.options;
        let consumer = self.options.times().join(&self.runtime, &*self.bus, group, topic, name).await?;
        let (shards, mut starts) = mpsc::channel(1);
        let keeper = Keeper {
            runtime: self.runtime.clone(),
            bus: self.bus.clone(),
            options: self.options.clone(),
            producer: self.producer.clone(),
            consumer,
            shards,
            stop: stop.clone(),
        };
        // The events of the group are handled even while the job blocks the task of the caller.
        let tasks = TaskSet::new(&self.runtime);
        let (failed, failure) = tokio::sync::oneshot::channel();
        tasks.spawn("sharded job", async move { drop(failed.send(keeper.keep().await)) });
        // The channel ends with the task.
        while let Some(Start { shard, stopped }) = starts.recv().await {
            tokio::select! {
                biased;
                () = shard.over.cancelled() => {}
                () = job(shard.clone()) => {}
            }
            drop(stopped);
        }
        failure.await.unwrap_or(Err(BusError::Closed))
    }
}

impl fmt::Debug for ShardedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedJob").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Request to start the job.
struct Start {
    shard: Shard,
    /// Is cancelled when the job has ended.
    stopped: DropGuard,
}

/// Job that runs, or has ended by itself.
struct Running {
    shard: Shard,
    stopped: CancellationToken,
    terms: Terms,
    next_proof: Monotonic,
}

/// Task that handles the events of the group.
struct Keeper {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    options: ShardOptions,
    producer: Arc<dyn Producer>,
    consumer: Arc<dyn Consumer>,
    shards: mpsc::Sender<Start>,
    stop: CancellationToken,
}

/// Reason why a job must stop.
enum Change {
    Assigned(Vec<Partition>),
    Revoked(Revocation),
    Lost(Vec<Partition>),
    /// The topic has another number of partitions.
    Grown,
    /// The membership is no longer proved.
    Unproved,
    Stopped,
}

impl Keeper {
    async fn keep(self) -> Result<(), BusError> {
        let mut owned: Vec<Partition> = Vec::new();
        let mut running = None;
        let result = loop {
            let change = match self.next_change(&owned, &mut running).await {
                Ok(change) => change,
                Err(error) => break Err(error),
            };
            match change {
                Change::Assigned(partitions) => {
                    self.consumer.pause(&partitions);
                    self.finish(running.take(), None).await;
                    owned.extend(partitions);
                }
                Change::Revoked(revocation) => {
                    self.finish(running.take(), Some(revocation.deadline())).await;
                    owned.retain(|partition| !revocation.partitions().contains(partition));
                    revocation.release();
                }
                Change::Lost(partitions) => {
                    self.abort(running.take()).await;
                    owned.retain(|partition| !partitions.contains(partition));
                }
                Change::Unproved => self.abort(running.take()).await,
                Change::Grown => self.finish(running.take(), None).await,
                Change::Stopped => break Ok(()),
            }
        };
        self.finish(running.take(), None).await;
        if let Err(error) = self.consumer.close().await {
            tracing::debug!(%error, "a member could not leave its group; its session ends by itself");
        }
        result
    }

    /// Starts the job if it does not run and the member owns partitions. Returns the next change.
    async fn next_change(&self, owned: &[Partition], running: &mut Option<Running>) -> Result<Change, BusError> {
        let mut starting: BoxFuture<'_, Result<Option<Running>, BusError>> =
            match running.is_none() && !owned.is_empty() {
                true => Box::pin(self.begin(owned)),
                false => Box::pin(pending()),
            };
        let mut growth: BoxFuture<'_, Change> = Box::pin(pending());
        let mut warn_at = Some(self.runtime.monotonic() + IDLE_WARNING).filter(|_| owned.is_empty());
        loop {
            let ends = running.as_ref().map(|one| one.shard.validity.ends());
            let proof = async {
                let Some(one) = running.as_ref() else { return pending().await };
                self.runtime.sleep_until(one.next_proof).await;
                prove(&self.runtime, &*self.consumer, &one.terms, &self.options.name).await
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(Change::Stopped),
                () = self.until(ends) => return Ok(Change::Unproved),
                event = self.consumer.next() => match event {
                    Ok(Event::Assigned(assigned)) => {
                        return Ok(Change::Assigned(assigned.into_iter().map(|one| one.partition).collect()));
                    }
                    Ok(Event::Revoked(revocation)) => return Ok(Change::Revoked(revocation)),
                    Ok(Event::Lost(partitions)) => return Ok(Change::Lost(partitions)),
                    Ok(Event::Records(_)) => {}
                    Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                    Err(error) => return Err(error),
                },
                started = &mut starting => {
                    starting = Box::pin(pending());
                    // Without a result, the consumer has lost a partition, and reports this next.
                    if let Some(started) = started? {
                        growth = Box::pin(self.grown(started.shard.partition_count()));
                        *running = Some(started);
                    }
                }
                change = &mut growth => return Ok(change),
                proved = proof => {
                    let Some(one) = running.as_mut() else { continue };
                    match proved {
                        Ok(sent) => {
                            one.shard.validity.extend(sent + self.options.times().validity());
                            one.next_proof = sent + self.options.times().period();
                        }
                        Err(error) if error.is_retryable() => one.next_proof = self.runtime.monotonic() + RETRY_WAIT,
                        Err(_) => return Ok(Change::Unproved),
                    }
                }
                () = self.until(warn_at) => {
                    warn_at = None;
                    let (topic, group) = (&self.options.topic, &self.options.group);
                    tracing::warn!(%topic, group, "this member has no partition, so it does no work; add partitions to the topic");
                }
            }
        }
    }

    /// Waits until the time; without a time, waits for ever.
    async fn until(&self, at: Option<Monotonic>) {
        match at {
            Some(at) => self.runtime.sleep_until(at).await,
            None => pending().await,
        }
    }

    /// Claims the partitions, and starts the job. Returns `None` if the member has lost a partition.
    async fn begin(&self, owned: &[Partition]) -> Result<Option<Running>, BusError> {
        let claimed = claim(&self.runtime, &*self.producer, &*self.consumer, owned, &self.options.name).await;
        let (terms, sent) = match claimed {
            Ok(claimed) => claimed,
            Err(BusError::Fenced) => return Ok(None),
            Err(error) => return Err(error),
        };
        let partitions = loop {
            match self.count().await {
                Ok(partitions) => break partitions,
                Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                Err(error) => return Err(error),
            }
        };
        let by_index = terms.iter().map(|(partition, term)| (partition.index, *term)).collect();
        let shard = Shard {
            terms: Arc::new(by_index),
            partitions,
            hash: self.options.hash,
            closing: CancellationToken::new(),
            over: CancellationToken::new(),
            validity: Validity::new(&self.runtime, sent + self.options.times().validity()),
        };
        let stopped = CancellationToken::new();
        let start = Start { shard: shard.clone(), stopped: stopped.clone().drop_guard() };
        // The receiver ends only with this task.
        drop(self.shards.send(start).await);
        let next_proof = sent + self.options.times().period();
        Ok(Some(Running { shard, stopped, terms, next_proof }))
    }

    async fn count(&self) -> Result<NonZeroU32, BusError> {
        let partitions = self.bus.describe_topic(&self.options.topic).await?.offsets.len();
        let count = u32::try_from(partitions).ok().and_then(NonZeroU32::new);
        count.ok_or_else(|| BusError::UnknownTopic(self.options.topic.clone()))
    }

    /// Waits until the topic has another number of partitions.
    async fn grown(&self, partitions: u32) -> Change {
        loop {
            self.runtime.sleep(GROWTH_PERIOD).await;
            if self.count().await.is_ok_and(|count| count.get() != partitions) {
                return Change::Grown;
            }
        }
    }

    /// Asks the job to end, and waits for it, at most for the grace and until `deadline`. Then aborts it.
    async fn finish(&self, running: Option<Running>, deadline: Option<Monotonic>) {
        let Some(running) = running else { return };
        running.shard.closing.cancel();
        let ends = running.shard.validity.ends().min(self.runtime.monotonic() + self.options.grace);
        tokio::select! {
            biased;
            () = running.stopped.cancelled() => {}
            () = self.runtime.sleep_until(deadline.map_or(ends, |deadline| deadline.min(ends))) => {}
        }
        self.abort(Some(running)).await;
    }

    /// Ends the job, and waits until its future is dropped, at most until the end of its validity.
    async fn abort(&self, running: Option<Running>) {
        let Some(running) = running else { return };
        running.shard.end();
        tokio::select! {
            biased;
            () = running.stopped.cancelled() => {}
            () = self.runtime.sleep_until(running.shard.validity.ends()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_hash_is_equal_to_the_hash_of_java() {
        // The expected values are results of `Math.floorMod(text.hashCode(), 1000)`. The fourth hash is the smallest `int`.
        let thousand = NonZeroU32::new(1_000).expect("1,000 is not zero");
        let expected =
            [("", 0), ("a", 97), ("item-17", 168), ("polygenelubricants", 352), ("grüße", 23), ("𝄞 clef", 552)];
        for (text, partition) in expected {
            assert_eq!(ShardHash::JavaString.partition(text, thousand), partition, "{text}");
        }
    }
}

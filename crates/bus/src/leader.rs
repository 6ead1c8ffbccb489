//! Leader of a group of processes, elected by the only partition of a topic.
//!
//! The member of the group that owns the partition leads. It proves its membership by commits, because the bus rejects
//! the commits of a member that has lost the partition. A leadership ends at the latest when the session could end, by
//! the clock of the leader: at the start of its last accepted commit, plus the session timeout, minus a margin. The term
//! of a leadership is the offset of a record that the leader sends before it leads, so a later leader has a greater term,
//! as long as the topic exists.
//!
//! Exclusion requires that the clocks of the leader and the bus run at rates that differ by less than the margin within
//! a session. A leader whose process is paused sees the end of its leadership when it continues, but a request that it
//! has already sent may arrive later. The receiver of such requests must therefore reject old terms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, pending};
use instants::Monotonic;
use runtime::Runtime;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::claim::{RETRY_WAIT, Terms, Times, Validity, claim, prove};
use crate::consumer::{Consumer, Event, Revocation};
use crate::producer::Producer;
use crate::topic::{Offset, Partition, TopicName};
use crate::{Bus, BusError};

/// Partition whose owner leads.
const LEADERS_PARTITION: u32 = 0;

/// Options of a candidate. All candidates must use the same options, except the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaderOptions {
    /// Topic with one partition. No other program may send records to it.
    pub topic: TopicName,
    /// Name of the group of candidates.
    pub group: String,
    /// Text about this candidate in the record of its term, for example a host name. It is also the name of the member in
    /// the group.
    pub name: String,
    /// Time without contact to the bus after which another candidate can lead. The default is 10 s.
    pub session_timeout: Duration,
    /// Time between the end of a leadership without contact and the end of its session. The default is 1 s.
    pub margin: Duration,
    /// Longest time for which a leader may continue after the bus has selected another candidate. The default is 3 s.
    pub grace: Duration,
}

impl LeaderOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(topic: TopicName, group: &str, name: &str) -> Self {
        LeaderOptions {
            topic,
            group: group.to_owned(),
            name: name.to_owned(),
            session_timeout: Duration::from_secs(10),
            margin: Duration::from_secs(1),
            grace: Duration::from_secs(3),
        }
    }

    fn times(&self) -> Times {
        Times { session_timeout: self.session_timeout, margin: self.margin, grace: self.grace }
    }
}

/// Candidate for the leadership.
pub struct LeaderCandidate {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    options: LeaderOptions,
    producer: Arc<dyn Producer>,
}

impl LeaderCandidate {
    /// Opens the topic. The process is not a candidate before [`LeaderCandidate::lead`].
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist, and [`BusError::Invalid`] if it has several
    /// partitions, if the name is empty, contains a NUL or is longer than the metadata of a commit, or if the grace and the
    /// margin together are not shorter than the session timeout.
    pub async fn open(runtime: &Runtime, bus: Arc<dyn Bus>, options: LeaderOptions) -> Result<Self, BusError> {
        options.times().check()?;
        Times::check_name(&*bus, &options.name)?;
        let partitions = bus.describe_topic(&options.topic).await?.offsets.len();
        if partitions != 1 {
            let topic = &options.topic;
            let reason =
                format!("the topic {topic} has {partitions} partitions; a leader needs a topic with 1 partition");
            return Err(BusError::Invalid(reason));
        }
        let producer = options.times().producer(&*bus).await?;
        Ok(LeaderCandidate { runtime: runtime.clone(), bus, options, producer })
    }

    /// Waits for the leadership without a time limit. If the caller drops the future, the process is no longer a
    /// candidate.
    ///
    /// # Errors
    /// Returns an error that is not [retryable](BusError::is_retryable) if a longer wait does not help.
    pub async fn lead(&self) -> Result<Leadership, BusError> {
        let LeaderOptions { group, topic, name, .. } = &self.options;
        let consumer = self.options.times().join(&self.runtime, &*self.bus, group, topic, name).await?;
        self.wait(consumer).await
    }

    /// Repeatedly waits for the leadership, and runs one `task` in each leadership. When [`Leading::closing`] is
    /// cancelled, the task must end within the grace. When [`Leading::over`] is cancelled, the function drops the task.
    /// If the task ends by itself, another candidate can lead. After a caller has cancelled `stop`, the function
    /// cancels [`Leading::closing`], waits for the task for at most the grace, and returns.
    ///
    /// # Errors
    /// Returns the same errors as [`LeaderCandidate::lead`].
    pub async fn run<F: Future<Output = ()>>(
        &self,
        stop: &CancellationToken,
        mut task: impl FnMut(Leading) -> F,
    ) -> Result<(), BusError> {
        while let Some(leadership) = self.lead_unless(stop).await? {
            let leading = leadership.leading.clone();
            let stopping = async {
                stop.cancelled().await;
                leading.closing.cancel();
                self.runtime.sleep(self.options.grace).await;
            };
            tokio::select! {
                biased;
                () = leading.over.cancelled() => {}
                () = stopping => {}
                () = task(leading.clone()) => {}
            }
            tracing::info!(group = self.options.group, term = %leading.term, "leadership ended");
            leadership.release().await;
        }
        Ok(())
    }

    /// Waits for the leadership. After a caller has cancelled `stop`, the process leaves the group at once, and the function
    /// returns `None`.
    async fn lead_unless(&self, stop: &CancellationToken) -> Result<Option<Leadership>, BusError> {
        let LeaderOptions { group, topic, name, .. } = &self.options;
        let joining = self.options.times().join(&self.runtime, &*self.bus, group, topic, name);
        let consumer = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            joined = joining => joined?,
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            leadership = self.wait(consumer.clone()) => return leadership.map(Some),
        }
        leave(&*consumer).await;
        Ok(None)
    }

    /// Waits until the consumer owns the partition and has proved its membership.
    async fn wait(&self, consumer: Arc<dyn Consumer>) -> Result<Leadership, BusError> {
        let mut proof: BoxFuture<'_, Result<(Terms, Monotonic), BusError>> = Box::pin(pending());
        loop {
            let event = tokio::select! {
                biased;
                event = consumer.next() => event,
                proved = &mut proof => match proved {
                    Ok((terms, sent)) => return Ok(Leadership::start(self, consumer.clone(), terms, sent)),
                    // The consumer has lost the partition, and reports this next.
                    Err(BusError::Fenced) => {
                        proof = Box::pin(pending());
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match event {
                Ok(Event::Assigned(assigned)) => {
                    let partitions: Vec<Partition> = assigned.into_iter().map(|one| one.partition).collect();
                    consumer.pause(&partitions);
                    // The topic has grown. A partition of its own for each of two members must not make two leaders.
                    if !has_leadership(&partitions) {
                        let topic = &self.options.topic;
                        tracing::warn!(%topic, "the topic of a leader has several partitions; only the first one counts");
                        continue;
                    }
                    let partitions = vec![Partition { topic: self.options.topic.clone(), index: LEADERS_PARTITION }];
                    let (runtime, producer, name) = (&self.runtime, &*self.producer, &self.options.name);
                    let claimed = consumer.clone();
                    proof = Box::pin(async move { claim(runtime, producer, &*claimed, &partitions, name).await });
                }
                Ok(Event::Revoked(revocation)) => {
                    if has_leadership(revocation.partitions()) {
                        proof = Box::pin(pending());
                    }
                    revocation.release();
                }
                Ok(Event::Lost(partitions)) if has_leadership(&partitions) => proof = Box::pin(pending()),
                Ok(Event::Lost(_) | Event::Records(_)) => {}
                Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns true if the owner of one of the partitions may lead.
fn has_leadership(partitions: &[Partition]) -> bool {
    partitions.iter().any(|partition| partition.index == LEADERS_PARTITION)
}

impl fmt::Debug for LeaderCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderCandidate").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Guard of a leadership. A drop of the guard ends the leadership, and another candidate can lead.
#[must_use = "a drop of this value ends the leadership"]
pub struct Leadership {
    leading: Leading,
    /// Notifies the task that the owner has dropped the guard.
    dropped: Option<DropGuard>,
    /// Is cancelled when the task has left the group.
    left: CancellationToken,
}

/// View of a leadership for the task that runs in it.
#[derive(Clone, Debug)]
pub struct Leading {
    /// Term of the leadership. The task sends the term with every write.
    pub term: Offset,
    /// Token that is cancelled when the task must start no new action, because another candidate waits to lead, or when
    /// `over` is cancelled.
    pub closing: CancellationToken,
    /// Token that is cancelled when the leadership has ended.
    pub over: CancellationToken,
    validity: Arc<Validity>,
}

impl Leading {
    /// Returns true if the leadership is valid at this moment. The task calls this function right before an action that it
    /// cannot undo. A check of the tokens is not sufficient, because another task cancels them, and it may run late.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.over.is_cancelled() && self.validity.is_valid()
    }

    /// Returns the time at which the leadership ends if the bus accepts no further commit.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.validity.ends()
    }

    fn end(&self) {
        self.over.cancel();
        self.closing.cancel();
    }
}

impl Leadership {
    fn start(candidate: &LeaderCandidate, consumer: Arc<dyn Consumer>, terms: Terms, sent: Monotonic) -> Self {
        let LeaderCandidate { runtime, options, .. } = candidate;
        let term = terms.values().copied().max().unwrap_or_default();
        let leading = Leading {
            term,
            closing: CancellationToken::new(),
            over: CancellationToken::new(),
            validity: Validity::new(runtime, sent + options.times().validity()),
        };
        let (dropped, left) = (CancellationToken::new(), CancellationToken::new());
        let keeper = Keeper {
            runtime: runtime.clone(),
            options: options.clone(),
            consumer,
            terms,
            leading: leading.clone(),
            dropped: dropped.clone(),
        };
        let leaving = left.clone().drop_guard();
        // The task ends soon after the guard, and it must leave the group.
        drop(runtime.spawn("topic leader", async move {
            keeper.keep(sent).await;
            drop(leaving);
        }));
        Leadership { leading, dropped: Some(dropped.drop_guard()), left }
    }

    /// Returns the view for a task that runs in the leadership.
    #[must_use]
    pub fn leading(&self) -> Leading {
        self.leading.clone()
    }

    /// Ends the leadership, and waits until the process has left the group, or until its session has ended.
    pub async fn release(mut self) {
        self.leading.end();
        drop(self.dropped.take());
        self.left.cancelled().await;
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("leading", &self.leading).finish_non_exhaustive()
    }
}

async fn leave(consumer: &dyn Consumer) {
    if let Err(error) = consumer.close().await {
        tracing::debug!(%error, "the candidate could not leave its group; its session ends by itself");
    }
}

/// Task that extends a leadership, and ends it.
struct Keeper {
    runtime: Runtime,
    options: LeaderOptions,
    consumer: Arc<dyn Consumer>,
    terms: Terms,
    leading: Leading,
    dropped: CancellationToken,
}

impl Keeper {
    async fn keep(self, first: Monotonic) {
        let revocation = self.extend(first).await;
        if let Some(revocation) = revocation {
            self.hand_over(revocation).await;
        }
        self.leading.end();
        leave(&*self.consumer).await;
    }

    /// Extends the leadership until it ends. Returns the request to release the partition if the bus has selected another
    /// candidate.
    async fn extend(&self, first: Monotonic) -> Option<Revocation> {
        let times = self.options.times();
        let mut next_proof = first + times.period();
        loop {
            let at = next_proof;
            let proof = async {
                self.runtime.sleep_until(at).await;
                prove(&self.runtime, &*self.consumer, &self.terms, &self.options.name).await
            };
            let mut proof = std::pin::pin!(proof);
            let proved = loop {
                tokio::select! {
                    biased;
                    () = self.dropped.cancelled() => return None,
                    () = self.runtime.sleep_until(self.leading.deadline()) => return None,
                    event = self.consumer.next() => match event {
                        Ok(Event::Revoked(revocation)) => return Some(revocation),
                        Ok(Event::Lost(_)) => return None,
                        Ok(Event::Assigned(_) | Event::Records(_)) => {}
                        Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                        Err(_) => return None,
                    },
                    proved = &mut proof => break proved,
                }
            };
            match proved {
                Ok(sent) => {
                    self.leading.validity.extend(sent + times.validity());
                    next_proof = sent + times.period();
                }
                Err(error) if error.is_retryable() => next_proof = self.runtime.monotonic() + RETRY_WAIT,
                Err(_) => return None,
            }
        }
    }

    /// Lets the task of the leader end, and then releases the partition.
    async fn hand_over(&self, revocation: Revocation) {
        self.leading.closing.cancel();
        let ends = self.leading.deadline().min(revocation.deadline());
        let grace = (self.runtime.monotonic() + self.options.grace).min(ends);
        let lost = async {
            loop {
                match self.consumer.next().await {
                    Ok(Event::Lost(_) | Event::Revoked(_)) => return,
                    Ok(_) => {}
                    Err(error) if error.is_retryable() => self.runtime.sleep(RETRY_WAIT).await,
                    Err(_) => return,
                }
            }
        };
        tokio::select! {
            biased;
            () = self.dropped.cancelled() => {}
            () = lost => {}
            () = self.runtime.sleep_until(grace) => {}
        }
        self.leading.over.cancel();
        // The owner drops the guard after it has stopped its task.
        tokio::select! {
            biased;
            () = self.dropped.cancelled() => {}
            () = self.runtime.sleep_until(ends) => {}
        }
        revocation.release();
    }
}

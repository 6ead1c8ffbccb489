//! Consumer of the engine in memory. One task sends heartbeats and waits for the release of revoked partitions. Each
//! call of [`Consumer::next`] fetches records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use instants::Monotonic;
use runtime::TaskSet;
use tokio::sync::{Notify, mpsc, oneshot};

use super::group::{Grant, MemberId};
use super::{Connection, RETRY_WAIT};
use crate::consumer::{Assigned, Commit, Event, RecordBatch, Revocation};
use crate::topic::{Offset, Partition};
use crate::{Answer, BusError, Consumer, ConsumerOptions};

/// Number of heartbeats in a session timeout.
const HEARTBEATS: u32 = 6;

pub(super) struct MemoryConsumer {
    shared: Arc<Shared>,
    /// Task of the consumer. It is `None` after the caller has closed the consumer.
    task: Mutex<Option<TaskSet>>,
}

struct Shared {
    connection: Connection,
    options: ConsumerOptions,
    state: Mutex<State>,
    /// Wakes the call of `next` after a change of the state.
    changed: Notify,
    /// Wakes the task that sends heartbeats, because the consumer has released partitions.
    released: Notify,
}

struct State {
    member: MemberId,
    /// End of the session by the clock of this process.
    ends: Monotonic,
    /// Partitions that the consumer has not released.
    held: BTreeMap<Partition, Held>,
    events: VecDeque<Event>,
    /// Partition of the last batch. The next batch comes from a later partition, if one has records.
    last: Option<Partition>,
    last_revocation: u64,
    is_closed: bool,
}

struct Held {
    grant: Grant,
    position: Offset,
    is_paused: bool,
    /// Number of the revocation, if the consumer must release the partition.
    revocation: Option<u64>,
    /// True if the caller has received the event of the assignment.
    is_known: bool,
}

/// Number of a revocation, and the channel through which the caller releases its partitions.
type Revoked = (u64, oneshot::Receiver<()>);

impl MemoryConsumer {
    pub(super) async fn join(connection: Connection, options: ConsumerOptions) -> Result<Self, BusError> {
        if options.topics.is_empty() || options.batch_records_max == 0 || options.session_timeout.is_zero() {
            let reason = "a consumer needs a topic, a session timeout above zero, and batches of at least one record";
            return Err(BusError::Invalid(reason.to_owned()));
        }
        let sent = connection.runtime().monotonic();
        let member = connection.call(|broker, now| broker.join(&options, now.monotonic)).await?;
        let state = State {
            member,
            ends: sent + options.session_timeout,
            held: BTreeMap::new(),
            events: VecDeque::new(),
            last: None,
            last_revocation: 0,
            is_closed: false,
        };
        let task = TaskSet::new(connection.runtime());
        let shared =
            Shared { connection, options, state: Mutex::new(state), changed: Notify::new(), released: Notify::new() };
        let shared = Arc::new(shared);
        let running = shared.clone();
        task.spawn("memory consumer", async move {
            let (revoked, revocations) = mpsc::unbounded_channel();
            tokio::join!(running.keep_session(&revoked), running.release_revoked(revocations));
        });
        Ok(MemoryConsumer { shared, task: Mutex::new(Some(task)) })
    }
}

impl State {
    /// Ends the session if its time has passed.
    fn expire(&mut self, now: Monotonic) {
        if now >= self.ends {
            self.lose_all();
        }
    }

    fn lose_all(&mut self) {
        // The other events in the queue belong to the lost assignment.
        self.events.retain(|event| matches!(event, Event::Lost(_)));
        let held = std::mem::take(&mut self.held).into_iter();
        let lost: Vec<Partition> = held.filter(|(_, held)| held.is_known).map(|(partition, _)| partition).collect();
        if !lost.is_empty() {
            self.events.push_back(Event::Lost(lost));
        }
    }

    /// Removes the next event from the queue.
    fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Assigned(assigned) = &event {
            for one in assigned {
                if let Some(held) = self.held.get_mut(&one.partition) {
                    held.is_known = true;
                }
            }
        }
        Some(event)
    }

    /// Removes the partitions of a revocation, and returns them. The result is empty if the consumer has lost them.
    fn release(&mut self, revocation: u64) -> Vec<Partition> {
        self.held
            .extract_if(.., |_, held| held.revocation == Some(revocation))
            .map(|(partition, _)| partition)
            .collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this mutex")
    }

    fn now(&self) -> Monotonic {
        self.connection.runtime().monotonic()
    }

    async fn keep_session(&self, revoked: &mpsc::UnboundedSender<Revoked>) {
        loop {
            let (member, ends, held) = {
                let state = self.state();
                (state.member, state.ends, state.held.keys().cloned().collect::<BTreeSet<_>>())
            };
            let mut rebalanced = std::pin::pin!(self.connection.engine.rebalanced.notified());
            rebalanced.as_mut().enable();
            let sent = self.now();
            let request = self.connection.call(|broker, now| {
                broker.heartbeat(&self.options.group, member, &held, self.options.start, now.monotonic)
            });
            let response = self.connection.runtime().timeout(ends.since(sent), request).await;
            match response {
                Some(Ok(granted)) => self.accept(revoked, sent, &held, granted),
                Some(Err(BusError::Disconnected(_))) if self.now() < ends => {}
                // The session has ended.
                Some(Err(_)) | None => {
                    self.state().lose_all();
                    self.changed.notify_one();
                    self.rejoin().await;
                    continue;
                }
            }
            let pause = self.connection.runtime().sleep(self.options.session_timeout / HEARTBEATS);
            tokio::select! {
                biased;
                () = self.released.notified() => {}
                () = rebalanced => {}
                () = pause => {}
            }
        }
    }

    /// Joins the group as a new member.
    async fn rejoin(&self) {
        loop {
            let sent = self.now();
            let request = self.connection.call(|broker, now| broker.join(&self.options, now.monotonic));
            if let Some(Ok(member)) = self.connection.runtime().timeout(self.options.session_timeout, request).await {
                let mut state = self.state();
                state.member = member;
                state.ends = sent + self.options.session_timeout;
                return;
            }
            self.connection.runtime().sleep(RETRY_WAIT).await;
        }
    }

    /// Applies the response to the heartbeat that the consumer sent at `sent`, when it held the partitions `held`.
    fn accept(
        &self,
        to_release: &mpsc::UnboundedSender<Revoked>,
        sent: Monotonic,
        held: &BTreeSet<Partition>,
        granted: Vec<(Assigned, Grant)>,
    ) {
        let now = self.now();
        let mut state = self.state();
        // The process may have been paused after the response arrived.
        state.expire(now);
        if now >= state.ends {
            return;
        }
        state.ends = sent + self.options.session_timeout;
        let may_hold: BTreeSet<&Partition> = granted.iter().map(|(assigned, _)| &assigned.partition).collect();
        state.last_revocation += 1;
        let revocation = state.last_revocation;
        let mut revoked = Vec::new();
        for (partition, held) in &mut state.held {
            if held.revocation.is_none() && !may_hold.contains(partition) {
                held.revocation = Some(revocation);
                revoked.push(partition.clone());
            }
        }
        if !revoked.is_empty() {
            let (event, released) = Revocation::new(revoked, now + self.options.revoke_timeout);
            state.events.push_back(Event::Revoked(event));
            // The receiver ends together with this task.
            drop(to_release.send((revocation, released)));
        }
        let mut new = Vec::new();
        for (assigned, grant) in granted {
            // If the consumer has released a partition since it sent the heartbeat, the next heartbeat reports this.
            if held.contains(&assigned.partition) || state.held.contains_key(&assigned.partition) {
                continue;
            }
            let position = assigned.position;
            let held = Held { grant, position, is_paused: false, revocation: None, is_known: false };
            state.held.insert(assigned.partition.clone(), held);
            new.push(assigned);
        }
        if !new.is_empty() {
            state.events.push_back(Event::Assigned(new));
        }
        if !state.events.is_empty() {
            self.changed.notify_one();
        }
    }

    async fn release_revoked(&self, mut revocations: mpsc::UnboundedReceiver<Revoked>) {
        let mut waiting = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(revoked) = revocations.recv() => waiting.push(self.release(revoked)),
                Some(()) = waiting.next(), if !waiting.is_empty() => {}
            }
        }
    }

    /// Waits until the caller releases the partitions, at most for the timeout.
    async fn release(&self, (revocation, released): Revoked) {
        let in_time = self.connection.runtime().timeout(self.options.revoke_timeout, released).await.is_some();
        let mut state = self.state();
        let released = state.release(revocation);
        if !in_time && !released.is_empty() {
            state.events.push_back(Event::Lost(released));
        }
        drop(state);
        self.changed.notify_one();
        self.released.notify_one();
    }

    /// Returns the partitions to fetch and their positions. The partition after the last fetched partition is the first.
    fn wanted(&self) -> Vec<(Partition, Offset)> {
        let state = self.state();
        let active = state.held.iter().filter(|(_, held)| !held.is_paused && held.revocation.is_none());
        let mut wanted: Vec<(Partition, Offset)> =
            active.map(|(partition, held)| (partition.clone(), held.position)).collect();
        let first = wanted.partition_point(|(partition, _)| Some(partition) <= state.last.as_ref());
        wanted.rotate_left(first);
        wanted
    }

    /// Moves the position behind the batch. Returns `None` if the caller has changed the position or the pause of the
    /// partition during the fetch, or if the consumer may no longer deliver the partition's records.
    fn deliver(&self, batch: RecordBatch) -> Option<Event> {
        let mut state = self.state();
        state.expire(self.now());
        // The caller must receive the events of the assignment first.
        if !state.events.is_empty() {
            return None;
        }
        let held = state.held.get_mut(&batch.partition)?;
        if held.is_paused || held.revocation.is_some() || batch.records.first()?.offset != held.position {
            return None;
        }
        held.position = batch.records.last()?.offset.next();
        state.last = Some(batch.partition.clone());
        Some(Event::Records(batch))
    }

    async fn next(&self) -> Result<Event, BusError> {
        loop {
            let ends = {
                let mut state = self.state();
                if state.is_closed {
                    return Err(BusError::Closed);
                }
                state.expire(self.now());
                if let Some(event) = state.take_event() {
                    return Ok(event);
                }
                // Without partitions, the end of the session causes no event.
                (!state.held.is_empty()).then_some(state.ends)
            };
            let mut appended = std::pin::pin!(self.connection.engine.appended.notified());
            appended.as_mut().enable();
            let wanted = self.wanted();
            let fetched = async {
                if wanted.is_empty() {
                    return std::future::pending().await;
                }
                let records_max = self.options.batch_records_max;
                match self.connection.call(|broker, _| Ok(broker.fetch(&wanted, records_max))).await {
                    Ok(Some(batch)) => Some(batch),
                    Ok(None) => {
                        appended.await;
                        None
                    }
                    Err(_) => {
                        self.connection.runtime().sleep(RETRY_WAIT).await;
                        None
                    }
                }
            };
            let expired = async {
                match ends {
                    Some(ends) => self.connection.runtime().sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            let fetched = tokio::select! {
                biased;
                () = self.changed.notified() => None,
                fetched = fetched => fetched,
                () = expired => None,
            };
            if let Some(event) = fetched.and_then(|batch| self.deliver(batch)) {
                return Ok(event);
            }
        }
    }

    fn for_each_held(&self, partitions: &[Partition], change: impl Fn(&mut Held)) {
        let mut state = self.state();
        for partition in partitions {
            if let Some(held) = state.held.get_mut(partition) {
                change(held);
            }
        }
        drop(state);
        self.changed.notify_one();
    }
}

impl Consumer for MemoryConsumer {
    fn next(&self) -> Answer<'_, Event> {
        Box::pin(self.shared.next())
    }

    fn commit(&self, commits: Vec<Commit>) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            let (member, remaining, granted) = {
                let state = shared.state();
                if state.is_closed {
                    return Err(BusError::Closed);
                }
                let known = |one: &Commit| state.held.get(&one.partition).filter(|held| held.is_known);
                let granted =
                    commits.into_iter().map(|one| known(&one).map(|held| held.grant).map(|grant| (one, grant)));
                let granted = granted.collect::<Option<Vec<_>>>().ok_or(BusError::Fenced)?;
                (state.member, state.ends.since(shared.now()), granted)
            };
            if remaining == Duration::ZERO {
                return Err(BusError::Fenced);
            }
            let group = &shared.options.group;
            let request = shared.connection.call(|broker, now| broker.commit(group, member, granted, now.monotonic));
            let late = || Err(BusError::Disconnected("the session ended before the response".to_owned()));
            shared.connection.runtime().timeout(remaining, request).await.unwrap_or_else(late)
        })
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        self.shared.for_each_held(std::slice::from_ref(partition), |held| held.position = offset);
    }

    fn pause(&self, partitions: &[Partition]) {
        self.shared.for_each_held(partitions, |held| held.is_paused = true);
    }

    fn resume(&self, partitions: &[Partition]) {
        self.shared.for_each_held(partitions, |held| held.is_paused = false);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            let member = {
                let mut state = shared.state();
                if std::mem::replace(&mut state.is_closed, true) {
                    return Ok(());
                }
                state.held.clear();
                state.events.clear();
                state.member
            };
            shared.changed.notify_one();
            drop(self.task.lock().expect("no code panics while it holds this mutex").take());
            let group = &shared.options.group;
            let request = shared.connection.call(|broker, _| {
                broker.leave(group, member);
                Ok(())
            });
            let limit = shared.options.session_timeout;
            let late = || Err(BusError::Disconnected("the session ends by itself".to_owned()));
            shared.connection.runtime().timeout(limit, request).await.unwrap_or_else(late)
        })
    }
}

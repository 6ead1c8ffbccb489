//! Consumer of the engine in memory. One task sends heartbeats and waits for the release of revoked partitions. Each
//! call of [`Consumer::next`] fetches records.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use instants::Monotonic;
use runtime::TaskSet;
use tokio::sync::{Notify, mpsc};

use super::group::{Grant, MemberId};
use super::{Connection, RETRY_WAIT};
use crate::consumer::{Assigned, Commit, Event, RecordBatch};
use crate::ownership::{Ownership, Revoked};
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
    /// Partitions of the consumer. The engine stores the grant of each partition.
    ownership: Ownership<Grant>,
    is_closed: bool,
}

impl MemoryConsumer {
    pub(super) async fn join(connection: Connection, options: ConsumerOptions) -> Result<Self, BusError> {
        if options.topics.is_empty() || options.batch_records_max == 0 || options.session_timeout.is_zero() {
            let reason = "a consumer needs a topic, a session timeout above zero, and batches of at least one record";
            return Err(BusError::Invalid(reason.to_owned()));
        }
        options.check_name()?;
        let sent = connection.runtime().monotonic();
        let member = connection.call(|broker, now| broker.join(&options, now.monotonic)).await?;
        let state =
            State { member, ends: sent + options.session_timeout, ownership: Ownership::default(), is_closed: false };
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
            self.ownership.lose_all();
        }
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
                (state.member, state.ends, state.ownership.partitions())
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
                // An accepted commit may have renewed the session in this time.
                Some(Err(BusError::Disconnected(_))) | None if self.now() < self.state().ends => {}
                // The session has ended.
                Some(Err(_)) | None => {
                    self.state().ownership.lose_all();
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
        state.ends = state.ends.max(sent + self.options.session_timeout);
        let may_hold: BTreeSet<&Partition> = granted.iter().map(|(assigned, _)| &assigned.partition).collect();
        let deadline = now + self.options.revoke_timeout;
        if let Some(revoked) = state.ownership.revoke(deadline, |partition| !may_hold.contains(partition)) {
            // The receiver ends together with this task.
            drop(to_release.send(revoked));
        }
        // If the consumer has released a partition since it sent the heartbeat, the next heartbeat reports this.
        let is_new = |partition: &Partition| !held.contains(partition) && !state.ownership.contains(partition);
        let new = granted.into_iter().filter(|(assigned, _)| is_new(&assigned.partition)).collect();
        state.ownership.assign(new);
        if state.ownership.has_events() {
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
    async fn release(&self, revoked: Revoked) {
        let released = self.connection.runtime().timeout(self.options.revoke_timeout, revoked.released).await;
        self.state().ownership.release(revoked.number, released.is_some());
        self.changed.notify_one();
        self.released.notify_one();
    }

    fn deliver(&self, batch: RecordBatch) -> Option<Event> {
        let mut state = self.state();
        state.expire(self.now());
        let from = batch.records.first()?.offset;
        state.ownership.deliver(from, batch)
    }

    async fn next(&self) -> Result<Event, BusError> {
        loop {
            let ends = {
                let mut state = self.state();
                if state.is_closed {
                    return Err(BusError::Closed);
                }
                state.expire(self.now());
                if let Some(event) = state.ownership.take_event() {
                    return Ok(event);
                }
                // Without partitions, the end of the session causes no event.
                (!state.ownership.is_empty()).then_some(state.ends)
            };
            let mut appended = std::pin::pin!(self.connection.engine.appended.notified());
            appended.as_mut().enable();
            let wanted = self.state().ownership.wanted();
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

    /// Changes the partitions, and wakes the call of `next`.
    fn change(&self, change: impl FnOnce(&mut Ownership<Grant>)) {
        change(&mut self.state().ownership);
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
                let grant = |one: &Commit| state.ownership.known(&one.partition).map(|owned| owned.data);
                let granted = commits.into_iter().map(|one| grant(&one).map(|grant| (one, grant)));
                let granted = granted.collect::<Option<Vec<_>>>().ok_or(BusError::Fenced)?;
                (state.member, state.ends.since(shared.now()), granted)
            };
            if remaining == Duration::ZERO {
                return Err(BusError::Fenced);
            }
            let group = &shared.options.group;
            let sent = shared.now();
            let request = shared.connection.call(|broker, now| broker.commit(group, member, granted, now.monotonic));
            let late = || Err(BusError::Disconnected("the session ended before the response".to_owned()));
            shared.connection.runtime().timeout(remaining, request).await.unwrap_or_else(late)?;
            let mut state = shared.state();
            state.expire(shared.now());
            // The broker has renewed the session.
            if state.member == member {
                state.ends = state.ends.max(sent + shared.options.session_timeout);
            }
            Ok(())
        })
    }

    fn seek(&self, partition: &Partition, offset: Offset) {
        self.shared.change(|ownership| _ = ownership.seek(partition, offset));
    }

    fn pause(&self, partitions: &[Partition]) {
        self.shared.change(|ownership| ownership.set_paused(partitions, true));
    }

    fn resume(&self, partitions: &[Partition]) {
        self.shared.change(|ownership| ownership.set_paused(partitions, false));
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            let member = {
                let mut state = shared.state();
                if std::mem::replace(&mut state.is_closed, true) {
                    return Ok(());
                }
                state.ownership.clear();
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

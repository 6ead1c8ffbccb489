//! Owner of shards. It reads due rows ahead of their instants, fires the rows on time, writes outcomes and advances the
//! closed timestamps.
//!
//! The owner is one task with a window of known keys and a dispatch queue, which decides the order of the attempts. It
//! does no I/O itself. Reads and attempts run in separate tasks, which send their results in messages [`ToOwner`]. Each
//! iteration of the owner's loop reads the clock once and does all work that is due. After a panic, the next owner
//! reads its state from the store.
//!
//! The owner gains shards ([`ToOwner::Gained`]) and releases shards ([`ToOwner::Release`]) while it runs. The module
//! [`hand_over`] implements these steps.
//!
//! docs/decisions/0006-keep-a-burst-in-memory.md gives the reasons for the design.

mod hand_over;
mod reading;
mod starting;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Occurrence, ShardId, Timestamp};
use runtime::Monotonic;
use store::{Change, Cursor, InsertLogEntry, OwnerWrite, WriteRejection};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::ahead::is_ahead;
use crate::cluster::shards::ShardTerm;
use crate::firing::context::Context;
use crate::firing::dispatch::{DeferredKey, Dispatch, Lane, Limits, Now};
use crate::firing::governor::Pressure;
use crate::firing::messages::{Deferral, EndReason, Ended, PendingWrite, ReadDone, Then, ToOwner, ToWriter, WriteDone};
use crate::firing::owner::reading::{Read, read_due};
use crate::firing::steady::LEAP_ACCEPTED_AFTER;
use crate::firing::window::{Entry, EntryId, ReadKind, Window};
use crate::known_tenants::Known;
use crate::metrics::count_store_error;
use crate::options::Options;

/// Largest number of rows in one read of the insert logs.
const INSERT_LOG_ROWS_MAX: usize = 8_192;
/// Largest number of messages that the owner handles between two reads of the clock.
const MESSAGES_PER_TURN: usize = 64;
/// Largest number of overdue keys that the owner defers in one period.
const OVERDUE_PER_PERIOD: usize = 8_192;

/// Largest number of deferrals that the outcome writer has not written yet. An outcome waits behind at most this number
/// of deferrals.
const DEFERRING_MAX: usize = 1_024;
/// Time for which the owner delays a retry that the dispatch queue selects before the previous attempt has ended.
const ATTEMPT_WAIT: Duration = Duration::from_millis(50);

pub(crate) struct Owner {
    context: Arc<Context>,
    options: Options,
    window: Window,
    dispatch: Dispatch,
    /// Latest reading of the wall clock since the last call of [`Owner::report_ahead`].
    latest: Timestamp,
    messages: mpsc::Receiver<ToOwner>,
    nudge: Arc<Notify>,
    shards: Arc<[ShardId]>,
    cursor: Cursor,
    insert_log_wanted: bool,
    insert_log_read_pending: bool,
    /// True if the owner gained shards after the current read of the insert logs began. The cursor of that read may lie
    /// after unread rows of these shards.
    insert_log_read_incomplete: bool,
    reads_wanted: bool,
    /// Keys that the owner must write again at a later position.
    to_defer: VecDeque<(EntryId, Deferral)>,
    /// Number of deferrals that the outcome writer has not written yet.
    deferring: usize,
    /// Attempts that an earlier owner has in flight, with the instant by which each attempt must have ended.
    handed_over: BTreeMap<Occurrence, (EntryId, Timestamp)>,
    /// Outcomes of handed-over attempts and positions that the owner has not sent to the outcome writer yet, because
    /// the writer's queue was full. The owner never waits for the writer, because due keys would then wait for the
    /// disk.
    unsent: VecDeque<PendingWrite>,
    /// Time for which the governor holds starts back.
    pressure: Pressure,
    next_period: Monotonic,
    expired: Vec<EntryId>,
    /// Tenants from which the owner last computed the limits in the dispatch queue.
    limited_tenants: Arc<Known>,
    /// True if the owner gained or released pollers after it last set the limits.
    pollers_changed: bool,
}

impl Owner {
    pub(crate) fn new(
        context: Arc<Context>,
        options: Options,
        messages: mpsc::Receiver<ToOwner>,
        nudge: Arc<Notify>,
    ) -> Self {
        let now = context.clock.now();
        let monotonic = context.runtime.monotonic();
        Owner {
            window: Window::new(&options, now),
            dispatch: Dispatch::new(&options),
            latest: now,
            messages,
            nudge,
            shards: Arc::new([]),
            cursor: Cursor::default(),
            insert_log_wanted: true,
            insert_log_read_pending: false,
            insert_log_read_incomplete: false,
            reads_wanted: true,
            to_defer: VecDeque::new(),
            deferring: 0,
            handed_over: BTreeMap::new(),
            unsent: VecDeque::new(),
            pressure: Pressure::default(),
            next_period: monotonic,
            expired: Vec::new(),
            limited_tenants: Arc::default(),
            pollers_changed: true,
            context,
            options,
        }
    }

    /// Fires due rows until `stop`. Then waits for the attempts in flight, for at most [`Options::drain`].
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let runtime = self.context.runtime.clone();
        loop {
            self.run_once();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(message) = self.messages.recv() => self.take_messages(message),
                () = self.context.governor.has_room() => {}
                () = self.nudge.notified() => self.insert_log_wanted = true,
                () = runtime.sleep_until(wake) => {}
            }
        }
        self.drain().await;
    }

    fn take_messages(&mut self, first: ToOwner) {
        self.on_message(first);
        for _ in 1..MESSAGES_PER_TURN {
            let Ok(message) = self.messages.try_recv() else { return };
            self.on_message(message);
        }
    }

    /// Runs one iteration of the owner's loop: reads the clock once and does all work that is due.
    fn run_once(&mut self) {
        let Now { wall: now, monotonic } = self.read_clocks();
        self.fire(Now { wall: now, monotonic });
        self.send_unsent();
        // By the steady clock, a clock that was fast for a moment puts no row far ahead.
        self.defer(self.context.steady.now());
        if monotonic >= self.next_period {
            self.next_period = monotonic + self.options.period;
            self.set_limits();
            self.insert_log_wanted = true;
            self.reads_wanted = true;
            self.close(self.context.steady.now());
            self.send_unsent();
            let at = Now { wall: now, monotonic };
            let period = self.options.period;
            let periods = self.options.parked_for.as_millis().div_ceil(period.as_millis().max(1));
            let periods = u32::try_from(periods).unwrap_or(u32::MAX);
            for DeferredKey { poller, key } in self.dispatch.take_early(at) {
                self.window.add_early(poller, key, now);
            }
            let overdue = self.dispatch.take_overdue(periods, period, OVERDUE_PER_PERIOD, at);
            self.to_defer.extend(overdue.into_iter().map(|entry| (entry, Deferral::Waits)));
            self.expire_handed_over(self.context.steady.now());
            self.report_ahead(now);
            self.update_metrics(at);
        }
        if self.insert_log_wanted && !self.insert_log_read_pending {
            self.read_insert_log();
        }
        if self.reads_wanted {
            self.reads_wanted = false;
            let dispatch = &self.dispatch;
            let groups = self.window.plan_reads(now, |tenant| dispatch.demand(tenant));
            let ahead = |(index, read)| (index, ReadKind::Ahead, read);
            self.read(groups.into_iter().map(|group| group.into_iter().map(ahead).collect()).collect());
        }
    }

    /// Reads both clocks. Records the latest reading of the wall clock, so that [`Owner::report_ahead`] detects each
    /// time that the owner has used, even if the clock shows it for less than a period.
    fn read_clocks(&mut self) -> Now {
        let now = Now { wall: self.context.clock.now(), monotonic: self.context.runtime.monotonic() };
        self.latest = self.latest.max(now.wall);
        now
    }

    /// Reports the shards whose `closed` shows that this member's clock was ahead. Reports all shards if this member's
    /// clock has gone back. This member then takes these shards again and sets their positions and rows back.
    fn report_ahead(&mut self, now: Timestamp) {
        let (shards, ahead) = self.window.ahead_of(now);
        self.context.metrics.clock_behind_seconds.set(ahead.as_secs_f64());
        let was_at = std::mem::replace(&mut self.latest, now);
        if is_ahead(was_at, now) {
            self.context.events.report_ahead(self.shards.iter().copied(), was_at);
        } else if !shards.is_empty() {
            self.context.events.report_ahead(shards, Timestamp::MIN);
        }
    }

    /// Sets the tenants' limits in the dispatch queue if the tenants or the owned pollers have changed.
    fn set_limits(&mut self) {
        let tenants = self.context.tenants.known();
        if Arc::ptr_eq(&tenants, &self.limited_tenants) && !std::mem::take(&mut self.pollers_changed) {
            return;
        }
        for tenant in tenants.all() {
            let all = tenant.generations.iter().map(|pollers| u32::from(*pollers)).sum();
            let limits = Limits::of(&tenant.quotas, &self.options, self.window.pollers_of(tenant.id), all);
            self.dispatch.limit(tenant.id, limits);
        }
        self.limited_tenants = tenants;
        self.pollers_changed = false;
    }

    fn next_wake(&self) -> Monotonic {
        let now = self.context.clock.now();
        let monotonic = self.context.runtime.monotonic();
        // After `fire`, the owner may have handled ends of attempts while it waited for the outcome writer. A key may
        // therefore be able to start now. If the governor holds it back, the owner wakes as soon as there is room.
        if self.dispatch.may_start() && self.may_release(0, monotonic) {
            return monotonic;
        }
        let next = self.dispatch.next_wait().map_or(self.next_period, |wait| wait.min(self.next_period));
        match self.window.next_expiry() {
            Some(at) if at <= now => monotonic,
            Some(at) => next.min(monotonic + at.since(now)),
            None => next,
        }
    }

    /// Moves due keys into the lanes of the dispatch queue, and starts the keys that the queue selects.
    fn fire(&mut self, now: Now) {
        let mut expired = std::mem::take(&mut self.expired);
        self.window.expire(now.wall, &mut expired);
        // If a creator creates several schedules together, the store places them next to each other. The owner starts
        // keys with equal positions in the order of creation, so that a batch reads neighbouring schedules.
        expired.sort_by_cached_key(|entry| {
            let key = self.window.entry(*entry).key;
            (key.position, key.occurrence.incarnation)
        });
        let steady = self.context.steady.now();
        for entry in expired.drain(..) {
            let Entry { key: DueKey { position, attempt, .. }, is_early, .. } = *self.window.entry(entry);
            if attempt > 1 && position > steady && !is_early {
                // The clock has just leapt ahead, so the delay of the retry may not have passed. If the clock was
                // behind before the leap, the retry is due now. The owner cannot know this until the steady clock
                // follows.
                self.window.wait_again(entry, now.wall + position.since(steady).min(LEAP_ACCEPTED_AFTER));
                continue;
            }
            if !self.dispatch.push(self.lane(entry), entry, position) {
                self.to_defer.push_back((entry, Deferral::Waits));
            }
        }
        self.expired = expired;
        self.start_selected(now);
    }

    fn lane(&self, entry: EntryId) -> Lane {
        let known = self.window.entry(entry);
        (self.window.poller(known.poller).0.tenant, known.key.target)
    }

    /// Sends deferrals to the outcome writer. The number of unfinished deferrals is bounded, so that an outcome of
    /// another target does not wait long behind deferrals. This function never waits.
    fn defer(&mut self, now: Timestamp) {
        while self.deferring < DEFERRING_MAX {
            let Some((entry, why)) = self.to_defer.front().copied() else { return };
            let Ok(permit) = self.context.to_writer.try_reserve() else { return };
            self.to_defer.pop_front();
            let lane = self.lane(entry);
            let known = self.window.entry(entry);
            let (poller, ShardTerm { term, .. }) = self.window.poller(known.poller);
            let mut key = known.key;
            key.position = self.dispatch.defer_to(lane, now).max(key.position + Duration::from_millis(1));
            let write = OwnerWrite { term, poller, change: Change::Defer(key) };
            self.context.metrics.deferred.inc();
            self.deferring += 1;
            permit.send(ToWriter::Write(PendingWrite { write, then: Then::Deferred(entry, why) }));
        }
    }

    /// Remembers a deferred key, if the key can start before its new position. The backoff of a retry had passed when
    /// the retry entered the dispatch queue, so a retry can start early too.
    fn remember(&mut self, entry: EntryId, why: Deferral, key: DueKey) {
        if why == Deferral::Waits && !self.window.is_released(entry) {
            let poller = self.window.entry(entry).poller;
            self.dispatch.remember(self.lane(entry), DeferredKey { poller, key });
        }
    }

    fn close(&mut self, now: Timestamp) {
        let dispatch = &self.dispatch;
        for (index, positions) in self.window.plan_closings(now, |tenant| dispatch.demand(tenant)) {
            let (poller, ShardTerm { term, .. }) = self.window.poller(index);
            let write = OwnerWrite { term, poller, change: Change::Positions(positions) };
            self.unsent.push_back(PendingWrite { write, then: Then::Positions(index) });
        }
    }

    /// Sends writes to the outcome writer while its queue has space. The writer reports each completed write to the
    /// owner, so the owner then sends further writes.
    fn send_unsent(&mut self) {
        while !self.unsent.is_empty() {
            let Ok(permit) = self.context.to_writer.try_reserve() else { return };
            if let Some(pending_write) = self.unsent.pop_front() {
                permit.send(ToWriter::Write(pending_write));
            }
        }
    }

    fn on_message(&mut self, message: ToOwner) {
        match message {
            ToOwner::Read(done) => self.on_read(done),
            ToOwner::InsertLog(arrivals) => self.on_insert_log(arrivals),
            ToOwner::Written(done) => self.on_written(done),
            ToOwner::DueRow(arrival) => self.on_due_row(&arrival),
            ToOwner::Gained(gained) => self.gain(gained),
            ToOwner::Release(shards, sender) => {
                let _receiver_is_gone = sender.send(self.release(&shards));
            }
            ToOwner::Waiting(waiting, sender) => {
                let _receiver_is_gone = sender.send(self.delay_now(waiting));
            }
            ToOwner::Outcome(outcome, origin, sender) => {
                let _receiver_is_gone = sender.send(self.accept_outcome(outcome, origin));
            }
            ToOwner::Ended(ended) => {
                let now = self.read_clocks();
                for ended in ended {
                    self.on_ended(ended, now);
                }
            }
        }
    }

    fn on_ended(&mut self, ended: Ended, now: Now) {
        if let Some(cost) = ended.cost {
            self.dispatch.record_cost(ended.lane.0, cost);
        }
        self.dispatch.ended(ended.lane, now, ended.health);
        if ended.reason == EndReason::Writing {
            return;
        }
        self.dispatch.resolved(ended.lane.0);
        if self.window.is_released(ended.entry) {
            self.window.free(ended.entry);
            return;
        }
        let key = self.window.entry(ended.entry).key;
        self.context.in_flight.remove(&key.occurrence);
        match ended.reason {
            EndReason::Writing => unreachable!("returned above"),
            EndReason::Dropped => {
                self.context.metrics.dropped.inc();
                self.window.resolve(ended.entry);
            }
            EndReason::NotDue => self.window.wait_again(ended.entry, key.position.max(key.occurrence.nominal)),
            EndReason::NotCreated | EndReason::Released | EndReason::Unavailable => {
                self.window.wait_again(ended.entry, now.wall + self.options.period)
            }
            EndReason::Unreadable => self.to_defer.push_back((ended.entry, Deferral::Unreadable)),
        }
    }

    fn on_written(&mut self, done: Vec<WriteDone>) {
        for done in done {
            if done.refusal == Some(WriteRejection::Superseded) {
                self.superseded(done.poller, done.term, done.outcome);
            }
            match done.then {
                Then::Nothing => {}
                Then::Resolve(entry) => {
                    self.dispatch.resolved(done.poller.tenant);
                    if !self.window.is_released(entry) {
                        self.context.in_flight.remove(&self.window.entry(entry).key.occurrence);
                    }
                    self.window.resolve(entry);
                }
                Then::Deferred(entry, why) => {
                    self.deferring -= 1;
                    match done.row {
                        Some(row) => {
                            self.remember(entry, why, row.key);
                            self.window.deferred(entry, row.key.position);
                        }
                        None => self.window.resolve(entry),
                    }
                }
                Then::Positions(index) => {
                    let dispatch = &self.dispatch;
                    let demand = |tenant| dispatch.demand(tenant);
                    if let Some(read) = self.window.positions_written(index, done.positions, demand) {
                        self.read(vec![vec![(index, ReadKind::Check, read)]]);
                    }
                }
            }
            if let Some(row) = done.row {
                let is_first_attempt = row.key.attempt == 1 && row.key.occurrence.replay == 0;
                if is_first_attempt && !matches!(done.then, Then::Deferred(..)) {
                    self.window.set_recurring(row.poller);
                }
                self.on_due_row(&row);
            }
        }
    }

    fn on_read(&mut self, done: Vec<ReadDone>) {
        for (index, kind, read, page) in done {
            match page {
                None => self.window.read_failed(index, kind),
                Some(page) => {
                    let dispatch = &self.dispatch;
                    let demand = |tenant| dispatch.demand(tenant);
                    if let Some(more) = self.window.read(index, kind, read, &page, demand) {
                        self.read(vec![vec![(index, kind, more)]]);
                    } else if kind == ReadKind::Ahead && page.keys.len() == read.limit {
                        self.reads_wanted = true;
                    }
                }
            }
        }
    }

    fn on_insert_log(&mut self, arrivals: Option<(Vec<InsertLogEntry>, Cursor)>) {
        self.insert_log_read_pending = false;
        let Some((arrivals, cursor)) = arrivals else { return };
        if std::mem::take(&mut self.insert_log_read_incomplete) {
            self.insert_log_wanted = true;
        } else {
            self.cursor = cursor;
        }
        self.insert_log_wanted |= arrivals.len() >= INSERT_LOG_ROWS_MAX;
        for arrival in arrivals {
            self.on_due_row(&arrival);
        }
    }

    fn on_due_row(&mut self, arrival: &InsertLogEntry) {
        self.reads_wanted = true;
        if !self.window.add_written_row(arrival) && self.shards.contains(&arrival.poller.shard()) {
            self.context.events.report_unknown_poller();
        }
    }

    fn read_insert_log(&mut self) {
        self.insert_log_wanted = false;
        self.insert_log_read_pending = true;
        let (context, shards, cursor) = (self.context.clone(), self.shards.clone(), self.cursor);
        let deadline = self.context.lease.deadline();
        let task = async move {
            let arrivals = match context.store.insert_log(shards, cursor, INSERT_LOG_ROWS_MAX).await {
                Ok(arrivals) if context.runtime.monotonic() < deadline => Some(arrivals),
                // Another member may own the shards now. If this owner sent the cursor of this read to the store, the
                // store would delete rows of the insert log that the new owner has not read.
                Ok(_) => None,
                Err(error) => {
                    count_store_error(&context.metrics, "arrivals", &error);
                    None
                }
            };
            let _owner_is_gone = context.to_owner.send(ToOwner::InsertLog(arrivals)).await;
        };
        drop(self.context.runtime.spawn("arrivals", task));
    }

    fn read(&self, groups: Vec<Vec<Read>>) {
        for reads in reading::tasks(groups) {
            drop(self.context.runtime.spawn("read", read_due(self.context.clone(), reads)));
        }
    }

    fn update_metrics(&mut self, now: Now) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = &self.context.metrics;
        metrics.window_keys.set(count(self.window.len()));
        let (deferred, oldest) = self.window.overdue(now.wall);
        metrics.due_backlog.set(count(self.dispatch.parked() + self.to_defer.len() + deferred));
        metrics.in_flight.set(count(self.dispatch.unresolved()));
        metrics.throttled.inc_by(self.dispatch.take_throttled());
        metrics.open_circuits.set(count(self.dispatch.open_circuits(now.monotonic)));
        let age = oldest.map_or(Duration::ZERO, |oldest| now.wall.since(oldest));
        metrics.oldest_due_seconds.set(age.as_secs_f64());
    }

    async fn drain(&mut self) {
        let runtime = self.context.runtime.clone();
        let deadline = runtime.monotonic() + self.options.drain;
        while self.dispatch.unresolved() > 0 && runtime.monotonic() < deadline {
            self.send_unsent();
            tokio::select! {
                biased;
                Some(message) = self.messages.recv() => self.on_message(message),
                () = runtime.sleep_until(deadline) => {}
            }
        }
        if self.dispatch.unresolved() > 0 {
            tracing::warn!(
                attempts = self.dispatch.unresolved(),
                "owner stopped before these attempts had an outcome; the next owner will repeat the attempts"
            );
        }
    }
}

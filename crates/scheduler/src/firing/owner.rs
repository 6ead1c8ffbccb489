//! The owner of shards: reads ahead, fires on time, books, and closes stretches behind itself.
//!
//! One task with a window (what is known), a dispatch queue (who goes next) and no I/O of its own: every read and every
//! attempt runs in a task that reports with a message [`ToOwner`]. A turn of the loop looks at the clock once and does all that
//! is due. What it knows can be rebuilt from the store at any time, which is what happens if it panics.
//!
//! Shards come ([`ToOwner::Gained`]) and go ([`ToOwner::Release`]) while it runs: see [`hand_over`].

mod hand_over;
mod reading;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use domain::{Occurrence, ShardId, Timestamp};
use runtime::Monotonic;
use store::{Arrival, Change, Cursor, DueRead, OwnerWrite, WriteRefusal};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::cluster::shards::ShardTerm;
use crate::firing::context::Context;
use crate::firing::dispatch::{Dispatch, Lane, Limits, Now};
use crate::firing::messages::{Ended, HowEnded, PendingWrite, ReadDone, Then, ToOwner, ToWriter, WriteDone};
use crate::firing::owner::reading::read_due;
use crate::firing::run_executor::{Starting, start};
use crate::firing::steady::SteadyClock;
use crate::firing::window::{EntryId, MayStart, PollerIndex, ReadKind, Window};
use crate::known_tenants::Known;
use crate::metrics::count_store_error;
use crate::options::Options;

/// Pollers that one call of the store reads at most.
const READS_PER_CALL: usize = 8;
/// Keys that one task starts.
const STARTS_PER_TASK: usize = 32;
/// Due rows that one look at the arrivals brings at most.
const ARRIVALS_MAX: usize = 8_192;
/// Messages that one turn takes before it looks at the clock again.
const MESSAGES_PER_TURN: usize = 64;
/// Keys that one period defers because they waited too long.
const OVERDUE_PER_PERIOD: usize = 8_192;

/// Deferrals that are written at a time: so long does an outcome wait behind them at most.
const DEFERRING_MAX: usize = 1_024;
/// How long a retry waits that has its turn before the attempt ahead of it has ended.
const ATTEMPT_WAIT: Duration = Duration::from_millis(50);

pub(crate) struct Owner {
    context: Arc<Context>,
    options: Options,
    window: Window,
    dispatch: Dispatch,
    steady: SteadyClock,
    messages: mpsc::Receiver<ToOwner>,
    nudge: Arc<Notify>,
    shards: Arc<[ShardId]>,
    cursor: Cursor,
    arrivals_wanted: bool,
    arrivals_under_way: bool,
    /// Shards came since the look at the arrivals that is under way began: its cursor passes over theirs.
    arrivals_incomplete: bool,
    reads_wanted: bool,
    /// Keys from their start until they are settled.
    unsettled: usize,
    /// Keys to write again at a later position, and how many of them are being written.
    to_defer: VecDeque<EntryId>,
    deferring: usize,
    /// Attempts that an earlier owner has in flight, and until when.
    held: BTreeMap<Occurrence, (EntryId, Timestamp)>,
    /// Outcomes of such attempts, to be written.
    outcomes: Vec<PendingWrite>,
    next_period: Monotonic,
    expired: Vec<EntryId>,
    /// The tenants whose limits were set.
    limited: Arc<Known>,
    /// Pollers came or went since.
    shares_moved: bool,
}

impl Owner {
    pub(crate) fn new(
        context: Arc<Context>,
        options: Options,
        messages: mpsc::Receiver<ToOwner>,
        nudge: Arc<Notify>,
    ) -> Self {
        let now = context.runtime.now();
        let monotonic = context.runtime.monotonic();
        Owner {
            window: Window::new(&options, now),
            dispatch: Dispatch::new(&options),
            steady: SteadyClock::new(now, monotonic),
            messages,
            nudge,
            shards: Arc::new([]),
            cursor: Cursor::default(),
            arrivals_wanted: true,
            arrivals_under_way: false,
            arrivals_incomplete: false,
            reads_wanted: true,
            unsettled: 0,
            to_defer: VecDeque::new(),
            deferring: 0,
            held: BTreeMap::new(),
            outcomes: Vec::new(),
            next_period: monotonic,
            expired: Vec::new(),
            limited: Arc::default(),
            shares_moved: true,
            context,
            options,
        }
    }

    /// Serves until `stop`, then waits for what is in flight, up to [`Options::drain`].
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let runtime = self.context.runtime.clone();
        loop {
            self.turn().await;
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(message) = self.messages.recv() => self.take_messages(message),
                () = self.nudge.notified() => self.arrivals_wanted = true,
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

    /// Does everything that is due now.
    async fn turn(&mut self) {
        let now = self.context.runtime.now();
        let monotonic = self.context.runtime.monotonic();
        self.fire(Now { wall: now, monotonic });
        self.defer(now);
        for outcome in std::mem::take(&mut self.outcomes) {
            self.write(outcome).await;
        }
        if monotonic >= self.next_period {
            self.next_period = monotonic + self.options.period;
            self.set_limits();
            self.arrivals_wanted = true;
            self.reads_wanted = true;
            let steady = self.steady.at(now, monotonic);
            self.close(steady).await;
            let at = Now { wall: now, monotonic };
            let overdue = self.dispatch.take_overdue(now - self.options.parked_for, OVERDUE_PER_PERIOD, at);
            self.to_defer.extend(overdue);
            self.end_holds(now);
            self.show(at);
        }
        if self.arrivals_wanted && !self.arrivals_under_way {
            self.read_arrivals();
        }
        if self.reads_wanted {
            self.reads_wanted = false;
            let dispatch = &self.dispatch;
            let reads = self.window.plan_reads(now, |tenant| dispatch.room(tenant));
            self.read(reads.into_iter().map(|(index, read)| (index, ReadKind::Ahead, read)).collect());
        }
    }

    /// Tells the dispatch queue what the tenants may do here, if that, or what is owned, is other than it was.
    fn set_limits(&mut self) {
        let tenants = self.context.tenants.known();
        if Arc::ptr_eq(&tenants, &self.limited) && !std::mem::take(&mut self.shares_moved) {
            return;
        }
        for tenant in tenants.all() {
            let all = tenant.generations.iter().map(|pollers| u32::from(*pollers)).sum();
            let limits = Limits::of(&tenant.quotas, &self.options, self.window.pollers_of(tenant.id), all);
            self.dispatch.limit(tenant.id, limits);
        }
        self.limited = tenants;
        self.shares_moved = false;
    }

    fn next_wake(&self) -> Monotonic {
        let now = self.context.runtime.now();
        let monotonic = self.context.runtime.monotonic();
        let next = self.dispatch.next_wait().map_or(self.next_period, |wait| wait.min(self.next_period));
        match self.window.next_expiry() {
            Some(at) if at <= now => monotonic,
            Some(at) => next.min(monotonic + at.since(now)),
            None => next,
        }
    }

    /// Moves what is due into the lanes, and starts what has a turn.
    fn fire(&mut self, now: Now) {
        let mut expired = std::mem::take(&mut self.expired);
        self.window.expire(now.wall, &mut expired);
        // Schedules made together lie together in the store: what is due together is read in the order of its making.
        expired.sort_by_cached_key(|entry| {
            let key = self.window.entry(*entry).key;
            (key.position, key.occurrence.incarnation)
        });
        for entry in expired.drain(..) {
            let position = self.window.entry(entry).key.position;
            if !self.dispatch.push(self.lane(entry), entry, position) {
                self.to_defer.push_back(entry);
            }
        }
        self.expired = expired;
        let mut batch = Vec::new();
        while self.unsettled < self.options.in_flight_max {
            let Some(entry) = self.dispatch.pop(now) else { break };
            match self.window.may_start(entry) {
                MayStart::Yes => {}
                MayStart::Superseded => {
                    self.dispatch.ended(self.lane(entry), now, None);
                    self.context.metrics.dropped.inc();
                    self.window.resolve(entry);
                    continue;
                }
                MayStart::NotYet => {
                    self.dispatch.ended(self.lane(entry), now, None);
                    self.window.wait_again(entry, now.wall + ATTEMPT_WAIT);
                    continue;
                }
            }
            self.unsettled += 1;
            batch.push(self.starting(entry));
            if batch.len() == STARTS_PER_TASK {
                self.start(std::mem::take(&mut batch));
            }
        }
        self.start(batch);
    }

    fn starting(&self, entry: EntryId) -> Starting {
        let held = self.window.entry(entry);
        let (poller, shard_term) = self.window.poller(held.poller);
        self.context.in_flight.add(poller, held.key, shard_term.term);
        Starting {
            entry,
            lane: self.lane(entry),
            key: held.key,
            poller,
            shard_term,
            deadline: self.context.lease.deadline(),
            is_closed: self.window.is_closed(entry),
        }
    }

    fn start(&self, batch: Vec<Starting>) {
        if !batch.is_empty() {
            let task = start(self.context.clone(), batch);
            drop(self.context.runtime.spawn("start", task));
        }
    }

    fn lane(&self, entry: EntryId) -> Lane {
        let held = self.window.entry(entry);
        (self.window.poller(held.poller).0.tenant, held.key.target)
    }

    /// Books a part of what is to be deferred: never so much that an outcome of another target waits long behind it, and
    /// never waiting itself.
    fn defer(&mut self, now: Timestamp) {
        while self.deferring < DEFERRING_MAX {
            let Some(entry) = self.to_defer.front().copied() else { return };
            let Ok(permit) = self.context.to_writer.try_reserve() else { return };
            self.to_defer.pop_front();
            let lane = self.lane(entry);
            let held = self.window.entry(entry);
            let (poller, ShardTerm { term, .. }) = self.window.poller(held.poller);
            let mut key = held.key;
            key.position = self.dispatch.defer_to(lane, now).max(key.position + Duration::from_millis(1));
            let write = OwnerWrite { term, poller, change: Change::Defer(key) };
            self.context.metrics.deferred.inc();
            self.deferring += 1;
            permit.send(ToWriter::Write(PendingWrite { write, then: Then::Deferred(entry) }));
        }
    }

    async fn close(&mut self, now: Timestamp) {
        let dispatch = &self.dispatch;
        for (index, positions) in self.window.plan_closings(now, |tenant| dispatch.room(tenant)) {
            let (poller, ShardTerm { term, .. }) = self.window.poller(index);
            let write = OwnerWrite { term, poller, change: Change::Positions(positions) };
            self.write(PendingWrite { write, then: Then::Positions(index) }).await;
        }
    }

    /// The outcome writer waits for nothing but the store and this owner's events, so while its queue is full they are
    /// taken.
    async fn write(&mut self, pending_write: PendingWrite) {
        let to_writer = self.context.to_writer.clone();
        let permit = to_writer.reserve();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => {
                    permit.expect("the outcome writer lives as long as its owner").send(ToWriter::Write(pending_write));
                    return;
                }
                Some(message) = self.messages.recv() => self.on_message(message),
            }
        }
    }

    fn on_message(&mut self, message: ToOwner) {
        match message {
            ToOwner::Read(done) => self.on_read(done),
            ToOwner::Arrivals(arrivals) => self.on_arrivals(arrivals),
            ToOwner::Written(done) => self.on_booked(done),
            ToOwner::Arrived(arrival) => self.on_arrival(&arrival),
            ToOwner::Gained(gained) => self.gain(gained),
            ToOwner::Release(shards, tell) => {
                let _nobody_waits = tell.send(self.release(&shards));
            }
            ToOwner::Outcome(outcome, tell) => {
                let _nobody_waits = tell.send(self.take_outcome(outcome));
            }
            ToOwner::Ended(ended) => {
                let runtime = &self.context.runtime;
                let now = Now { wall: runtime.now(), monotonic: runtime.monotonic() };
                for ended in ended {
                    self.on_ended(ended, now);
                }
            }
        }
    }

    fn on_ended(&mut self, ended: Ended, now: Now) {
        self.dispatch.ended(ended.lane, now, ended.says);
        if ended.how == HowEnded::Writing {
            return;
        }
        self.unsettled -= 1;
        if self.window.is_gone(ended.entry) {
            self.window.free(ended.entry);
            return;
        }
        let key = self.window.entry(ended.entry).key;
        self.context.in_flight.remove(&key.occurrence);
        match ended.how {
            HowEnded::Writing => unreachable!("returned above"),
            HowEnded::Dropped => {
                self.context.metrics.dropped.inc();
                self.window.resolve(ended.entry);
            }
            HowEnded::NotYet => self.window.wait_again(ended.entry, key.position),
            HowEnded::Unborn | HowEnded::Released | HowEnded::Unavailable => {
                self.window.wait_again(ended.entry, now.wall + self.options.period)
            }
            HowEnded::Unreadable => self.to_defer.push_back(ended.entry),
        }
    }

    fn on_booked(&mut self, done: Vec<WriteDone>) {
        for done in done {
            if done.refusal == Some(WriteRefusal::Superseded) {
                self.superseded(done.poller, done.term, done.outcome);
            }
            match done.then {
                Then::Nothing => {}
                Then::Resolve(entry) => {
                    self.unsettled -= 1;
                    if !self.window.is_gone(entry) {
                        self.context.in_flight.remove(&self.window.entry(entry).key.occurrence);
                    }
                    self.window.resolve(entry);
                }
                Then::Deferred(entry) => {
                    self.deferring -= 1;
                    match done.row {
                        Some(row) => self.window.deferred(entry, row.key.position),
                        None => self.window.resolve(entry),
                    }
                }
                Then::Positions(index) => {
                    let dispatch = &self.dispatch;
                    let useful = |tenant| dispatch.room(tenant);
                    if let Some(read) = self.window.positions_written(index, done.positions, useful) {
                        self.read(vec![(index, ReadKind::Check, read)]);
                    }
                }
            }
            if let Some(row) = done.row {
                self.on_arrival(&row);
            }
        }
    }

    fn on_read(&mut self, done: Vec<ReadDone>) {
        for (index, kind, read, page) in done {
            match page {
                None => self.window.read_failed(index, kind),
                Some(page) => {
                    let dispatch = &self.dispatch;
                    let useful = |tenant| dispatch.room(tenant);
                    if let Some(more) = self.window.read(index, kind, read, &page, useful) {
                        self.read(vec![(index, kind, more)]);
                    } else if kind == ReadKind::Ahead && page.keys.len() == read.limit {
                        self.reads_wanted = true;
                    }
                }
            }
        }
    }

    fn on_arrivals(&mut self, arrivals: Option<(Vec<Arrival>, Cursor)>) {
        self.arrivals_under_way = false;
        let Some((arrivals, cursor)) = arrivals else { return };
        if std::mem::take(&mut self.arrivals_incomplete) {
            self.arrivals_wanted = true;
        } else {
            self.cursor = cursor;
        }
        self.arrivals_wanted |= arrivals.len() >= ARRIVALS_MAX;
        for arrival in arrivals {
            self.on_arrival(&arrival);
        }
    }

    fn on_arrival(&mut self, arrival: &Arrival) {
        self.reads_wanted = true;
        if !self.window.arrived(arrival) && self.shards.contains(&arrival.poller.shard()) {
            self.context.events.report_unknown_poller();
        }
    }

    fn read_arrivals(&mut self) {
        self.arrivals_wanted = false;
        self.arrivals_under_way = true;
        let (context, shards, cursor) = (self.context.clone(), self.shards.clone(), self.cursor);
        let deadline = self.context.lease.deadline();
        let task = async move {
            let arrivals = match context.store.arrivals(shards, cursor, ARRIVALS_MAX).await {
                Ok(arrivals) if context.runtime.monotonic() < deadline => Some(arrivals),
                // Another may own the shards by now. To present this cursor would have the engine forget what came for it.
                Ok(_) => None,
                Err(error) => {
                    count_store_error(&context.metrics, "arrivals", &error);
                    None
                }
            };
            let _owner_is_gone = context.to_owner.send(ToOwner::Arrivals(arrivals)).await;
        };
        drop(self.context.runtime.spawn("arrivals", task));
    }

    fn read(&self, reads: Vec<(PollerIndex, ReadKind, DueRead)>) {
        for chunk in reads.chunks(READS_PER_CALL) {
            let task = read_due(self.context.clone(), chunk.to_vec());
            drop(self.context.runtime.spawn("read", task));
        }
    }

    fn show(&mut self, now: Now) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = &self.context.metrics;
        metrics.window_keys.set(count(self.window.len()));
        metrics.due_backlog.set(count(self.dispatch.parked() + self.to_defer.len()));
        metrics.in_flight.set(count(self.unsettled));
        metrics.throttled.inc_by(self.dispatch.take_throttled());
        metrics.open_circuits.set(count(self.dispatch.open_circuits(now.monotonic)));
        let age = self.window.oldest_open().map_or(Duration::ZERO, |oldest| now.wall.since(oldest));
        metrics.oldest_due_seconds.set(age.as_secs_f64());
    }

    async fn drain(&mut self) {
        let runtime = self.context.runtime.clone();
        let deadline = runtime.monotonic() + self.options.drain;
        while self.unsettled > 0 && runtime.monotonic() < deadline {
            tokio::select! {
                biased;
                Some(message) = self.messages.recv() => self.on_message(message),
                () = runtime.sleep_until(deadline) => {}
            }
        }
        if self.unsettled > 0 {
            tracing::warn!(
                attempts = self.unsettled,
                "stopped before these attempts had an outcome; they will be made again"
            );
        }
    }
}

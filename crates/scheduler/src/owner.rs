//! The owner of shards: reads ahead, fires on time, books, and closes stretches behind itself.
//!
//! One task with a window (what is known), a dispatch queue (who goes next) and no I/O of its own: every read and every
//! attempt runs in a task that reports with an [`Event`]. A turn of the loop looks at the clock once and does all that
//! is due. What it knows can be rebuilt from the store at any time, which is what happens if it panics.
//!
//! Shards come ([`Event::Gained`]) and go ([`Event::LetGo`]) while it runs: see [`tenure`].

mod reading;
mod tenure;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use domain::{Occurrence, PollerId, ShardId, Term, Timestamp};
use runtime::{Monotonic, Runtime};
use store::{Arrival, Change, Cursor, DuePage, DueRead, HandedOver, OwnerWrite, Positions, Store, WriteRefusal};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::bookkeeper::{Booked, Booking, Then, ToBook, count_store_error};
use crate::deliver::Deliver;
use crate::dispatch::{Dispatch, Lane, Limits, Now, TargetSays};
use crate::in_flight::InFlight;
use crate::lease::Lease;
use crate::metrics::Metrics;
use crate::peers::Outcome;
use crate::starter::{Starting, start};
use crate::steady::SteadyClock;
use crate::known_tenants::{Known, KnownTenants};
use crate::window::{EntryId, MayStart, PollerIndex, ReadKind, Tenure, Window};
use reading::read_due;

/// Pollers that one call of the store reads at most.
const READS_PER_CALL: usize = 8;
/// Keys that one task starts.
const STARTS_PER_TASK: usize = 32;
/// Due rows that one look at the arrivals brings at most.
const ARRIVALS_MAX: usize = 8_192;
/// Events that one turn takes before it looks at the clock again.
const EVENTS_PER_TURN: usize = 64;
/// Keys that one period defers because they waited too long.
const OVERDUE_PER_PERIOD: usize = 8_192;

/// Deferrals that are written at a time: so long does an outcome wait behind them at most.
const DEFERRING_MAX: usize = 1_024;
/// How long a retry waits that has its turn before the attempt ahead of it has ended.
const ATTEMPT_WAIT: Duration = Duration::from_millis(50);

/// What the owner and its tasks share.
pub(crate) struct Context {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) tenants: Arc<KnownTenants>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) bookings: mpsc::Sender<ToBook>,
    pub(crate) events: mpsc::Sender<Event>,
    /// What the owner has to tell of its shards.
    pub(crate) news: mpsc::UnboundedSender<News>,
}

/// One read of due rows that has ended.
pub(crate) type ReadDone = (PollerIndex, ReadKind, DueRead, Option<DuePage>);

#[derive(Debug)]
pub(crate) enum Event {
    Read(Vec<ReadDone>),
    Arrivals(Option<(Vec<Arrival>, Cursor)>),
    Ended(Vec<Ended>),
    Booked(Vec<Booked>),
    /// A due row that a user's change wrote.
    Arrived(Arrival),
    Gained(Gained),
    /// Answered with the attempts in flight: from then on none of these shards' starts, and their outcomes are on their
    /// way to the bookkeeper.
    LetGo(BTreeSet<ShardId>, oneshot::Sender<Vec<HandedOver>>),
    /// The outcome of an attempt that an earlier owner had in flight; answered with whether
    /// anybody waited for it.
    Outcome(Outcome, oneshot::Sender<bool>),
}

/// Shards, or pollers of theirs, that are owned from now on.
#[derive(Debug, Default)]
pub(crate) struct Gained {
    pub(crate) shards: Vec<ShardId>,
    pub(crate) pollers: Vec<(PollerId, Tenure, Positions)>,
    pub(crate) held: Vec<HandedOver>,
}

/// What an owner finds out about its shards.
#[derive(Debug)]
pub(crate) enum News {
    /// Another has taken this one, which was owned under this term; it is let go of already.
    Superseded(ShardId, Term),
    /// A due row lies in a poller that was not gained with its shard: a tenant has more pollers now.
    UnknownPoller,
    /// The outcome of an attempt whose shard has another owner by now.
    Outcome(Outcome),
    /// Rows that are due soon have come to shards that others own.
    Near(BTreeSet<ShardId>),
}

/// A key has left its target's lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) lane: Lane,
    pub(crate) entry: EntryId,
    pub(crate) how: HowEnded,
    /// What an attempt told of its target; `None` if there was none.
    pub(crate) says: Option<TargetSays>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HowEnded {
    /// A booking is under way, and will settle the key.
    Booking,
    /// It came to nothing, and nothing needs to be booked.
    Dropped,
    /// Its schedule cannot be read as it is: what is stored is damaged, or not understood.
    Unreadable,
    /// The store could not be reached.
    Unavailable,
    /// By this clock it is not due: the clock went back.
    NotYet,
    /// Its schedule is not there, and may be about to be.
    Unborn,
    /// Its shard was let go of, or the lease on it ended, before it began.
    LetGo,
}

pub(crate) struct Owner {
    context: Arc<Context>,
    options: Options,
    window: Window,
    dispatch: Dispatch,
    steady: SteadyClock,
    events: mpsc::Receiver<Event>,
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
    /// Outcomes of such attempts, to be booked.
    outcomes: Vec<Booking>,
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
        events: mpsc::Receiver<Event>,
        nudge: Arc<Notify>,
    ) -> Self {
        let now = context.runtime.now();
        let monotonic = context.runtime.monotonic();
        Owner {
            window: Window::new(&options, now),
            dispatch: Dispatch::new(&options),
            steady: SteadyClock::new(now, monotonic),
            events,
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
                Some(event) = self.events.recv() => self.take_events(event),
                () = self.nudge.notified() => self.arrivals_wanted = true,
                () = runtime.sleep_until(wake) => {}
            }
        }
        self.drain().await;
    }

    fn take_events(&mut self, first: Event) {
        self.on_event(first);
        for _ in 1..EVENTS_PER_TURN {
            let Ok(event) = self.events.try_recv() else { return };
            self.on_event(event);
        }
    }

    /// Does everything that is due now.
    async fn turn(&mut self) {
        let now = self.context.runtime.now();
        let monotonic = self.context.runtime.monotonic();
        self.fire(Now { wall: now, monotonic });
        self.defer(now);
        for outcome in std::mem::take(&mut self.outcomes) {
            self.book(outcome).await;
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
        let (poller, tenure) = self.window.poller(held.poller);
        self.context.in_flight.add(poller, held.key, tenure.term);
        Starting {
            entry,
            lane: self.lane(entry),
            key: held.key,
            poller,
            tenure,
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
            let Ok(permit) = self.context.bookings.try_reserve() else { return };
            self.to_defer.pop_front();
            let lane = self.lane(entry);
            let held = self.window.entry(entry);
            let (poller, Tenure { term, .. }) = self.window.poller(held.poller);
            let mut key = held.key;
            key.position = self.dispatch.defer_to(lane, now).max(key.position + Duration::from_millis(1));
            let write = OwnerWrite { term, poller, change: Change::Defer(key) };
            self.context.metrics.deferred.inc();
            self.deferring += 1;
            permit.send(ToBook::Booking(Booking { write, then: Then::Deferred(entry) }));
        }
    }

    async fn close(&mut self, now: Timestamp) {
        let dispatch = &self.dispatch;
        for (index, positions) in self.window.plan_closings(now, |tenant| dispatch.room(tenant)) {
            let (poller, Tenure { term, .. }) = self.window.poller(index);
            let write = OwnerWrite { term, poller, change: Change::Positions(positions) };
            self.book(Booking { write, then: Then::Positions(index) }).await;
        }
    }

    /// The bookkeeper waits for nothing but the store and this owner's events, so while its queue is full they are
    /// taken.
    async fn book(&mut self, booking: Booking) {
        let bookings = self.context.bookings.clone();
        let permit = bookings.reserve();
        tokio::pin!(permit);
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => {
                    permit.expect("the bookkeeper lives as long as its owner").send(ToBook::Booking(booking));
                    return;
                }
                Some(event) = self.events.recv() => self.on_event(event),
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Read(done) => self.on_read(done),
            Event::Arrivals(arrivals) => self.on_arrivals(arrivals),
            Event::Booked(booked) => self.on_booked(booked),
            Event::Arrived(arrival) => self.on_arrival(&arrival),
            Event::Gained(gained) => self.gain(gained),
            Event::LetGo(shards, tell) => {
                let _nobody_waits = tell.send(self.let_go(&shards));
            }
            Event::Outcome(outcome, tell) => {
                let _nobody_waits = tell.send(self.take_outcome(outcome));
            }
            Event::Ended(ended) => {
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
        if ended.how == HowEnded::Booking {
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
            HowEnded::Booking => unreachable!("returned above"),
            HowEnded::Dropped => {
                self.context.metrics.dropped.inc();
                self.window.resolve(ended.entry);
            }
            HowEnded::NotYet => self.window.wait_again(ended.entry, key.position),
            HowEnded::Unborn | HowEnded::LetGo | HowEnded::Unavailable => {
                self.window.wait_again(ended.entry, now.wall + self.options.period)
            }
            HowEnded::Unreadable => self.to_defer.push_back(ended.entry),
        }
    }

    fn on_booked(&mut self, booked: Vec<Booked>) {
        for booked in booked {
            if booked.refusal == Some(WriteRefusal::Superseded) {
                self.superseded(booked.poller, booked.term, booked.outcome);
            }
            match booked.then {
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
                    match booked.row {
                        Some(row) => self.window.deferred(entry, row.key.position),
                        None => self.window.resolve(entry),
                    }
                }
                Then::Positions(index) => {
                    let dispatch = &self.dispatch;
                    let useful = |tenant| dispatch.room(tenant);
                    if let Some(read) = self.window.positions_written(index, booked.positions, useful) {
                        self.read(vec![(index, ReadKind::Check, read)]);
                    }
                }
            }
            if let Some(row) = booked.row {
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
            self.tell(News::UnknownPoller);
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
            let _owner_is_gone = context.events.send(Event::Arrivals(arrivals)).await;
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
                Some(event) = self.events.recv() => self.on_event(event),
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

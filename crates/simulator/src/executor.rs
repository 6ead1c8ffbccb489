//! Tasks, timers and members behind one lock, and the loop that polls in an order drawn from the seed.
//!
//! Always true here: no future is polled or dropped, and no waker called, while the lock is held, because all three
//! run code that comes back for it. A future of a member that is down is never polled again.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::{Place, TaskEnd};
use tokio::sync::oneshot;

use crate::disk::volume::Volume;
use crate::faults::{Faults, Incident, Incidents};
use crate::random::{Random, nanos};
use crate::trace::{Event, Trace};

/// More polls than this without a step of time is a loop that feeds itself.
const POLLS_PER_INSTANT_MAX: u64 = 1_000_000;

/// The member that stands for everything outside: clients, receivers, the scenario. It never goes down.
pub(crate) const OUTSIDE: MemberIndex = 0;

pub(crate) type MemberIndex = usize;
type Future = BoxFuture<'static, ()>;

pub(crate) struct Shared {
    core: Mutex<Core>,
    ready: Arc<Ready>,
}

pub(crate) struct Core {
    /// Since the beginning of the simulation.
    pub(crate) now: Duration,
    pub(crate) faults: Faults,
    pub(crate) incidents: Incidents,
    pub(crate) trace: Trace,
    /// For the order of polls and what else only the executor draws.
    pub(crate) random: Random,
    pub(crate) members: Vec<Member>,
    pub(crate) panics: Vec<String>,
    pub(crate) panics_tolerated: bool,
    pub(crate) time_limit: Duration,
    tasks: Tasks,
    timers: BTreeMap<TimerKey, Timer>,
    timer_serial: u64,
    polls_now: u64,
    polls: u64,
    running: bool,
    closed: bool,
}

pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) state: MemberState,
    /// Counts the starts; what an earlier one left behind has no effect.
    pub(crate) boot: u64,
    pub(crate) halts: Vec<String>,
    /// When it was paused or down, in true time.
    pub(crate) interruptions: Vec<RangeInclusive<Duration>>,
    /// Milliseconds that its wall clock is ahead of true time.
    pub(crate) clock_ahead: i64,
    /// What its monotonic clock showed when the simulation began.
    pub(crate) monotonic_base: Duration,
    pub(crate) random: Random,
    pub(crate) volume: Volume,
    /// Tasks that were woken in a pause.
    parked: Vec<TaskId>,
    /// Those who wait for it to go down.
    watchers: Vec<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    Up,
    PausedUntil(Duration),
    Down,
}

/// How a member goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    Crash,
    Kill,
    Halt,
}

impl Member {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, MemberState::Up | MemberState::PausedUntil(_))
    }
}

// Timers.

type TimerKey = (Duration, u64);

enum Timer {
    Wake(Waker),
    Resume(MemberIndex),
}

impl Core {
    pub(crate) fn set_timer(&mut self, at: Duration, waker: Waker) -> TimerKey {
        let late = if self.faults.timer_late_max.is_zero() {
            Duration::ZERO
        } else {
            self.random.duration(&(Duration::ZERO..=self.faults.timer_late_max))
        };
        self.insert_timer(at + late, Timer::Wake(waker))
    }

    fn insert_timer(&mut self, at: Duration, timer: Timer) -> TimerKey {
        self.timer_serial += 1;
        let key = (at, self.timer_serial);
        self.timers.insert(key, timer);
        key
    }

    /// The waker that was there, to be dropped outside the lock.
    #[must_use]
    pub(crate) fn clear_timer(&mut self, key: TimerKey) -> Option<Waker> {
        match self.timers.remove(&key) {
            Some(Timer::Wake(waker)) => Some(waker),
            Some(Timer::Resume(_)) | None => None,
        }
    }

    pub(crate) fn change_timer(&mut self, key: TimerKey, waker: &Waker) -> Option<Waker> {
        match self.timers.get_mut(&key) {
            Some(Timer::Wake(present)) if !present.will_wake(waker) => Some(std::mem::replace(present, waker.clone())),
            Some(Timer::Wake(_) | Timer::Resume(_)) | None => None,
        }
    }

    // Events.

    pub(crate) fn record(&mut self, event: &Event<'_>) {
        self.trace.record(self.now, event);
    }

    pub(crate) fn incident(&mut self, member: MemberIndex, what: Incident, detail: &str) {
        self.incidents.add(what);
        let name = &self.members[member].name;
        self.trace.record(self.now, &Event::Incident { member: name, what, detail });
    }

    pub(crate) fn is_current(&self, member: MemberIndex, boot: u64) -> bool {
        let member = &self.members[member];
        member.boot == boot && member.is_up()
    }

    pub(crate) fn member_index(&self, name: &str) -> Option<MemberIndex> {
        self.members.iter().position(|member| member.name == name)
    }

    pub(crate) fn add_member(&mut self, name: &str) -> MemberIndex {
        let mut random = self.random.fork();
        let volume = Volume::new(random.fork());
        self.members.push(Member {
            name: name.to_owned(),
            state: MemberState::Down,
            boot: 0,
            halts: Vec::new(),
            interruptions: Vec::new(),
            clock_ahead: 0,
            monotonic_base: Duration::ZERO,
            random,
            volume,
            parked: Vec::new(),
            watchers: Vec::new(),
        });
        self.members.len() - 1
    }

    pub(crate) fn boot(&mut self, index: MemberIndex) {
        let member = &mut self.members[index];
        assert!(member.state == MemberState::Down, "{} is up: crash it or kill it first", member.name);
        member.state = MemberState::Up;
        member.boot += 1;
        if let Some(down) = member.interruptions.last_mut().filter(|last| *last.end() == Duration::MAX) {
            *down = *down.start()..=self.now;
        }
        // A machine's monotonic clock means nothing to its next start.
        member.monotonic_base = Duration::from_millis(1_000 + member.random.below(1_000_000_000));
        self.trace.record(self.now, &Event::Boot { member: &member.name });
    }

    pub(crate) fn pause(&mut self, index: MemberIndex, duration: Duration) {
        let until = self.now + duration;
        match self.members[index].state {
            MemberState::Up => {}
            MemberState::PausedUntil(earlier) if earlier < until => {}
            MemberState::PausedUntil(_) | MemberState::Down => return,
        }
        self.members[index].state = MemberState::PausedUntil(until);
        self.members[index].interruptions.push(self.now..=until);
        self.incident(index, Incident::Pause, &format!("for {duration:?}"));
        self.insert_timer(until, Timer::Resume(index));
    }

    pub(crate) fn watch(&mut self, index: MemberIndex, waker: &Waker) {
        self.members[index].watchers.push(waker.clone());
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls
    }
}

// Tasks.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId {
    slot: usize,
    serial: u64,
}

/// The scenario's own future, which `run_until` holds on its stack.
const ROOT: TaskId = TaskId { slot: usize::MAX, serial: 0 };

struct Task {
    serial: u64,
    name: &'static str,
    place: Place,
    member: MemberIndex,
    /// `None` while it is being polled.
    future: Option<Future>,
    waker: Arc<TaskWaker>,
    aborted: bool,
    end: Option<oneshot::Sender<TaskEnd>>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<usize>,
    serial: u64,
}

impl Tasks {
    fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(id.slot)?.as_mut().filter(|task| task.serial == id.serial)
    }

    fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.get_mut(id)?;
        self.free.push(id.slot);
        self.slots[id.slot].take()
    }

    fn insert(&mut self, make: impl FnOnce(TaskId) -> Task) -> TaskId {
        self.serial += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let id = TaskId { slot, serial: self.serial };
        self.slots[slot] = Some(make(id));
        id
    }

    fn remove_all(&mut self, of: impl Fn(&Task) -> bool) -> Vec<Task> {
        let mut removed = Vec::new();
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if entry.as_ref().is_some_and(&of) {
                self.free.push(slot);
                removed.extend(entry.take());
            }
        }
        removed
    }
}

struct Ready(Mutex<Vec<TaskId>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Vec<TaskId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: TaskId,
    /// It is in the ready list, or parked: once is enough.
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.lock().push(self.id);
        }
    }
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let mut core = Core {
            now: Duration::ZERO,
            faults: Faults::default(),
            incidents: Incidents::default(),
            trace: Trace::default(),
            random: Random::new(seed),
            members: Vec::new(),
            panics: Vec::new(),
            panics_tolerated: false,
            time_limit: Duration::from_secs(24 * 3_600),
            tasks: Tasks::default(),
            timers: BTreeMap::new(),
            timer_serial: 0,
            polls_now: 0,
            polls: 0,
            running: false,
            closed: false,
        };
        core.add_member("outside");
        core.boot(OUTSIDE);
        Arc::new(Shared { core: Mutex::new(core), ready: Arc::new(Ready(Mutex::new(Vec::new()))) })
    }

    /// The state stays whole when an assertion of a scenario unwinds through here: it is looked at afterwards.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`, with the future dropped, if that start of the member is over.
    pub(crate) fn spawn(
        &self,
        member: MemberIndex,
        boot: u64,
        name: &'static str,
        place: Place,
        future: Future,
    ) -> Option<(TaskId, oneshot::Receiver<TaskEnd>)> {
        let (end, ended) = oneshot::channel();
        let ready = self.ready.clone();
        let waker = {
            let mut guard = self.lock();
            let core = &mut *guard;
            if core.closed || !core.is_current(member, boot) {
                drop(guard);
                drop_quietly(future);
                return None;
            }
            let id = core.tasks.insert(|id| Task {
                serial: id.serial,
                name,
                place,
                member,
                future: Some(future),
                waker: Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready }),
                aborted: false,
                end: Some(end),
            });
            let owner = &core.members[member].name;
            core.trace.record(core.now, &Event::Spawn { member: owner, task: name, serial: id.serial });
            core.tasks.get_mut(id).map(|task| task.waker.clone())
        };
        let waker = waker.expect("a task that was just made is there");
        let id = waker.id;
        waker.wake();
        Some((id, ended))
    }

    pub(crate) fn abort(&self, id: TaskId) {
        let waker = {
            let mut core = self.lock();
            core.tasks.get_mut(id).filter(|task| task.place == Place::Shared).map(|task| {
                task.aborted = true;
                task.waker.clone()
            })
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes a member down. If one of its own tasks is being polled, that future is dropped when the poll returns, and
    /// what it does until then has no effect.
    pub(crate) fn strike(&self, index: MemberIndex, blow: Blow) {
        let fallen = {
            let mut core = self.lock();
            assert!(index != OUTSIDE, "the outside never goes down");
            if !core.members[index].is_up() {
                return;
            }
            core.fell(index, blow)
        };
        fallen.bury();
    }

    /// Polls tasks, and lets time go on when none is runnable, until `root` is ready.
    pub(crate) fn run<F: std::future::Future>(&self, root: F) -> F::Output {
        let waker = Arc::new(TaskWaker { id: ROOT, queued: AtomicBool::new(true), ready: self.ready.clone() });
        {
            let mut core = self.lock();
            assert!(!core.running, "a simulation runs one scenario at a time");
            core.running = true;
            core.polls_now = 0;
        }
        let _running = Running(self);
        self.ready.lock().push(ROOT);
        let mut root = std::pin::pin!(root);
        let root_waker = Waker::from(waker.clone());
        loop {
            match self.next() {
                None => self.advance(),
                Some(id) if id == ROOT => {
                    waker.queued.store(false, Ordering::Relaxed);
                    if let Poll::Ready(output) = root.as_mut().poll(&mut Context::from_waker(&root_waker)) {
                        self.after_poll();
                        return output;
                    }
                    self.after_poll();
                }
                Some(id) => self.poll(id),
            }
        }
    }

    fn next(&self) -> Option<TaskId> {
        let mut core = self.lock();
        let mut ready = self.ready.lock();
        match ready.len() {
            0 => None,
            1 => ready.pop(),
            len => Some(ready.swap_remove(core.random.index(len))),
        }
    }

    fn poll(&self, id: TaskId) {
        let Some((mut future, waker)) = self.begin_poll(id) else { return };
        let waker = Waker::from(waker);
        let outcome =
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()));
        let end = {
            let mut core = self.lock();
            match &outcome {
                // Without a task for it, its member went down in this poll.
                Ok(false) => {
                    if let Some(task) = core.tasks.get_mut(id) {
                        task.future = Some(future);
                        None
                    } else {
                        Some((future, None))
                    }
                }
                Ok(true) => Some((future, core.end(id).map(|end| (end, TaskEnd::Finished)))),
                Err(payload) => {
                    core.panicked(id, &**payload);
                    Some((future, core.end(id).map(|end| (end, TaskEnd::Panicked))))
                }
            }
        };
        if let Some((future, end)) = end {
            drop_quietly(future);
            if let Some((sender, end)) = end {
                let _unheard = sender.send(end);
            }
        }
        self.after_poll();
        if let Err(payload) = outcome
            && !self.lock().panics_tolerated
        {
            std::panic::resume_unwind(payload);
        }
    }

    /// The future to poll, taken from its task; `None` if there is nothing to poll after all.
    fn begin_poll(&self, id: TaskId) -> Option<(Future, Arc<TaskWaker>)> {
        let aborted = {
            let mut guard = self.lock();
            let core = &mut *guard;
            let task = core.tasks.get_mut(id)?;
            let member = &mut core.members[task.member];
            if let MemberState::PausedUntil(_) = member.state {
                member.parked.push(id);
                return None;
            }
            task.waker.queued.store(false, Ordering::Relaxed);
            if !task.aborted {
                let event = Event::Poll { member: &member.name, task: task.name, serial: id.serial };
                core.trace.record(core.now, &event);
                let future = task.future.take().expect("a task is polled by one loop");
                return Some((future, task.waker.clone()));
            }
            core.tasks.remove(id)
        };
        aborted.into_iter().for_each(|task| task.bury(TaskEnd::Aborted));
        None
    }

    /// Guards against a loop, and lets the time pass that a poll takes.
    fn after_poll(&self) {
        let due = {
            let mut core = self.lock();
            core.polls += 1;
            core.polls_now += 1;
            if core.polls_now > POLLS_PER_INSTANT_MAX {
                let waiting = core.waiting_tasks();
                drop(core);
                panic!("tasks wake each other without end, and time stands still; there are {waiting}");
            }
            let most = core.faults.poll_time_max;
            if most.is_zero() {
                return;
            }
            let took = core.random.duration(&(Duration::ZERO..=most));
            let until = core.now + took;
            core.go_on(until)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Nothing is runnable: time goes on to the next timer.
    fn advance(&self) {
        let due = {
            let mut core = self.lock();
            let Some(at) = core.timers.first_key_value().map(|((at, _), _)| *at) else {
                let waiting = core.waiting_tasks();
                drop(core);
                panic!("deadlock: nothing is runnable and no timer is set; waiting for ever: the scenario, {waiting}");
            };
            if at > core.time_limit {
                let (limit, waiting) = (core.time_limit, core.waiting_tasks());
                drop(core);
                panic!("the simulation went on for {limit:?} (see `set_time_limit`); waiting: the scenario, {waiting}");
            }
            core.go_on(at)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Drops every task and timer. What a destructor spawns is dropped, too.
    pub(crate) fn close(&self) {
        let (tasks, timers) = {
            let mut core = self.lock();
            core.closed = true;
            (core.tasks.remove_all(|_| true), std::mem::take(&mut core.timers))
        };
        tasks.into_iter().for_each(|task| task.bury(TaskEnd::Aborted));
        drop(timers);
    }
}

impl Core {
    /// Moves time, and gives the wakers that are due.
    fn go_on(&mut self, until: Duration) -> Vec<Waker> {
        if until > self.now {
            self.now = until;
            self.polls_now = 0;
            self.record(&Event::Advance);
        }
        let mut due = Vec::new();
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                Timer::Wake(waker) => due.push(waker),
                Timer::Resume(member) => due.extend(self.resume(member)),
            }
        }
        due
    }

    /// The wakers of what was woken in the pause.
    fn resume(&mut self, index: MemberIndex) -> Vec<Waker> {
        let MemberState::PausedUntil(until) = self.members[index].state else { return Vec::new() };
        if until > self.now {
            return Vec::new(); // The pause was made longer; its own timer follows.
        }
        self.members[index].state = MemberState::Up;
        self.trace.record(self.now, &Event::Resume { member: &self.members[index].name });
        let mut wakers = Vec::new();
        for id in std::mem::take(&mut self.members[index].parked) {
            if let Some(task) = self.tasks.get_mut(id) {
                task.waker.queued.store(false, Ordering::Relaxed);
                wakers.push(Waker::from(task.waker.clone()));
            }
        }
        wakers
    }

    /// Carries out the end of a member; what is returned is dropped outside the lock.
    fn fell(&mut self, index: MemberIndex, blow: Blow) -> Fallen {
        let (incident, detail) = match blow {
            Blow::Crash => (Incident::Crash, String::new()),
            Blow::Kill => (Incident::Kill, String::new()),
            Blow::Halt => (Incident::Halt, self.members[index].halts.last().cloned().unwrap_or_default()),
        };
        self.incident(index, incident, &detail);
        let member = &mut self.members[index];
        member.state = MemberState::Down;
        member.interruptions.push(self.now..=Duration::MAX);
        member.parked.clear();
        let watchers = std::mem::take(&mut member.watchers);
        let losses = match blow {
            Blow::Crash => member.volume.lose_power(),
            // The page cache outlives the process.
            Blow::Kill | Blow::Halt => {
                member.volume.forget_handles();
                Vec::new()
            }
        };
        for (incident, detail) in losses {
            self.incident(index, incident, &detail);
        }
        Fallen { tasks: self.tasks.remove_all(|task| task.member == index), watchers }
    }

    fn end(&mut self, id: TaskId) -> Option<oneshot::Sender<TaskEnd>> {
        let task = self.tasks.remove(id)?;
        self.trace.record(self.now, &Event::End { task: task.name, serial: task.serial });
        task.end
    }

    fn panicked(&mut self, id: TaskId, payload: &(dyn Any + Send)) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let (member, name) = (task.member, task.name);
        let detail = format!("task {name} panicked: {}", panic_message(payload));
        self.panics.push(format!("{}: {detail}", self.members[member].name));
        self.incident(member, Incident::TaskPanic, &detail);
    }

    fn waiting_tasks(&self) -> String {
        const NAMED_MAX: usize = 50;
        let tasks: Vec<_> = self.tasks.slots.iter().flatten().collect();
        let mut names: Vec<String> = tasks
            .iter()
            .take(NAMED_MAX)
            .map(|task| format!("{}/{}#{}", self.members[task.member].name, task.name, task.serial))
            .collect();
        if tasks.len() > NAMED_MAX {
            names.push(format!("and {} more", tasks.len() - NAMED_MAX));
        }
        if names.is_empty() {
            names.push("no task".to_owned());
        }
        let down = self.members.iter().filter(|member| !member.is_up());
        names.extend(down.map(|member| format!("{} is down {:?}", member.name, member.halts)));
        names.join(", ")
    }
}

impl Task {
    fn bury(self, how: TaskEnd) {
        if let Some(future) = self.future {
            drop_quietly(future);
        }
        if let Some(end) = self.end {
            let _unheard = end.send(how);
        }
    }
}

/// What is left of a member that went down.
struct Fallen {
    tasks: Vec<Task>,
    watchers: Vec<Waker>,
}

impl Fallen {
    fn bury(self) {
        self.tasks.into_iter().for_each(|task| task.bury(TaskEnd::Aborted));
        self.watchers.into_iter().for_each(Waker::wake);
    }
}

struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running = false;
        // The root is gone from the ready list with its future.
        self.0.ready.lock().retain(|id| *id != ROOT);
    }
}

/// A process that is killed runs no destructors; here they must run, and one that panics must not end the simulation.
fn drop_quietly(future: Future) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Ready at `at`; for ever pending once that start of the member is over.
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    member: MemberIndex,
    boot: u64,
    at: Duration,
    timer: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn new(shared: Arc<Shared>, member: MemberIndex, boot: u64, at: Duration) -> Self {
        // Later than any simulation lasts, but a number that can be counted.
        let at = at.min(Duration::from_nanos(nanos(Duration::MAX)));
        Sleep { shared, member, boot, at, timer: None }
    }
}

impl std::future::Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.shared.clone();
        let mut core = shared.lock();
        if !core.is_current(self.member, self.boot) {
            return Poll::Pending;
        }
        if core.now >= self.at {
            let unused = self.timer.take().and_then(|key| core.clear_timer(key));
            drop(core);
            drop(unused);
            return Poll::Ready(());
        }
        let unused = match self.timer {
            Some(key) => core.change_timer(key, context.waker()),
            None => {
                self.timer = Some(core.set_timer(self.at, context.waker().clone()));
                None
            }
        };
        drop(core);
        drop(unused);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer.take() {
            let unused = self.shared.lock().clear_timer(key);
            drop(unused);
        }
    }
}

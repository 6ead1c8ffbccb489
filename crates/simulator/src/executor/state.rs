//! State of a simulation: members, timers, incidents and trace. The executor's lock protects this state.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use domain::Timestamp;
use runtime::TaskEnd;
use tokio::sync::oneshot;

use super::panic_message;
use super::task::{Task, TaskId, Tasks};
use crate::disk::volume::Volume;
use crate::faults::{Faults, Incident, Incidents};
use crate::random::Random;
use crate::trace::{Event, Trace};

/// Index of the member that represents all processes outside the cluster: clients, receivers and the scenario. This
/// member never goes down.
pub(crate) const OUTSIDE: MemberIndex = 0;

pub(crate) type MemberIndex = usize;

/// Reading of a correct wall clock at the start of a simulation: 2026-01-01T00:00:00Z. [`crate::Handle::start_at`] sets
/// another reading.
pub const EPOCH: Timestamp = Timestamp::from_millis(1_767_225_600_000);

pub(crate) struct Core {
    /// True time since the start of the simulation.
    pub(crate) now: Duration,
    /// Reading of a correct wall clock at the start of the simulation.
    pub(crate) epoch: Timestamp,
    pub(crate) faults: Faults,
    pub(crate) incidents: Incidents,
    pub(crate) trace: Trace,
    /// Random generator of the simulation, for example for the order of polls and the durations of disk operations.
    pub(crate) random: Random,
    pub(crate) members: Vec<Member>,
    pub(crate) panics: Vec<String>,
    pub(crate) panics_tolerated: bool,
    pub(crate) time_limit: Duration,
    pub(crate) poll_limit: u64,
    pub(super) tasks: Tasks,
    pub(super) timers: BTreeMap<TimerKey, Timer>,
    pub(super) timer_serial: u64,
    pub(super) polls_now: u64,
    pub(super) polls: u64,
    pub(super) running: bool,
    pub(super) closed: bool,
}

pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) state: MemberState,
    /// Number of starts of the member. The tasks and handles of an earlier start have no effect.
    pub(crate) boot: u64,
    pub(crate) halts: Vec<String>,
    /// Periods during which the member was paused or down, in true time.
    pub(crate) interruptions: Vec<RangeInclusive<Duration>>,
    /// Offset of the member's wall clock from true time, in milliseconds.
    pub(crate) clock_ahead: i64,
    /// Latest reading of the member's wall clock before one of its jumps.
    pub(crate) clock_latest: Timestamp,
    /// Reading of the member's monotonic clock at the start of the simulation.
    pub(crate) monotonic_base: Duration,
    pub(crate) random: Random,
    pub(crate) volume: Volume,
    /// Tasks that wakers woke during a pause of the member.
    pub(super) parked: Vec<TaskId>,
    /// Wakers of tasks that wait until the member goes down.
    pub(super) watchers: Vec<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    Up,
    PausedUntil(Duration),
    Down,
}

/// Reason why a member goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DownReason {
    Crash,
    Kill,
    Halt,
}

impl Member {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, MemberState::Up | MemberState::PausedUntil(_))
    }
}

pub(super) type TimerKey = (Duration, u64);

pub(super) enum Timer {
    Wake(Waker),
    Resume(MemberIndex),
}

impl Core {
    pub(super) fn new(seed: u64) -> Self {
        let mut core = Core {
            now: Duration::ZERO,
            epoch: EPOCH,
            faults: Faults::default(),
            incidents: Incidents::default(),
            trace: Trace::default(),
            random: Random::new(seed),
            members: Vec::new(),
            panics: Vec::new(),
            panics_tolerated: false,
            time_limit: Duration::from_secs(24 * 3_600),
            poll_limit: 20_000_000,
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
        core
    }

    pub(crate) fn set_timer(&mut self, at: Duration, waker: Waker) -> TimerKey {
        let late = if self.faults.timer_late_max.is_zero() {
            Duration::ZERO
        } else {
            self.random.duration(&(Duration::ZERO..=self.faults.timer_late_max))
        };
        self.insert_timer(at + late, Timer::Wake(waker))
    }

    pub(super) fn insert_timer(&mut self, at: Duration, timer: Timer) -> TimerKey {
        self.timer_serial += 1;
        let key = (at, self.timer_serial);
        self.timers.insert(key, timer);
        key
    }

    /// Removes a timer, and returns its waker. The caller must release the executor's lock before it drops the waker.
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

    pub(crate) fn record(&mut self, event: &Event<'_>) {
        self.trace.record(self.now, event);
    }

    pub(crate) fn incident(&mut self, member: MemberIndex, incident: Incident, detail: &str) {
        self.incidents.add(incident);
        let name = &self.members[member].name;
        self.trace.record(self.now, &Event::Incident { member: name, incident, detail });
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
            clock_latest: Timestamp::MIN,
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
        assert!(
            member.state == MemberState::Down,
            "cannot start the member {}, which is up; crash or kill it first",
            member.name
        );
        member.state = MemberState::Up;
        member.boot += 1;
        if let Some(down) = member.interruptions.last_mut().filter(|last| *last.end() == Duration::MAX) {
            *down = *down.start()..=self.now;
        }
        // A reading of the monotonic clock is invalid after the member has gone down, so each start of the member gives
        // the clock another base.
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
        let watchers = &mut self.members[index].watchers;
        if !watchers.iter().any(|present| present.will_wake(waker)) {
            watchers.push(waker.clone());
        }
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls
    }
}

/// Functions that the executor calls.
impl Core {
    /// Advances time, and returns the wakers of the due timers.
    pub(super) fn advance_to(&mut self, until: Duration) -> Vec<Waker> {
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

    /// Ends a pause, and returns the wakers of the tasks that were woken during the pause.
    pub(super) fn resume(&mut self, index: MemberIndex) -> Vec<Waker> {
        let MemberState::PausedUntil(until) = self.members[index].state else { return Vec::new() };
        if until > self.now {
            return Vec::new(); // The scenario has extended the pause, so a later timer ends it.
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

    /// Takes a member down. The caller must release the executor's lock, and then call
    /// [`DownedMember::drop_and_notify`] on the returned value.
    pub(super) fn take_down(&mut self, index: MemberIndex, reason: DownReason) -> DownedMember {
        let (incident, detail) = match reason {
            DownReason::Crash => (Incident::Crash, String::new()),
            DownReason::Kill => (Incident::Kill, String::new()),
            DownReason::Halt => (Incident::Halt, self.members[index].halts.last().cloned().unwrap_or_default()),
        };
        self.incident(index, incident, &detail);
        let member = &mut self.members[index];
        member.state = MemberState::Down;
        // If a member goes down, its pause ends.
        for pause in member.interruptions.iter_mut().filter(|one| *one.end() > self.now) {
            *pause = *pause.start()..=self.now;
        }
        member.interruptions.push(self.now..=Duration::MAX);
        member.parked.clear();
        let watchers = std::mem::take(&mut member.watchers);
        let losses = match reason {
            DownReason::Crash => member.volume.lose_power(),
            // The page cache survives the end of the process, so unsynced writes are not lost.
            DownReason::Kill | DownReason::Halt => {
                member.volume.forget_handles();
                Vec::new()
            }
        };
        for (incident, detail) in losses {
            self.incident(index, incident, &detail);
        }
        DownedMember { tasks: self.tasks.remove_all(|task| task.member == index), watchers }
    }

    pub(super) fn end(&mut self, id: TaskId) -> Option<oneshot::Sender<TaskEnd>> {
        let task = self.tasks.remove(id)?;
        self.trace.record(self.now, &Event::End { task: task.name, serial: task.serial });
        task.end
    }

    pub(super) fn panicked(&mut self, id: TaskId, payload: &(dyn Any + Send)) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let (member, name) = (task.member, task.name);
        let detail = format!("task {name} panicked: {}", panic_message(payload));
        self.panics.push(format!("{}: {detail}", self.members[member].name));
        self.incident(member, Incident::TaskPanic, &detail);
    }

    pub(super) fn busiest_tasks(&self) -> String {
        const NAMED_MAX: usize = 5;
        let mut tasks: Vec<_> = self.tasks.slots.iter().flatten().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.polls));
        let name = |task: &&Task| format!("{}/{} {} polls", self.members[task.member].name, task.name, task.polls);
        let names: Vec<_> = tasks.iter().take(NAMED_MAX).map(name).collect();
        names.join(", ")
    }

    pub(super) fn waiting_tasks(&self) -> String {
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

/// Tasks of a member that went down, and wakers of the tasks that waited until the member was down.
pub(super) struct DownedMember {
    pub(super) tasks: Vec<Task>,
    pub(super) watchers: Vec<Waker>,
}

impl DownedMember {
    pub(super) fn drop_and_notify(self) {
        self.tasks.into_iter().for_each(|task| task.drop_and_notify(TaskEnd::Aborted));
        self.watchers.into_iter().for_each(Waker::wake);
    }
}

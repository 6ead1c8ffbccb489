//! Executor. It polls tasks in an order that the seed determines, and advances time when no task is runnable.
//!
//! Invariants: while the executor holds the lock of its state, it polls no future, drops no future and calls no waker,
//! because each of these actions may run code that takes the lock. If a member goes down, the executor drops the
//! member's futures, and never polls them again.

mod sleep;
mod state;
mod task;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use runtime::{Place, TaskEnd};
use tokio::sync::oneshot;

use crate::trace::Event;

pub(crate) use sleep::Sleep;
pub use state::EPOCH;
use state::MemberState;
pub(crate) use state::{Core, DownReason, MemberIndex, OUTSIDE};
use task::{Future, ROOT, Ready, Task, TaskId, TaskWaker};

/// Largest number of polls at one instant of simulated time. If the executor exceeds this number, the tasks probably
/// wake each other endlessly.
const POLLS_PER_INSTANT_MAX: u64 = 1_000_000;

pub(crate) struct Shared {
    core: Mutex<Core>,
    ready: Arc<Ready>,
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let core = Core::new(seed);
        Arc::new(Shared { core: Mutex::new(core), ready: Arc::new(Ready(Mutex::new(Vec::new()))) })
    }

    /// Locks the state of the simulation, even if a panic has poisoned the lock. If an assertion of the scenario
    /// fails, the state stays consistent, and the runner reads the state after the panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task of a member. Drops the future and returns `None` if the member has gone down since the start with
    /// the number `boot`, or if the simulation has ended.
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
                polls: 0,
                end: Some(end),
            });
            let owner = &core.members[member].name;
            core.trace.record(core.now, &Event::Spawn { member: owner, task: name, serial: id.serial });
            core.tasks.get_mut(id).map(|task| task.waker.clone())
        };
        let waker = waker.expect("the new task exists in the list of tasks");
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

    /// Takes a member down. If the executor is polling a task of this member, it drops the task's future when the poll
    /// returns. Until then, the operations of the task have no effect.
    pub(crate) fn take_down(&self, index: MemberIndex, reason: DownReason) {
        let downed = {
            let mut core = self.lock();
            assert!(index != OUTSIDE, "the member for processes outside the cluster never goes down");
            if !core.members[index].is_up() {
                return;
            }
            core.take_down(index, reason)
        };
        downed.drop_and_notify();
    }

    /// Polls tasks, and advances time when no task is runnable, until `root` is ready.
    pub(crate) fn run<F: std::future::Future>(&self, root: F) -> F::Output {
        let waker = Arc::new(TaskWaker { id: ROOT, queued: AtomicBool::new(true), ready: self.ready.clone() });
        {
            let mut core = self.lock();
            assert!(!core.running, "a simulation runs one scenario at a time");
            core.running = true;
            core.polls_now = 0;
        }
        let _running = Running(self);
        self.ready.add(ROOT);
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
            len => Some(ready.remove(core.random.index(len))),
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
                // If the task no longer exists, its member went down during this poll.
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
                let _receiver_is_gone = sender.send(end);
            }
        }
        self.after_poll();
        if let Err(payload) = outcome
            && !self.lock().panics_tolerated
        {
            std::panic::resume_unwind(payload);
        }
    }

    /// Takes the future out of its task, for a poll. Returns `None` if the task has ended, is aborted, or belongs to a
    /// paused member.
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
                task.polls += 1;
                let event = Event::Poll { member: &member.name, task: task.name, serial: id.serial };
                core.trace.record(core.now, &event);
                let future = task.future.take().expect("the executor polls only one task at a time");
                return Some((future, task.waker.clone()));
            }
            core.tasks.remove(id)
        };
        aborted.into_iter().for_each(|task| task.drop_and_notify(TaskEnd::Aborted));
        None
    }

    /// Counts a finished poll, and advances time by its random duration. Panics if the number of polls exceeds a limit.
    fn after_poll(&self) {
        let due = {
            let mut core = self.lock();
            core.polls += 1;
            core.polls_now += 1;
            if core.polls_now > POLLS_PER_INSTANT_MAX {
                let busiest = core.busiest_tasks();
                drop(core);
                panic!("tasks wake each other endlessly, so time does not advance; the busiest tasks: {busiest}");
            }
            if core.polls > core.poll_limit {
                let (limit, busiest) = (core.poll_limit, core.busiest_tasks());
                drop(core);
                panic!("the simulation exceeded {limit} polls (see `set_poll_limit`); the busiest tasks: {busiest}");
            }
            let most = core.faults.poll_time_max;
            if most.is_zero() {
                return;
            }
            let took = core.random.duration(&(Duration::ZERO..=most));
            let until = core.now + took;
            core.advance_to(until)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Advances time to the next timer. The executor calls this function when no task is runnable.
    fn advance(&self) {
        let due = {
            let mut core = self.lock();
            let Some(at) = core.timers.first_key_value().map(|((at, _), _)| *at) else {
                let waiting = core.waiting_tasks();
                drop(core);
                panic!("deadlock: no task is runnable and no timer is set; waiting tasks: the scenario, {waiting}");
            };
            if at > core.time_limit {
                let (limit, waiting) = (core.time_limit, core.waiting_tasks());
                drop(core);
                panic!(
                    "the simulation exceeded {limit:?} of simulated time (see `set_time_limit`); waiting tasks: the \
                     scenario, {waiting}"
                );
            }
            core.advance_to(at)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Drops every task and every timer, and also every task that a destructor spawns.
    pub(crate) fn close(&self) {
        let (tasks, timers) = {
            let mut core = self.lock();
            core.closed = true;
            (core.tasks.remove_all(|_| true), std::mem::take(&mut core.timers))
        };
        tasks.into_iter().for_each(|task| task.drop_and_notify(TaskEnd::Aborted));
        drop(timers);
    }
}

struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running = false;
        // The scenario's future no longer exists, so this code removes the future's id from the ready list.
        self.0.ready.lock().retain(|id| *id != ROOT);
    }
}

/// Drops a future, and catches a panic in its destructor. A killed process runs no destructors. The simulation cannot
/// drop a future without its destructor, so it ignores a panic in the destructor.
fn drop_quietly(future: Future) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

/// Returns the message of a caught panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

//! Tasks of the executor, and the list of runnable tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use futures_util::future::BoxFuture;
use runtime::{Place, TaskEnd};
use tokio::sync::oneshot;

use super::drop_quietly;
use super::state::MemberIndex;

pub(super) type Future = BoxFuture<'static, ()>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId {
    pub(super) slot: usize,
    pub(super) serial: u64,
}

/// Id of the scenario's own future. This future is on the stack of `run_until`.
pub(super) const ROOT: TaskId = TaskId { slot: usize::MAX, serial: 0 };

pub(super) struct Task {
    pub(super) serial: u64,
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) member: MemberIndex,
    /// Future of the task. `None` while the executor polls the future.
    pub(super) future: Option<Future>,
    pub(super) waker: Arc<TaskWaker>,
    pub(super) aborted: bool,
    pub(super) polls: u64,
    pub(super) end: Option<oneshot::Sender<TaskEnd>>,
}

#[derive(Default)]
pub(super) struct Tasks {
    pub(super) slots: Vec<Option<Task>>,
    pub(super) free: Vec<usize>,
    pub(super) serial: u64,
}

impl Tasks {
    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(id.slot)?.as_mut().filter(|task| task.serial == id.serial)
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.get_mut(id)?;
        self.free.push(id.slot);
        self.slots[id.slot].take()
    }

    pub(super) fn insert(&mut self, new_task: impl FnOnce(TaskId) -> Task) -> TaskId {
        self.serial += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let id = TaskId { slot, serial: self.serial };
        self.slots[slot] = Some(new_task(id));
        id
    }

    pub(super) fn remove_all(&mut self, of: impl Fn(&Task) -> bool) -> Vec<Task> {
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

/// List of runnable tasks, in the order of their creation. The list does not use the order of the wake-ups, because
/// this order does not depend on the seed alone: some channels wake their waiters in a random order. For example,
/// tokio's `watch` puts each waiter into one of eight lists at random.
pub(super) struct Ready(pub(super) Mutex<Vec<TaskId>>);

impl Ready {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<TaskId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: TaskId) {
        let mut ready = self.lock();
        let at = ready.partition_point(|other| other.serial < id.serial);
        ready.insert(at, id);
    }
}

pub(super) struct TaskWaker {
    pub(super) id: TaskId,
    /// True while the task is in the list of runnable tasks, or in the list of tasks that wait for the end of a pause.
    pub(super) queued: AtomicBool,
    pub(super) ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.add(self.id);
        }
    }
}

impl Task {
    pub(super) fn drop_and_notify(self, task_end: TaskEnd) {
        if let Some(future) = self.future {
            drop_quietly(future);
        }
        if let Some(end) = self.end {
            let _receiver_is_gone = end.send(task_end);
        }
    }
}

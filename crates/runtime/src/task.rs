//! Tasks with owners.

use std::sync::Mutex;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::oneshot;

use crate::{Place, Runtime};

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskEnd {
    Finished,
    Panicked,
    Aborted,
}

/// A spawned task. Dropping the handle leaves it running.
pub struct TaskHandle {
    pub end: BoxFuture<'static, TaskEnd>,
    /// Drops the task's future at its next await; without effect on a [`Place::Thread`] task, which ends by itself.
    pub abort: Box<dyn Fn() + Send + Sync>,
}

/// Owns tasks and waits for them. Dropped without [`TaskSet::join`], it aborts them.
pub struct TaskSet {
    runtime: Runtime,
    tasks: Mutex<Vec<(&'static str, TaskHandle)>>,
}

impl TaskSet {
    #[must_use]
    pub fn new(runtime: &Runtime) -> Self {
        TaskSet { runtime: runtime.clone(), tasks: Mutex::new(Vec::new()) }
    }

    /// For tasks that live as long as their owner; a task per request belongs in its own collection.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.keep(name, Place::Shared, Box::pin(future));
    }

    /// A task that may block its thread, in [`crate::Disk`] calls above all.
    pub fn spawn_thread(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.keep(name, Place::Thread, Box::pin(future));
    }

    fn keep(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) {
        let handle = self.runtime.0.spawn(name, place, future);
        self.tasks.lock().expect("no holder of this lock panics").push((name, handle));
    }

    /// Waits until every task has ended by itself, and says how.
    pub async fn join(self) -> Vec<(&'static str, TaskEnd)> {
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        let mut ends = Vec::with_capacity(tasks.len());
        for (name, handle) in tasks {
            ends.push((name, handle.end.await));
        }
        ends
    }
}

impl Drop for TaskSet {
    fn drop(&mut self) {
        for (_, handle) in self.tasks.lock().expect("no holder of this lock panics").iter() {
            (handle.abort)();
        }
    }
}

impl Runtime {
    /// A task whose owner keeps the handle itself: for many short ones. Prefer [`TaskSet::spawn`].
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> TaskHandle {
        self.0.spawn(name, Place::Shared, Box::pin(future))
    }
    /// What `future` answers, from a task of its own: it goes on while nobody polls for the answer, so no lock that it holds meanwhile keeps
    /// others waiting for a caller that does something else. If the answer is dropped, it goes on to its end. `None` if the task ended
    /// without one.
    pub fn detached<T, F>(&self, name: &'static str, future: F) -> impl Future<Output = Option<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        drop(self.spawn(name, async move { drop(answer.send(future.await)) }));
        answered.map(Result::ok)
    }
}

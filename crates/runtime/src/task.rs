//! Tasks and their owners.
//!
//! docs/decisions/0144-run-waiting-requests-in-tasks.md gives the reasons for the design.

use std::sync::Mutex;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::oneshot;

use crate::{Place, Runtime};

/// End of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskEnd {
    Finished,
    Panicked,
    Aborted,
}

/// Spawned task. The task continues to run if its handle is dropped.
pub struct TaskHandle {
    pub end: BoxFuture<'static, TaskEnd>,
    /// Drops the task's future at its next await. Has no effect on a [`Place::Thread`] task.
    pub abort: Box<dyn Fn() + Send + Sync>,
}

/// Owner of tasks that waits for them. Dropping the set without [`TaskSet::join`] aborts its tasks.
pub struct TaskSet {
    runtime: Runtime,
    tasks: Mutex<Vec<(&'static str, TaskHandle)>>,
}

impl TaskSet {
    #[must_use]
    pub fn new(runtime: &Runtime) -> Self {
        TaskSet { runtime: runtime.clone(), tasks: Mutex::new(Vec::new()) }
    }

    /// Spawns a task that lives as long as its owner. Keep a task per request in a separate collection.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.add(name, Place::Shared, Box::pin(future));
    }

    /// Spawns a task that may block its thread, for example in [`crate::Disk`] calls.
    pub fn spawn_thread(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.add(name, Place::Thread, Box::pin(future));
    }

    fn add(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) {
        let handle = self.runtime.0.spawn(name, place, future);
        self.tasks.lock().expect("no holder of this lock panics").push((name, handle));
    }

    /// Waits until every task has ended by itself, and returns the ends.
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
    /// Spawns a task whose owner keeps the handle, for many short tasks. Prefer [`TaskSet::spawn`].
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> TaskHandle {
        self.0.spawn(name, Place::Shared, Box::pin(future))
    }

    /// Runs `future` in its own task and returns its output. The task runs even while the caller does not poll, so a
    /// lock that the task holds is not held for as long as the caller does something else. If the caller drops the
    /// returned future, the task still runs to its end. The output is `None` if the task ended without one.
    pub fn detached<T, F>(&self, name: &'static str, future: F) -> impl Future<Output = Option<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        drop(self.spawn(name, async move { drop(sender.send(future.await)) }));
        receiver.map(Result::ok)
    }
}

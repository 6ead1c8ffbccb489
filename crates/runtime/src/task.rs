//! Tasks, and sets that own tasks.
//!
//! docs/decisions/0144-run-waiting-requests-in-tasks.md gives the reasons for the design.

use std::sync::Mutex;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::oneshot;

use crate::{Place, Runtime};

/// Way in which a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskEnd {
    /// The task's future completed.
    Finished,
    /// The task's future panicked.
    Panicked,
    /// The runtime dropped the task's future before the future completed.
    Aborted,
}

/// Handle to a spawned task. The task continues if the caller drops the handle.
pub struct TaskHandle {
    /// Future that completes when the task has ended.
    pub end: BoxFuture<'static, TaskEnd>,
    /// Function that aborts the task: the runtime drops the task's future when the future next awaits. The function has
    /// no effect on a task with its own thread.
    pub abort: Box<dyn Fn() + Send + Sync>,
}

/// Set that owns tasks. [`TaskSet::join`] waits for the tasks. If the caller drops the set without this call, the set
/// aborts its tasks.
pub struct TaskSet {
    runtime: Runtime,
    tasks: Mutex<Vec<(&'static str, TaskHandle)>>,
}

impl TaskSet {
    /// Creates an empty set, which spawns its tasks on `runtime`.
    #[must_use]
    pub fn new(runtime: &Runtime) -> Self {
        TaskSet { runtime: runtime.clone(), tasks: Mutex::new(Vec::new()) }
    }

    /// Spawns a task of this set. The set retains the handle of an ended task until the caller drops the set. A caller
    /// that spawns a task for each request should therefore use [`Runtime::spawn`].
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.add(name, Place::Shared, Box::pin(future));
    }

    /// Spawns a task that may block its thread, for example in [`crate::Disk`] calls.
    pub fn spawn_thread(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.add(name, Place::Thread, Box::pin(future));
    }

    /// Spawns a task that may block its thread, and whose work can wait while other tasks need the processor.
    pub fn spawn_background(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.add(name, Place::Background, Box::pin(future));
    }

    fn add(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) {
        let handle = self.runtime.0.spawn(name, place, future);
        self.tasks.lock().expect("no holder of this lock panics").push((name, handle));
    }

    /// Waits until every task has ended by itself. Returns the way in which each task ended.
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
    /// Spawns a task and returns its handle. Callers use this function for many short tasks, and [`TaskSet::spawn`] for
    /// other tasks.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> TaskHandle {
        self.0.spawn(name, Place::Shared, Box::pin(future))
    }

    /// Runs `future` in its own task and returns its output. The task runs even while the caller does not poll the
    /// returned future. A slow caller therefore does not prolong the time for which the task holds locks. If the caller
    /// drops the returned future, the task still runs to its end. The output is `None` if the task panicked or was
    /// aborted.
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

//! Value that a task updates.
//!
//! docs/decisions/0227-follow-values-in-one-form.md gives the reasons for the design.

use std::fmt;
use std::sync::Arc;

use runtime::{Runtime, TaskSet};
use tokio::sync::watch;

/// Value that follows the state of an engine and never goes back to an older state. Everything that a process can
/// follow has this type, and the methods that return it are named `follow` or `follow_…`.
///
/// A reader receives the latest value, and may miss values between two reads. A clone is another reader of the same
/// value. The updates end after a drop of the last clone.
#[must_use = "a drop of this value stops the updates"]
#[derive(Clone)]
pub struct Followed<T> {
    value: watch::Receiver<T>,
    /// Task that updates the value. `None` if another object owns the task.
    _tasks: Option<Arc<TaskSet>>,
}

impl<T: Clone + Send + Sync + 'static> Followed<T> {
    /// Starts a task that updates the value.
    pub(crate) fn start<F>(runtime: &Runtime, first: T, follow: impl FnOnce(watch::Sender<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, value) = watch::channel(first);
        let tasks = TaskSet::new(runtime);
        tasks.spawn("follower", follow(sender));
        Followed { value, _tasks: Some(Arc::new(tasks)) }
    }

    /// Follows a value that a task of another object updates.
    pub(crate) fn of(value: &watch::Receiver<T>) -> Self {
        let mut value = value.clone();
        value.mark_unchanged();
        Followed { value, _tasks: None }
    }

    /// Returns another follower. Its value is the result of `transform` for the value of this follower.
    pub(crate) fn map<U>(self, runtime: &Runtime, mut transform: impl FnMut(&T) -> U + Send + 'static) -> Followed<U>
    where
        U: Clone + PartialEq + Send + Sync + 'static,
    {
        let mut values = self.value.clone();
        let first = transform(&values.borrow_and_update());
        Followed::start(runtime, first, |sender| async move {
            let _followed = self;
            while values.changed().await.is_ok() {
                let now = transform(&values.borrow_and_update());
                send_if_new(&sender, now);
            }
        })
    }

    /// Returns the value after the last update.
    #[must_use]
    pub fn now(&self) -> T {
        self.value.borrow().clone()
    }

    /// Waits until the value has changed since the last call of this function, and returns the value. Never completes
    /// if no more updates come.
    pub async fn changed(&mut self) -> T {
        match self.value.changed().await {
            Ok(()) => self.value.borrow_and_update().clone(),
            Err(_ended) => std::future::pending().await,
        }
    }

    /// Waits until the value meets `condition`, and returns the value. Never completes if no more updates come.
    pub async fn until(&mut self, mut condition: impl FnMut(&T) -> bool) -> T {
        let mut value = self.value.borrow_and_update().clone();
        while !condition(&value) {
            value = self.changed().await;
        }
        value
    }
}

/// Replaces the value, and notifies the readers if the value has changed.
pub(crate) fn send_if_new<T: PartialEq>(sender: &watch::Sender<T>, now: T) {
    sender.send_if_modified(|known| {
        let is_new = *known != now;
        *known = now;
        is_new
    });
}

impl<T: fmt::Debug> fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Followed").field(&*self.value.borrow()).finish()
    }
}

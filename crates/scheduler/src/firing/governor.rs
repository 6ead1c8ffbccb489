//! Governor of starts. It bounds the attempts that wait for a processor at the same time, so that the other due keys
//! wait in the dispatch queue, where tenants take turns.
//!
//! The executor and the kernel run tasks in the order in which they become ready. If the owner started every due key at
//! once, a key of a tenant with few callbacks would wait behind all started attempts of other tenants. The governor
//! counts the attempts that the owner has started and that no thread has polled yet, and the tasks of attempts that are
//! ready to run again, for example because a response has arrived. At its limit, the owner starts no key until half of
//! them have run. Attempts that wait for their targets do not count, so the governor does not limit the attempts in
//! flight. The threads always have work while the owner waits, because at least half of the limit is ready to run.
//!
//! Only keys of tenants that share the processors count ([`Dispatch::is_shared`]). The attempts of a single tenant use
//! no measurement and no limit.
//!
//! docs/decisions/0246-queue-starts-before-the-processors.md gives the reasons for the design.
//!
//! [`Dispatch::is_shared`]: crate::firing::dispatch::Dispatch::is_shared

mod pressure;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

pub(crate) use pressure::Pressure;
pub(crate) use task::{governed, measured};

#[derive(Debug)]
pub(crate) struct Governor {
    /// Largest number of attempts that wait for a processor.
    limit: usize,
    /// Number of started attempts that no thread has polled yet, plus number of their tasks that are ready to run
    /// again.
    ready: AtomicUsize,
    /// True if the owner waits for [`Governor::has_room`].
    owner_waits: AtomicBool,
    room: Notify,
    /// True while attempts of several tenants wait for the processors for longer than a moment.
    is_saturated: AtomicBool,
}

/// Attempts that count as ready to run. A drop of this value ends the count.
#[derive(Debug)]
pub(crate) struct Ready {
    governor: Arc<Governor>,
    count: usize,
}

impl Governor {
    pub(crate) fn new(limit: usize) -> Self {
        Governor {
            limit: limit.max(1),
            ready: AtomicUsize::new(0),
            owner_waits: AtomicBool::new(false),
            room: Notify::new(),
            is_saturated: AtomicBool::new(false),
        }
    }

    /// Returns true if the owner may start another key. `selected` is the number of keys that the owner has selected
    /// and not started yet. If the function returns false, [`Governor::has_room`] completes as soon as half of the
    /// limit is free.
    pub(crate) fn admits(&self, selected: usize) -> bool {
        let has_room = || self.ready.load(Ordering::SeqCst) + selected < self.limit;
        if has_room() {
            return true;
        }
        self.owner_waits.store(true, Ordering::SeqCst);
        // A thread that ended its count before the line above has sent no notification.
        has_room()
    }

    /// Waits until the governor admits starts again.
    pub(crate) async fn has_room(&self) {
        self.room.notified().await;
    }

    /// Counts `count` attempts as ready to run.
    pub(crate) fn count(self: &Arc<Self>, count: usize) -> Ready {
        self.begin(count);
        Ready { governor: self.clone(), count }
    }

    fn begin(&self, count: usize) {
        self.ready.fetch_add(count, Ordering::SeqCst);
    }

    fn end(&self, count: usize) {
        let before = self.ready.fetch_sub(count, Ordering::SeqCst);
        assert!(before >= count, "each end of a count follows its begin");
        let is_half_free = before - count <= self.limit / 2;
        if is_half_free && self.owner_waits.load(Ordering::SeqCst) && self.owner_waits.swap(false, Ordering::SeqCst) {
            self.room.notify_one();
        }
    }

    /// Returns true while attempts of several tenants wait for the processors. Other work of this process should then
    /// use less processor time.
    pub(crate) fn is_saturated(&self) -> bool {
        self.is_saturated.load(Ordering::Relaxed)
    }

    pub(crate) fn set_saturated(&self, is_saturated: bool) {
        self.is_saturated.store(is_saturated, Ordering::Relaxed);
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.governor.end(self.count);
    }
}

#[cfg(test)]
mod tests;

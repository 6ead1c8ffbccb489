//! Queue of the entries that wait for the writer. The queue has a limit of bytes and a limit of entries.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, TryAcquireError, watch};

use crate::format::{ENTRY_OVERHEAD, record_bytes};
use crate::{AppendError, Options};

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Semaphore with one permit per free byte of the queue. Each entry takes at least `share` permits, so the
    /// semaphore also limits the number of entries.
    capacity: Semaphore,
    capacity_max: u32,
    share: u32,
    filled: Notify,
    /// True while the writer waits for a segment because the disk is full.
    full: watch::Sender<bool>,
}

struct State<T> {
    entries: VecDeque<(Bytes, T)>,
    closed: bool,
}

/// Entries of one record. The list is never empty.
pub(crate) struct Batch<T> {
    pub(crate) entries: Vec<(Bytes, T)>,
    /// Size of the record's body in bytes.
    pub(crate) body_bytes: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(options: &Options) -> Self {
        Queue {
            state: Mutex::new(State { entries: VecDeque::new(), closed: false }),
            capacity: Semaphore::new(options.queue_bytes_max as usize),
            capacity_max: options.queue_bytes_max,
            share: (options.queue_bytes_max / options.queue_entries_max.max(1)).max(1),
            filled: Notify::new(),
            full: watch::Sender::new(false),
        }
    }

    /// Queues an entry. Waits while the queue is full. Cancel-safe: if the caller drops the future, the entry is not in
    /// the queue.
    pub(crate) async fn push(&self, entry: Bytes, ticket: T) -> Result<(), AppendError> {
        if self.is_full() {
            return Err(if self.is_closed() { AppendError::Closed } else { AppendError::Full });
        }
        let weight = self.weight(&entry);
        match self.capacity.try_acquire_many(weight) {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::Closed) => return Err(AppendError::Closed),
            Err(TryAcquireError::NoPermits) => self.wait_for_capacity(weight).await?,
        }
        let was_empty = {
            let mut state = self.state();
            if state.closed {
                return Err(AppendError::Closed);
            }
            state.entries.push_back((entry, ticket));
            state.entries.len() == 1
        };
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    async fn wait_for_capacity(&self, weight: u32) -> Result<(), AppendError> {
        let mut full = self.full.subscribe();
        let capacity = std::pin::pin!(self.capacity.acquire_many(weight));
        let full = std::pin::pin!(full.wait_for(|full| *full));
        match futures_util::future::select(capacity, full).await {
            futures_util::future::Either::Left((Ok(permit), _)) => {
                permit.forget();
                Ok(())
            }
            futures_util::future::Either::Left((Err(_), _)) => Err(AppendError::Closed),
            futures_util::future::Either::Right(_) => Err(AppendError::Full),
        }
    }

    /// Waits until the queue contains an entry. Returns `false` if the queue is closed and empty.
    pub(crate) async fn wait(&self) -> bool {
        loop {
            {
                let state = self.state();
                if !state.entries.is_empty() {
                    return true;
                }
                if state.closed {
                    return false;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Takes the oldest entries that fit into a record of at most `record_bytes_max` bytes. Takes at least one entry.
    pub(crate) fn take(&self, record_bytes_max: u64) -> Batch<T> {
        let mut state = self.state();
        let mut body_bytes = 0;
        let mut count = 0;
        let mut weight = 0;
        for (entry, _) in &state.entries {
            let with_entry = body_bytes + ENTRY_OVERHEAD + entry.len();
            if count > 0 && record_bytes(with_entry) > record_bytes_max {
                break;
            }
            body_bytes = with_entry;
            count += 1;
            weight += self.weight(entry) as usize;
        }
        assert!(count > 0, "the queue contains an entry, because the caller has waited for one");
        let entries = state.entries.drain(..count).collect();
        drop(state);
        self.capacity.add_permits(weight);
        Batch { entries, body_bytes }
    }

    /// Rejects new entries from now on. The writer still writes the entries in the queue.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.capacity.close();
        self.filled.notify_one();
    }

    /// Closes the queue and drops the queued entries with their tickets.
    pub(crate) fn close_and_clear(&self) {
        self.close();
        let dropped = std::mem::take(&mut self.state().entries);
        drop(dropped);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Records whether the disk is full. Returns true if this call changed the recorded state.
    pub(crate) fn set_full(&self, full: bool) -> bool {
        self.full.send_replace(full) != full
    }

    /// Returns the number of queued entries and the part of the queue's limit of bytes that they occupy.
    pub(crate) fn depth(&self) -> (usize, u64) {
        let entries = self.state().entries.len();
        (entries, u64::from(self.capacity_max).saturating_sub(self.capacity.available_permits() as u64))
    }

    fn weight(&self, entry: &Bytes) -> u32 {
        // The weight of an entry is the number of permits that it takes. It is at most the limit of the queue, so that
        // an empty queue also accepts an entry that is larger than this limit.
        u32::try_from(entry.len()).unwrap_or(u32::MAX).max(self.share).min(self.capacity_max)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no task panics while it holds this lock")
    }
}

//! Entries that wait for the writer; limited in bytes and in number.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, TryAcquireError, watch};

use crate::format::{ENTRY_OVERHEAD, record_bytes};
use crate::{AppendError, Options};

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// One permit per byte that may still be queued. An entry takes at least its share of them by number, so that this
    /// limits both.
    room: Semaphore,
    room_max: u32,
    share: u32,
    filled: Notify,
    /// Whether the writer waits for a segment that the disk has no room for.
    full: watch::Sender<bool>,
}

struct State<T> {
    entries: VecDeque<(Bytes, T)>,
    closed: bool,
}

/// What goes into one record. Never empty.
pub(crate) struct Batch<T> {
    pub(crate) entries: Vec<(Bytes, T)>,
    /// As in a record.
    pub(crate) body_bytes: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(options: &Options) -> Self {
        Queue {
            state: Mutex::new(State { entries: VecDeque::new(), closed: false }),
            room: Semaphore::new(options.queue_bytes_max as usize),
            room_max: options.queue_bytes_max,
            share: (options.queue_bytes_max / options.queue_entries_max.max(1)).max(1),
            filled: Notify::new(),
            full: watch::Sender::new(false),
        }
    }

    /// Waits for room. Nothing is queued if the future is dropped.
    pub(crate) async fn push(&self, entry: Bytes, ticket: T) -> Result<(), AppendError> {
        if self.is_full() {
            return Err(if self.is_closed() { AppendError::Closed } else { AppendError::Full });
        }
        let weight = self.weight(&entry);
        match self.room.try_acquire_many(weight) {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::Closed) => return Err(AppendError::Closed),
            Err(TryAcquireError::NoPermits) => self.wait_for_room(weight).await?,
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

    async fn wait_for_room(&self, weight: u32) -> Result<(), AppendError> {
        let mut full = self.full.subscribe();
        let room = std::pin::pin!(self.room.acquire_many(weight));
        let full = std::pin::pin!(full.wait_for(|full| *full));
        match futures_util::future::select(room, full).await {
            futures_util::future::Either::Left((Ok(permit), _)) => {
                permit.forget();
                Ok(())
            }
            futures_util::future::Either::Left((Err(_), _)) => Err(AppendError::Closed),
            futures_util::future::Either::Right(_) => Err(AppendError::Full),
        }
    }

    /// Waits until there is something to take; `false` if there never will be.
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

    /// The oldest entries that fit into a record of at most `record_bytes_max`, and one in any case.
    pub(crate) fn take(&self, record_bytes_max: u64) -> Batch<T> {
        let mut state = self.state();
        let mut body_bytes = 0;
        let mut count = 0;
        let mut weight = 0;
        for (entry, _) in &state.entries {
            let with_it = body_bytes + ENTRY_OVERHEAD + entry.len();
            if count > 0 && record_bytes(with_it) > record_bytes_max {
                break;
            }
            body_bytes = with_it;
            count += 1;
            weight += self.weight(entry) as usize;
        }
        assert!(count > 0, "only a filled queue is taken from");
        let entries = state.entries.drain(..count).collect();
        drop(state);
        self.room.add_permits(weight);
        Batch { entries, body_bytes }
    }

    /// From now on nothing is queued; what is, is still written.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.room.close();
        self.filled.notify_one();
    }

    /// Drops what is queued, and its tickets.
    pub(crate) fn end(&self) {
        self.close();
        let left = std::mem::take(&mut self.state().entries);
        drop(left);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Whether that is news.
    pub(crate) fn set_full(&self, full: bool) -> bool {
        self.full.send_replace(full) != full
    }

    /// Entries, and the bytes that they count for.
    pub(crate) fn depth(&self) -> (usize, u64) {
        let entries = self.state().entries.len();
        (entries, u64::from(self.room_max).saturating_sub(self.room.available_permits() as u64))
    }

    fn weight(&self, entry: &Bytes) -> u32 {
        // An entry larger than the whole queue may be queued alone.
        u32::try_from(entry.len()).unwrap_or(u32::MAX).max(self.share).min(self.room_max)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

//! Ages of overdue rows, for the metrics. The age of a row counts from the instant at which the row fell due. A row may
//! have a later position, because an owner deferred it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use domain::{DueKey, Timestamp};

use super::{BUCKET_MILLIS, Window, bucket, bucket_end};

/// Rows of one poller that have a later position than the instant at which they fell due.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Number of open keys, by the bucket of the instant at which they fell due. Contains no key whose position is in the
    /// same bucket.
    open: BTreeMap<i64, u32>,
    /// Rows that the owner has deferred, by the bucket of their new position: their number, and the earliest instant at
    /// which one of them fell due.
    deferred: BTreeMap<i64, (usize, Timestamp)>,
}

/// Returns the instant at which the row fell due. The store does not contain this instant for a retry or a redriven run,
/// so the result for such a row is its position.
fn due_since(key: &DueKey) -> Timestamp {
    let is_first = key.attempt == 1 && key.occurrence.replay == 0;
    if is_first { key.occurrence.nominal.min(key.position) } else { key.position }
}

impl Moved {
    pub(super) fn opened(&mut self, key: &DueKey) {
        let due = bucket(due_since(key));
        if due != bucket(key.position) {
            *self.open.entry(due).or_default() += 1;
        }
    }

    pub(super) fn finished(&mut self, key: &DueKey) {
        let due = bucket(due_since(key));
        if due != bucket(key.position) {
            let open = self.open.get_mut(&due).expect("the bucket of an open key exists");
            *open -= 1;
            if *open == 0 {
                self.open.remove(&due);
            }
        }
    }

    pub(super) fn deferred(&mut self, key: &DueKey, to: Timestamp) {
        let (rows, oldest) = self.deferred.entry(bucket(to)).or_insert((0, Timestamp::MAX));
        *rows += 1;
        *oldest = due_since(key).min(*oldest);
    }

    /// Forgets a deferred row whose key starts before its position.
    pub(super) fn brought_forward(&mut self, key: &DueKey) {
        if let Entry::Occupied(mut deferred) = self.deferred.entry(bucket(key.position)) {
            let (rows, _) = deferred.get_mut();
            *rows -= 1;
            if *rows == 0 {
                deferred.remove();
            }
        }
    }

    /// Forgets the deferred rows that are due again. The owner reads these rows into the window.
    fn forget_due(&mut self, now: Timestamp) {
        while let Some(first) = self.deferred.first_entry().filter(|first| bucket_end(*first.key()) <= now) {
            first.remove();
        }
    }
}

impl Window {
    /// Returns the number of deferred rows that are not yet due again, and the instant from which the oldest overdue row
    /// of all pollers is due. The second value may be too early by the width of a bucket, and may be in the future.
    pub(crate) fn overdue(&mut self, now: Timestamp) -> (usize, Option<Timestamp>) {
        let start = |bucket: &i64| Timestamp::from_millis(bucket * BUCKET_MILLIS);
        let mut deferred = 0;
        let mut oldest = None;
        for poller in self.pollers.values_mut() {
            poller.moved.forget_due(now);
            deferred += poller.moved.deferred.values().map(|(rows, _)| rows).sum::<usize>();
            let of_open = poller.open.keys().next().map(start);
            let of_moved = poller.moved.open.keys().next().map(start);
            let of_deferred = poller.moved.deferred.values().map(|(_, oldest)| *oldest).min();
            // Before the first read, `next` is `done`, at which there is no row.
            let unread = poller.next.filter(|next| *next > poller.done);
            let candidates = [oldest, of_open, of_moved, of_deferred, unread];
            oldest = candidates.into_iter().flatten().min();
        }
        (deferred, oldest)
    }
}

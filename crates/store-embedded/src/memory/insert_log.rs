//! Insert logs of all shards, in memory. They contain the due rows that creators added since this process started. The
//! owners of the shards read them.
//!
//! The entries need not survive a restart, because a new owner reads its pollers' due rows after `done`. For the same
//! reason the store may drop the oldest entries of a shard that no owner has taken since the start. The store keeps the
//! entries of a taken shard until the owner has presented a cursor after them. If the owner does not read the entries,
//! the store rejects user writes ([`InsertLog::is_full`]) before memory runs out.

use std::collections::VecDeque;

use domain::ShardId;
use domain::id::SHARDS;
use store::{Cursor, InsertLogEntry};

#[derive(Debug)]
pub(crate) struct InsertLog {
    rows: VecDeque<(ShardId, InsertLogEntry)>,
    /// Cursor directly before the first row of `rows`. It is the number of rows that the log has dropped.
    before: u64,
    shards: Vec<Shard>,
    rows_max: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Shard {
    taken: bool,
    /// Latest cursor that an owner has presented for the shard.
    presented: u64,
}

impl InsertLog {
    pub(crate) fn new(rows_max: usize) -> Self {
        InsertLog { rows: VecDeque::new(), before: 0, shards: vec![Shard::default(); usize::from(SHARDS)], rows_max }
    }

    pub(crate) fn take(&mut self, shard: ShardId) {
        if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
            shard.taken = true;
        }
    }

    pub(crate) fn append(&mut self, arrival: InsertLogEntry) {
        self.rows.push_back((arrival.poller.shard(), arrival));
        while self.rows.len() > self.rows_max && self.rows.front().is_some_and(|(shard, _)| !self.is_taken(*shard)) {
            self.rows.pop_front();
            self.before += 1;
        }
    }

    fn is_taken(&self, shard: ShardId) -> bool {
        self.shards.get(usize::from(shard.0)).is_some_and(|shard| shard.taken)
    }

    /// Returns whether the log has more rows than its maximum. The log exceeds the maximum if an owner does not read
    /// the rows of its shard.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() > self.rows_max
    }

    pub(crate) fn read(&mut self, shards: &[ShardId], cursor: Cursor, limit: usize) -> (Vec<InsertLogEntry>, Cursor) {
        let end = self.before + self.rows.len() as u64;
        let cursor = cursor.0.min(end);
        let mut requested = vec![false; self.shards.len()];
        for shard in shards {
            if let Some(requested) = requested.get_mut(usize::from(shard.0)) {
                *requested = true;
                let presented = &mut self.shards[usize::from(shard.0)].presented;
                *presented = (*presented).max(cursor);
            }
        }
        self.forget();
        let skip = usize::try_from(cursor.saturating_sub(self.before)).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        let mut at = self.before + skip as u64;
        for (shard, arrival) in self.rows.iter().skip(skip) {
            if requested.get(usize::from(shard.0)).is_some_and(|requested| *requested) {
                if found.len() >= limit {
                    return (found, Cursor(at));
                }
                found.push(*arrival);
            }
            at += 1;
        }
        (found, Cursor(at))
    }

    fn forget(&mut self) {
        while let Some((shard, _)) = self.rows.front() {
            // The cursor of a row is the number of rows up to and including this row. The cursor of the first row is
            // therefore `before + 1`.
            if self.shards[usize::from(shard.0)].presented <= self.before {
                break;
            }
            self.rows.pop_front();
            self.before += 1;
        }
        if self.rows.is_empty() {
            self.rows.shrink_to(1024);
        }
    }
}

#[cfg(test)]
mod tests;

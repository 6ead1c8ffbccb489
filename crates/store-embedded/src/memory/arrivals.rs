//! The due rows written since this process started, for owners that read them.
//!
//! They need not survive a restart: a new owner reads its pollers' due rows from `done` on. For the same reason the
//! arrivals of a shard that nobody has taken since the start may be forgotten, the oldest first. Those of a shard that
//! was taken are kept until its owner has presented a cursor after them; if the owner does not come, users are refused
//! ([`Arrivals::is_full`]) before memory runs out.

use std::collections::VecDeque;

use domain::ShardId;
use domain::id::SHARDS;
use store::{Arrival, Cursor};

#[derive(Debug)]
pub(crate) struct Arrivals {
    rows: VecDeque<(ShardId, Arrival)>,
    /// The cursor after the row before `rows`' first.
    before: u64,
    shards: Vec<Shard>,
    rows_max: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Shard {
    taken: bool,
    /// The latest cursor that was presented for it.
    presented: u64,
}

impl Arrivals {
    pub(crate) fn new(rows_max: usize) -> Self {
        Arrivals { rows: VecDeque::new(), before: 0, shards: vec![Shard::default(); usize::from(SHARDS)], rows_max }
    }

    pub(crate) fn take(&mut self, shard: ShardId) {
        if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
            shard.taken = true;
        }
    }

    pub(crate) fn append(&mut self, arrival: Arrival) {
        self.rows.push_back((arrival.poller.shard(), arrival));
        while self.rows.len() > self.rows_max && self.rows.front().is_some_and(|(shard, _)| !self.is_taken(*shard)) {
            self.rows.pop_front();
            self.before += 1;
        }
    }

    fn is_taken(&self, shard: ShardId) -> bool {
        self.shards.get(usize::from(shard.0)).is_some_and(|shard| shard.taken)
    }

    /// An owner is so far behind that no more can be kept for it.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() > self.rows_max
    }

    pub(crate) fn read(&mut self, shards: &[ShardId], cursor: Cursor, limit: usize) -> (Vec<Arrival>, Cursor) {
        let end = self.before + self.rows.len() as u64;
        let cursor = cursor.0.min(end);
        let mut asked = vec![false; self.shards.len()];
        for shard in shards {
            if let Some(asked) = asked.get_mut(usize::from(shard.0)) {
                *asked = true;
                let presented = &mut self.shards[usize::from(shard.0)].presented;
                *presented = (*presented).max(cursor);
            }
        }
        self.forget();
        let skip = usize::try_from(cursor.saturating_sub(self.before)).unwrap_or(usize::MAX);
        let mut told = Vec::new();
        let mut at = self.before + skip as u64;
        for (shard, arrival) in self.rows.iter().skip(skip) {
            if asked.get(usize::from(shard.0)).is_some_and(|asked| *asked) {
                if told.len() >= limit {
                    return (told, Cursor(at));
                }
                told.push(*arrival);
            }
            at += 1;
        }
        (told, Cursor(at))
    }

    fn forget(&mut self) {
        while let Some((shard, _)) = self.rows.front() {
            // The row's own cursor is the number of the rows up to it.
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

//! Entries of a node's log that follow the node's snapshot.

use std::collections::VecDeque;

use crate::entry::{Entry, Position};
use crate::ids::{Ballot, Slot};

/// Log without gaps. The ballot of an entry is never lower than the ballot of the entry before it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    /// Position of the last entry that the node has trimmed.
    base: Position,
    entries: VecDeque<Entry>,
}

impl Log {
    pub(crate) fn new(base: Position) -> Self {
        Log { base, entries: VecDeque::new() }
    }

    pub(crate) fn base(&self) -> Position {
        self.base
    }

    pub(crate) fn last(&self) -> Position {
        match self.entries.back() {
            Some(entry) => Position { ballot: entry.ballot, slot: Slot(self.base.slot.0 + self.entries.len() as u64) },
            None => self.base,
        }
    }

    fn index(&self, slot: Slot) -> Option<usize> {
        usize::try_from(slot.0.checked_sub(self.base.slot.0 + 1)?).ok()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(self.index(slot)?)
    }

    /// Returns the ballot of the entry at `slot`. Returns `None` if the slot is before the last trimmed entry or after
    /// the end of the log.
    pub(crate) fn ballot_at(&self, slot: Slot) -> Option<Ballot> {
        if slot == self.base.slot { Some(self.base.ballot) } else { self.get(slot).map(|entry| entry.ballot) }
    }

    pub(crate) fn position(&self, slot: Slot) -> Option<Position> {
        self.ballot_at(slot).map(|ballot| Position { ballot, slot })
    }

    /// # Panics
    /// Panics if the ballot of the entry is lower than the last ballot of the log.
    pub(crate) fn push(&mut self, entry: Entry) -> Slot {
        assert!(entry.ballot >= self.last().ballot, "the ballots of a log's entries never decrease");
        self.entries.push_back(entry);
        self.last().slot
    }

    /// Removes the entries after `slot`.
    pub(crate) fn truncate_after(&mut self, slot: Slot) {
        let kept = slot.0.checked_sub(self.base.slot.0);
        let kept = kept.expect("a node never truncates its log before the slot of its snapshot");
        self.entries.truncate(usize::try_from(kept).expect("the number of log entries fits into a `usize`"));
    }

    /// Removes the entries up to `slot`.
    pub(crate) fn trim(&mut self, slot: Slot) {
        let Some(base) = self.position(slot) else { return };
        let count = usize::try_from(slot.0 - self.base.slot.0).expect("the number of log entries fits into a `usize`");
        self.entries.drain(..count);
        self.base = base;
    }

    /// Returns all entries after `slot`.
    pub(crate) fn iter_after(&self, slot: Slot) -> impl Iterator<Item = &Entry> {
        let first = self.index(slot.next()).unwrap_or(usize::MAX);
        self.entries.range(first.min(self.entries.len())..)
    }

    /// Returns the first entries after `slot`: at most `slots_max` entries with about `bytes_max` bytes in total.
    /// Returns at least one entry if the log contains an entry after `slot`.
    pub(crate) fn after(&self, slot: Slot, slots_max: usize, bytes_max: usize) -> Vec<Entry> {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += entry.value.size();
            is_first || bytes <= bytes_max
        };
        self.iter_after(slot).take(slots_max).take_while(fits).cloned().collect()
    }
}

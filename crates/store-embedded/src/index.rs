//! The index behind the journal: ordered rows on disk, which may lose rows that were not flushed.
//!
//! An index keeps every version of a row that a replay may need. A row is written at a [`Sequence`] and read as it was
//! before one. A replay that starts at or before the last flushed entry therefore reads the same rows as the first run
//! and writes the same rows at the same sequences, although the families were flushed at different times.
//!
//! Invariants: one thread writes rows, in rising sequences. A read returns all rows of one family that were written
//! before it. A read verifies a checksum, or fails.

pub(crate) mod lsm;
pub(crate) mod map;

use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// Family of rows. Families differ in the size of their rows and in the order of writes. They are stored separately, so
/// that moving the rows of one family does not rewrite the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Family {
    /// Schedules as they were requested, by the time-ordered number of the row. A row never changes. It is removed when
    /// no read needs it.
    Rows,
    /// Due rows, by poller and position. A row never changes. Ranges of rows are dropped when their poller is done with
    /// them.
    Due,
    /// Small rows for look-ups: ids, states, runs, dead letters, positions, terms, tenants.
    Points,
}

impl Family {
    pub(crate) const ALL: [Family; 3] = [Family::Rows, Family::Due, Family::Points];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Family::Rows => "rows",
            Family::Due => "due",
            Family::Points => "points",
        }
    }
}

/// Sequence of a write: the number of the journal entry, then the number of the item in the entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Sequence(u64);

/// Number of bits for the item. Entry numbers have the other 47 bits: 44 years at 100,000 entries per second.
const ITEM_BITS: u32 = 16;

impl Sequence {
    /// Bound of a read that sees every version.
    pub(crate) const LATEST: Sequence = Sequence((1 << 63) - 1);

    /// # Panics
    /// Panics if `item` does not fit into 16 bits, or `entry` into 47.
    pub(crate) const fn new(entry: u64, item: u32) -> Self {
        assert!(item < 1 << ITEM_BITS, "an entry has at most 2^16 items");
        assert!(entry < (1 << (63 - ITEM_BITS)) - 1, "entry numbers fit into 47 bits");
        Sequence((entry + 1) << ITEM_BITS | item as u64)
    }

    /// Returns the sequence at the end of `entry`: not before any of its items, and before the next entry.
    pub(crate) const fn end_of(entry: u64) -> Self {
        Sequence::new(entry, (1 << ITEM_BITS) - 1)
    }

    pub(crate) const fn as_u64(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_u64(value: u64) -> Self {
        Sequence(value)
    }

    /// Returns the next sequence. A read before it sees the writes at this sequence.
    pub(crate) const fn next(self) -> Self {
        Sequence(self.0 + 1)
    }
}

/// Error of an index.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    /// Stored bytes differ from the bytes that were written.
    #[error("{family} {range}: {reason}")]
    Damaged { family: &'static str, range: String, reason: String },
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Backlog of the index's own work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pressure {
    /// Number of sealed parts that wait for a flush, in the family that has most.
    pub sealed: usize,
    /// Number of flushed parts that wait for a merge, in the family that has most.
    pub unmerged: usize,
}

/// Result of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Number of files whose bytes were compared with a checksum.
    pub files: usize,
    pub bytes: u64,
    /// Number of live rows, by family: schedules, due rows, small rows.
    pub rows: [u64; 3],
    /// Descriptions of the damage that was found.
    pub damages: Vec<String>,
}

type Visit<'a> = &'a mut dyn FnMut(&[u8], &Bytes) -> ControlFlow<()>;

/// An index. Its calls may block their thread.
pub(crate) trait Index: Send + Sync + 'static {
    /// Returns the row of `key` as it was before `before`.
    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, IndexError>;

    /// Visits the rows from `from` (inclusive) to `to` (exclusive) as they were before `before`, in key order, until
    /// `visit` breaks.
    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        before: Sequence,
        visit: Visit<'_>,
    ) -> Result<(), IndexError>;

    /// Writes a row.
    fn put(&self, family: Family, key: &[u8], value: &[u8], at: Sequence);

    /// Returns the sequence of the row in [`Family::Points`] that a read before `before` sees.
    fn written(&self, key: &[u8], before: Sequence) -> Result<Option<Sequence>, IndexError>;

    /// Removes a row of [`Family::Rows`] or [`Family::Points`]. Due rows are never removed one by one.
    fn remove(&self, family: Family, key: &[u8], at: Sequence);

    /// Allows the index to drop the due rows whose keys begin with `poller` and are below `to`. They are not read any
    /// more.
    fn retire(&self, poller: [u8; 8], to: &[u8]);

    /// Seals `family`: the next flush writes every row so far. The writer calls it between two entries.
    fn seal(&self, family: Family);

    /// Returns the number of bytes written to `family` since it was sealed.
    fn unsealed_bytes(&self, family: Family) -> u64;

    /// Flushes every part sealed before this call. When the call returns, the rows are durable and were read back. It
    /// keeps every version that a read at or after `keep_from` needs.
    fn flush(&self, keep_from: Sequence) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Returns the latest sequence of any flushed row, or `None` if there is none.
    fn flushed_to(&self) -> Option<Sequence>;

    /// Makes one step of merging flushed parts. Returns false if there was nothing to do. Blocks its thread.
    fn merge_step(&self, keep_from: Sequence) -> Result<bool, IndexError>;

    /// Returns the backlog of flushes and merges.
    fn pressure(&self) -> Pressure;

    /// Compares all stored bytes with their checksums, and counts rows.
    fn verify(&self) -> BoxFuture<'_, Result<Verified, IndexError>>;

    /// Copies everything flushed to a folder, from which the index can be opened. No flush or merge may run during the
    /// copy.
    fn copy_to<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, Result<(), IndexError>>;
}

//! Index of the store: ordered rows on disk. A crash may lose rows that the index has not flushed. The journal restores
//! them.
//!
//! Every write of a row has a [`Sequence`]. The caller of a read passes a sequence and receives the newest version of
//! the row before that sequence. The index keeps every version of a row that a replay may need. A replay that starts at
//! or before the last flushed entry therefore reads and writes the same rows at the same sequences as the first
//! application of the entries. This holds even if the index flushed the families at different times.
//!
//! Invariants: one thread writes rows, in rising sequences. A read of a family observes all rows that the thread wrote
//! before the read. A read verifies the checksums of the bytes that it returns, or fails.

pub(crate) mod lsm;
pub(crate) mod map;

use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// Family of rows. Families differ in the size of their rows and in the order of their writes. The index stores each
/// family separately, so that a merge of one family does not rewrite the rows of another family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Family {
    /// Schedules as callers requested them. The key is the incarnation, which is ordered by time. A row never changes.
    /// The store removes a row when no read needs it.
    Rows,
    /// Due rows, by poller and position. A row never changes. The index drops the rows at or before their poller's
    /// `done`, range by range.
    Due,
    /// Small rows for look-ups: ids, states, runs, dead letters, positions, terms and tenants.
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

/// Number of bits of a sequence that store the number of the item. The entry's number uses 47 bits, which are enough
/// for 44 years at 100,000 entries per second.
const ITEM_BITS: u32 = 16;

impl Sequence {
    /// Sequence after all writes. A read before this sequence returns the latest version of each row.
    pub(crate) const LATEST: Sequence = Sequence((1 << 63) - 1);

    /// # Panics
    /// Panics if `item` does not fit into 16 bits, or if `entry` does not fit into 47 bits.
    pub(crate) const fn new(entry: u64, item: u32) -> Self {
        assert!(item < 1 << ITEM_BITS, "a journal entry has at most 2^16 items");
        assert!(entry < (1 << (63 - ITEM_BITS)) - 1, "the number of a journal entry fits into 47 bits");
        Sequence((entry + 1) << ITEM_BITS | item as u64)
    }

    /// Returns the last sequence of `entry`. No item of the entry has a higher sequence, and all items of later entries
    /// have higher sequences.
    pub(crate) const fn end_of(entry: u64) -> Self {
        Sequence::new(entry, (1 << ITEM_BITS) - 1)
    }

    /// Returns the number of the journal entry.
    pub(crate) const fn entry(self) -> u64 {
        (self.0 >> ITEM_BITS).saturating_sub(1)
    }

    pub(crate) const fn as_u64(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_u64(value: u64) -> Self {
        Sequence(value)
    }

    /// Returns the previous sequence. A read before this sequence observes the writes at the previous sequence.
    pub(crate) const fn previous(self) -> Self {
        Sequence(self.0 - 1)
    }

    /// Returns the next sequence. A read before the next sequence observes the writes at this sequence.
    pub(crate) const fn next(self) -> Self {
        Sequence(self.0 + 1)
    }
}

/// Error of an index.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    /// Stored bytes differ from the bytes that the index wrote.
    #[error("{family} {range}: {reason}")]
    Damaged { family: &'static str, range: String, reason: String },
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Range of keys of due rows that the index cannot read, because a part of a table is damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unreadable {
    /// Inclusive lower bound.
    pub from: Vec<u8>,
    /// Exclusive upper bound.
    pub to: Vec<u8>,
}

impl Unreadable {
    pub(crate) fn contains(&self, other: &Unreadable) -> bool {
        self.from <= other.from && other.to <= self.to
    }
}

/// Backlog of the index's flushes and merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pressure {
    /// Largest number of sealed index parts in one family. These parts wait for a flush.
    pub sealed: usize,
    /// Largest number of flushed index parts in one family that wait for a merge.
    pub unmerged: usize,
}

/// Result of a verification of the index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Number of files whose bytes the verification compared with a checksum.
    pub files: usize,
    pub bytes: u64,
    /// Number of live rows, by family: schedules, due rows, small rows.
    pub rows: [u64; 3],
    /// Descriptions of the damage that the verification found.
    pub damages: Vec<String>,
}

type Visit<'a> = &'a mut dyn FnMut(&[u8], &Bytes) -> ControlFlow<()>;
/// Visitor of versions of rows. The version of a removed row is `None`.
type VisitVersion<'a> = &'a mut dyn FnMut(&[u8], Option<&Bytes>) -> ControlFlow<()>;

/// Range of a scan: the versions before the sequence `before` of the rows from `from` (inclusive) to `to` (exclusive).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRange<'a> {
    pub from: &'a [u8],
    pub to: &'a [u8],
    pub before: Sequence,
    /// True if the scan starts at the highest key.
    pub is_back: bool,
}

/// Index of a store. A call may block its thread.
pub(crate) trait Index: Send + Sync + 'static {
    /// Returns the newest version of the row `key` before the sequence `before`.
    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, IndexError>;

    /// Calls `visit` with the rows of `range` in the order of their keys, until `visit` returns `Break`. `visit`
    /// receives the newest version of each row. The version of a removed row is `None`. The index need not contain
    /// removed rows. A caller that counts removed rows can bound the time of a scan.
    fn scan_versions(&self, family: Family, range: ScanRange<'_>, visit: VisitVersion<'_>) -> Result<(), IndexError>;

    /// Calls `visit` with the rows from `from` (inclusive) to `to` (exclusive) in key order, until `visit` returns
    /// `Break`. `visit` receives the newest version of each row before the sequence `before`.
    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        before: Sequence,
        visit: Visit<'_>,
    ) -> Result<(), IndexError> {
        let range = ScanRange { from, to, before, is_back: false };
        self.scan_versions(family, range, &mut |key, value| {
            value.map_or(ControlFlow::Continue(()), |it| visit(key, it))
        })
    }

    /// Visits the same rows as [`Index::scan`], in the reverse order.
    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        before: Sequence,
        visit: Visit<'_>,
    ) -> Result<(), IndexError> {
        let range = ScanRange { from, to, before, is_back: true };
        self.scan_versions(family, range, &mut |key, value| {
            value.map_or(ControlFlow::Continue(()), |it| visit(key, it))
        })
    }

    /// Visits the latest versions of due rows as [`Index::scan`] does, but skips the ranges that the index cannot read.
    /// Adds these ranges to `skipped`.
    fn scan_readable_due(
        &self,
        from: &[u8],
        to: &[u8],
        skipped: &mut Vec<Unreadable>,
        visit: Visit<'_>,
    ) -> Result<(), IndexError>;

    /// Reads all due rows, and returns the ranges that the index cannot read.
    fn unreadable_due(&self) -> Result<Vec<Unreadable>, IndexError>;

    /// Replaces each table that has unreadable due rows by a table of its readable rows. Keeps a table if
    /// `is_rebuilt` returns false for one of its unreadable ranges. The caller ensures that no flush or merge runs
    /// during this call.
    fn drop_unreadable_due(&self, is_rebuilt: &dyn Fn(&Unreadable) -> bool) -> Result<(), IndexError>;

    /// Writes a row.
    fn put(&self, family: Family, key: &[u8], value: &[u8], at: Sequence);

    /// Returns the sequence of the last write of a row in [`Family::Points`] before the sequence `before`.
    fn written(&self, key: &[u8], before: Sequence) -> Result<Option<Sequence>, IndexError>;

    /// Removes a row of [`Family::Rows`] or [`Family::Points`]. Callers remove due rows only in ranges, with
    /// [`Index::retire`].
    fn remove(&self, family: Family, key: &[u8], at: Sequence);

    /// Allows the index to drop the due rows whose keys begin with `poller` and are below `to`. The caller does not
    /// read these rows after this call. If an earlier call for this poller had a higher `to`, this call withdraws the
    /// permission for the rows from `to` on that the caller puts after this call.
    fn retire(&self, poller: [u8; 8], to: &[u8]);

    /// Seals `family`, so that the next flush writes all current rows of the family. The writer calls this method
    /// between two journal entries.
    fn seal(&self, family: Family);

    /// Returns the number of bytes that the writer wrote to `family` after the last seal.
    fn unsealed_bytes(&self, family: Family) -> u64;

    /// Flushes every part that the writer sealed before this call. When the call returns, the rows are durable and the
    /// index has verified them. The flush keeps every version that a read at or after `keep_from` needs.
    fn flush(&self, keep_from: Sequence) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Returns the latest sequence of all flushed rows, or `None` if the index has flushed no row.
    fn flushed_to(&self) -> Option<Sequence>;

    /// Performs one merge step on the flushed parts. Returns false if no part needs a merge. The call blocks its
    /// thread.
    fn merge_step(&self, keep_from: Sequence) -> Result<bool, IndexError>;

    /// Returns the backlog of flushes and merges.
    fn pressure(&self) -> Pressure;

    /// Compares all stored bytes with their checksums, and counts the rows.
    fn verify(&self) -> BoxFuture<'_, Result<Verified, IndexError>>;

    /// Copies all flushed data to a folder. A store can open the index in that folder. The caller ensures that no flush
    /// or merge runs during the copy.
    fn copy_to<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, Result<(), IndexError>>;
}

//! What stands behind the journal: ordered rows on disk that may lose what was not flushed.
//!
//! An index keeps every version of a row that a replay may need: a row is written at a [`Sequence`], and read as it
//! was before one. So a replay that starts anywhere at or before what was flushed sees what the first run saw, and
//! writes the same rows at the same sequences, although the families were flushed at different moments.
//!
//! Always true here: rows are written by one thread, in rising sequences; a read meets all rows of one family that were
//! written before it; what comes back was checked against a checksum or the read fails.

pub(crate) mod lsm;
pub(crate) mod map;

use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// Rows that differ in size and order of arrival, and are kept apart so that moving one kind does not rewrite another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Family {
    /// Schedules as they were asked for, by the time-ordered number of the row. Never changed; removed once nobody asks for
    /// them.
    Rows,
    /// Due rows, by poller and position. Never changed; dropped in stretches once their poller is done with them.
    Due,
    /// Small rows that are looked up: ids, states, runs, dead letters, positions, terms, tenants.
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

/// When a row is written: the number of the journal entry, then the number of the item in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Sequence(u64);

/// Entry numbers have 47 bits: 44 years at 100,000 entries a second.
const ITEM_BITS: u32 = 16;

impl Sequence {
    /// A read before this sees everything.
    pub(crate) const LATEST: Sequence = Sequence((1 << 63) - 1);

    /// # Panics
    /// If `item` does not fit into 16 bits, or `entry` into 47.
    pub(crate) const fn new(entry: u64, item: u32) -> Self {
        assert!(item < 1 << ITEM_BITS, "an entry holds few items");
        assert!(entry < (1 << (63 - ITEM_BITS)) - 1, "entry numbers last for the life of a store");
        Sequence((entry + 1) << ITEM_BITS | item as u64)
    }

    /// Not before any item of `entry`, before the next entry.
    pub(crate) const fn end_of(entry: u64) -> Self {
        Sequence::new(entry, (1 << ITEM_BITS) - 1)
    }

    pub(crate) const fn as_u64(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_u64(value: u64) -> Self {
        Sequence(value)
    }

    /// A read before it sees what was written at this.
    pub(crate) const fn next(self) -> Self {
        Sequence(self.0 + 1)
    }
}

/// Why an index says no.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    /// Stored bytes are not what was written.
    #[error("{family} {range}: {reason}")]
    Damaged { family: &'static str, range: String, reason: String },
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// How far the index's own work is behind its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pressure {
    /// Sealed parts that wait to be flushed, of the family that has most.
    pub sealed: usize,
    /// Flushed parts that wait to be merged, likewise.
    pub unmerged: usize,
}

/// What a walk over everything found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Files whose bytes were all compared with a checksum.
    pub files: usize,
    pub bytes: u64,
    /// Live rows, by kind: schedules, due rows, small rows.
    pub rows: [u64; 3],
    /// Each damage found, in words.
    pub damages: Vec<String>,
}

type Visit<'a> = &'a mut dyn FnMut(&[u8], &Bytes) -> ControlFlow<()>;

/// See the module's documentation. Reads and writes may block their thread.
pub(crate) trait Index: Send + Sync + 'static {
    /// The row of `key` as it was before `before`.
    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, IndexError>;

    /// The rows from `from` (included) to `to` (excluded) as they were before `before`, in the order of their keys,
    /// until `visit` breaks off.
    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        before: Sequence,
        visit: Visit<'_>,
    ) -> Result<(), IndexError>;

    fn put(&self, family: Family, key: &[u8], value: &[u8], at: Sequence);

    /// When the row of [`Family::Points`] was written that a read before `before` sees.
    fn written(&self, key: &[u8], before: Sequence) -> Result<Option<Sequence>, IndexError>;

    /// Removes a row, of any family but [`Family::Due`], whose rows are never removed one by one.
    fn remove(&self, family: Family, key: &[u8], at: Sequence);

    /// Due rows whose keys begin with `poller` and are below `to` are not read any more, and may go.
    fn retire(&self, poller: [u8; 8], to: &[u8]);

    /// Everything written to `family` so far belongs to the next flush. Called by the writer, between two entries.
    fn seal(&self, family: Family);

    /// Bytes written to `family` since it was sealed.
    fn unsealed_bytes(&self, family: Family) -> u64;

    /// Everything sealed before this call is durable, and read back, when this returns. No version that a read at or
    /// after `keep_from` needs is forgotten.
    fn flush(&self, keep_from: Sequence) -> BoxFuture<'_, Result<(), IndexError>>;

    /// No row that is flushed is later than this; `None` if nothing is.
    fn flushed_to(&self) -> Option<Sequence>;

    /// Merges what was flushed, one step; false if there was nothing to do. Blocks its thread.
    fn merge_step(&self, keep_from: Sequence) -> Result<bool, IndexError>;

    fn pressure(&self) -> Pressure;

    /// Compares everything stored with its checksums, and counts rows.
    fn verify(&self) -> BoxFuture<'_, Result<Verified, IndexError>>;

    /// Copies everything flushed to a folder, from which it can be opened. No flush or merge may run meanwhile.
    fn copy_to<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, Result<(), IndexError>>;
}

//! Versions of small rows: which of them a replay may still read, and which are left out when tables are merged.
//!
//! The library forgets a version as soon as it is older than the oldest read and *any* newer one is there, even one that
//! a replay from the last checkpoint must not see yet. So it is told to forget nothing; instead each value carries its
//! sequence, and a removal is a value, too, and what no read needs is left out here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

use super::super::Sequence;

/// In the sequence that a value begins with; sequences have 63 bits.
const REMOVED: u64 = 1 << 63;
const LEN: usize = 8;

pub(super) fn wrap(value: Option<&[u8]>, at: Sequence) -> Vec<u8> {
    let mark = if value.is_some() { 0 } else { REMOVED };
    let mut wrapped = Vec::with_capacity(LEN + value.map_or(0, <[u8]>::len));
    wrapped.extend_from_slice(&(at.as_u64() | mark).to_le_bytes());
    wrapped.extend_from_slice(value.unwrap_or_default());
    wrapped
}

/// The value, or `None` if it was removed.
pub(super) fn unwrap(wrapped: &Bytes) -> Result<Option<Bytes>, lsm_tree::Error> {
    let (_, is_removed) = parse(wrapped)?;
    Ok((!is_removed).then(|| wrapped.slice(LEN..)))
}

/// Whether this is, where values are not wrapped, no row but the removal of one: none is so short.
pub(super) fn is_removal(value: &[u8]) -> bool {
    value.len() == LEN
}

/// When the value was written; `None` if it was removed.
pub(super) fn written(wrapped: &[u8]) -> Result<Option<Sequence>, lsm_tree::Error> {
    let (sequence, is_removed) = parse(wrapped)?;
    Ok((!is_removed).then_some(Sequence::from_u64(sequence)))
}

fn parse(wrapped: &[u8]) -> Result<(u64, bool), lsm_tree::Error> {
    let mark = wrapped.first_chunk::<LEN>().ok_or(lsm_tree::Error::InvalidHeader("a versioned value"))?;
    let mark = u64::from_le_bytes(*mark);
    Ok((mark & !REMOVED, mark & REMOVED != 0))
}

/// The sequence from which on reads may still come.
#[derive(Default)]
pub(super) struct VersionsFactory(pub(super) Arc<AtomicU64>);

impl Factory for VersionsFactory {
    fn name(&self) -> &'static str {
        "versions that no replay reads"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(VersionsFilter { keep_from: self.0.load(Ordering::Acquire), key: Bytes::new(), is_settled: false })
    }
}

/// Sees the versions of a key from the newest to the oldest.
struct VersionsFilter {
    keep_from: u64,
    key: Bytes,
    /// A version of this key was kept that the earliest read sees: it sees no older one.
    is_settled: bool,
}

impl CompactionFilter for VersionsFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, context: &Context) -> lsm_tree::Result<Verdict> {
        let key: &[u8] = item.key();
        if key != &self.key[..] {
            self.key = Bytes::from(item.key().clone());
            self.is_settled = false;
        }
        if self.is_settled {
            return Ok(Verdict::Destroy);
        }
        let (sequence, is_removed) = parse(&item.value()?)?;
        self.is_settled = sequence < self.keep_from;
        // Below the last level there is nothing that a removal could hide.
        let is_needless = self.is_settled && is_removed && context.is_last_level;
        Ok(if is_needless { Verdict::Destroy } else { Verdict::Keep })
    }
}

/// As [`VersionsFactory`], for rows that never change: they are written once, as they are, and may be removed.
pub(super) struct RemovedRowsFactory(pub(super) Arc<AtomicU64>);

impl Factory for RemovedRowsFactory {
    fn name(&self) -> &'static str {
        "rows that were removed"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(RemovedRowsFilter { keep_from: self.0.load(Ordering::Acquire), key: Bytes::new(), is_removed: false })
    }
}

struct RemovedRowsFilter {
    keep_from: u64,
    key: Bytes,
    /// The earliest read sees that it was removed.
    is_removed: bool,
}

impl CompactionFilter for RemovedRowsFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, context: &Context) -> lsm_tree::Result<Verdict> {
        let key: &[u8] = item.key();
        if key != &self.key[..] {
            self.key = Bytes::from(item.key().clone());
            self.is_removed = false;
        }
        let value = item.value()?;
        if self.is_removed {
            return Ok(Verdict::Destroy);
        }
        if !is_removal(&value) {
            return Ok(Verdict::Keep);
        }
        self.is_removed = parse(&value)?.0 < self.keep_from;
        let is_needless = self.is_removed && context.is_last_level;
        Ok(if is_needless { Verdict::Destroy } else { Verdict::Keep })
    }
}

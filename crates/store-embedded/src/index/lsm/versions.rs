//! Versions of small rows: which versions a replay may still read, and which versions a merge drops.
//!
//! The library drops a version when the version is older than the oldest read and *any* newer version exists. The newer
//! version may be a version that a replay from the last checkpoint must not observe yet. This index therefore
//! configures the library to drop nothing. Instead, each value starts with its sequence, and a removal is a value too.
//! This module's filter drops the versions that no read needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

use super::super::Sequence;

/// Flag that marks a removal, in the sequence at the start of a value. The flag is free because sequences have 63 bits.
const REMOVED: u64 = 1 << 63;
const LEN: usize = 8;

pub(super) fn wrap(value: Option<&[u8]>, at: Sequence) -> Vec<u8> {
    let flag = if value.is_some() { 0 } else { REMOVED };
    let mut wrapped = Vec::with_capacity(LEN + value.map_or(0, <[u8]>::len));
    wrapped.extend_from_slice(&(at.as_u64() | flag).to_le_bytes());
    wrapped.extend_from_slice(value.unwrap_or_default());
    wrapped
}

/// Returns the value without its sequence, or `None` for a removal.
pub(super) fn unwrap(wrapped: &Bytes) -> Result<Option<Bytes>, lsm_tree::Error> {
    let (_, is_removed) = parse(wrapped)?;
    Ok((!is_removed).then(|| wrapped.slice(LEN..)))
}

/// Returns whether a value in [`Family::Rows`](super::super::Family::Rows) is a removal. The value of every row is
/// longer than a removal.
pub(super) fn is_removal(value: &[u8]) -> bool {
    value.len() == LEN
}

/// Returns the sequence of the value, or `None` for a removal.
pub(super) fn written(wrapped: &[u8]) -> Result<Option<Sequence>, lsm_tree::Error> {
    let (sequence, is_removed) = parse(wrapped)?;
    Ok((!is_removed).then_some(Sequence::from_u64(sequence)))
}

fn parse(wrapped: &[u8]) -> Result<(u64, bool), lsm_tree::Error> {
    let header = wrapped.first_chunk::<LEN>().ok_or(lsm_tree::Error::InvalidHeader("a versioned value"))?;
    let header = u64::from_le_bytes(*header);
    Ok((header & !REMOVED, header & REMOVED != 0))
}

/// Factory of the filters that drop unneeded versions of small rows during a merge. The field contains the lowest
/// sequence that a caller may still pass to a read.
#[derive(Default)]
pub(super) struct VersionsFactory(pub(super) Arc<AtomicU64>);

impl Factory for VersionsFactory {
    fn name(&self) -> &'static str {
        "row versions that no replay reads"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(VersionsFilter { keep_from: self.0.load(Ordering::Acquire), key: Bytes::new(), is_covered: false })
    }
}

/// Filter of the versions of a key. The library passes the versions from the newest to the oldest.
struct VersionsFilter {
    keep_from: u64,
    key: Bytes,
    /// True if the filter has processed a version of this key that a read at `keep_from` observes. No read observes an
    /// older version.
    is_covered: bool,
}

impl CompactionFilter for VersionsFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, context: &Context) -> lsm_tree::Result<Verdict> {
        let key: &[u8] = item.key();
        if key != &self.key[..] {
            self.key = Bytes::from(item.key().clone());
            self.is_covered = false;
        }
        if self.is_covered {
            return Ok(Verdict::Destroy);
        }
        let (sequence, is_removed) = parse(&item.value()?)?;
        self.is_covered = sequence < self.keep_from;
        // The last level has no level below it, so a removal in the last level hides no older version.
        let is_unneeded = self.is_covered && is_removed && context.is_last_level;
        Ok(if is_unneeded { Verdict::Destroy } else { Verdict::Keep })
    }
}

/// Factory of filters for rows that the store writes once and may remove. The values of these rows contain no sequence.
/// The field is the lowest sequence that a caller may still pass to a read.
pub(super) struct RemovedRowsFactory(pub(super) Arc<AtomicU64>);

impl Factory for RemovedRowsFactory {
    fn name(&self) -> &'static str {
        "removed rows that no replay reads"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(RemovedRowsFilter { keep_from: self.0.load(Ordering::Acquire), key: Bytes::new(), is_removed: false })
    }
}

struct RemovedRowsFilter {
    keep_from: u64,
    key: Bytes,
    /// True if a read at `keep_from` observes the removal of this key.
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
        let is_unneeded = self.is_removed && context.is_last_level;
        Ok(if is_unneeded { Verdict::Destroy } else { Verdict::Keep })
    }
}

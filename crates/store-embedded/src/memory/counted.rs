//! Counts of final runs that the state machine has changed since it last wrote them to the index.
//!
//! The state machine adds a run to the counts in memory in the step that writes the final record of the run. It writes
//! the counts to the index with each checkpoint, and earlier if they are too large. A replay therefore starts with the
//! counts of the checkpoint, and adds the runs of the later entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Counts, Facet, Hour, RunOrigin, RunSample, TenantId};

use super::Usages;
use crate::codec::counted;
use crate::index::{Family, Index, Sequence};

/// Maximum number of bytes of the counts in memory. The counts exceed it by at most the rows of one run.
const BYTES_MAX: usize = 24 << 20;
/// Approximate number of bytes in memory of a row, of a group and of a bucket of a histogram. Maps allocate space for
/// several entries at once, so a small row needs most of these bytes.
const ROW_BYTES: usize = 1_024;
const GROUP_BYTES: usize = 1_024;
const BUCKET_BYTES: usize = 32;

type Key = (TenantId, Facet, Hour);

#[derive(Debug)]
struct Changed {
    /// Readers share the counts, so that a read copies nothing while it locks the memory.
    counts: Arc<Counts>,
    /// [`Counts::size`], with which the row counts as bytes of its tenant. `None` if the row is new.
    size: Option<usize>,
    /// [`Counts::buckets`].
    buckets: usize,
}

impl Changed {
    /// Returns the approximate number of bytes of the row in memory.
    fn bytes(&self) -> usize {
        let groups = self.counts.groups().len();
        ROW_BYTES + GROUP_BYTES * groups + 2 * self.size.unwrap_or(0) + BUCKET_BYTES * self.buckets
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counted {
    rows: BTreeMap<Key, Changed>,
    bytes: usize,
}

impl Counted {
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.rows.contains_key(&key)
    }

    /// Adds the counts of a row of the index, or no counts if the index has no row.
    pub(crate) fn load(&mut self, key: Key, counts: Option<Counts>) {
        let size = counts.as_ref().map(Counts::size);
        let counts = counts.unwrap_or_default();
        let changed = Changed { size, buckets: counts.buckets(), counts: Arc::new(counts) };
        self.bytes += changed.bytes();
        self.rows.insert(key, changed);
    }

    /// Adds a final run, and changes the bytes of its tenant. The caller has loaded the row.
    pub(crate) fn record(&mut self, usages: &mut Usages, key: Key, origin: Option<&RunOrigin>, sample: &RunSample) {
        let Some(changed) = self.rows.get_mut(&key) else { return };
        let (before, size) = (changed.bytes(), changed.size);
        let grown = Arc::make_mut(&mut changed.counts).record(key.1, origin, sample);
        changed.size = Some(size.unwrap_or(0) + grown.size);
        changed.buckets += grown.buckets;
        self.bytes += changed.bytes() - before;
        usages.resize(key.0, size, changed.size);
    }

    /// Removes a row that the history sweep deletes. Returns the size of the row. Returns `None` if the counts have not
    /// changed since the last write.
    pub(crate) fn remove(&mut self, key: Key) -> Option<usize> {
        let changed = self.rows.remove(&key)?;
        self.bytes -= changed.bytes();
        changed.size
    }

    /// Returns up to `max` keys of the changed rows of a tenant and facet before the hour `before`, the earliest first.
    pub(crate) fn keys_before(&self, tenant: TenantId, facet: Facet, before: Hour, max: usize) -> Vec<Key> {
        let range = (tenant, facet, Hour(i64::MIN))..(tenant, facet, before);
        self.rows.range(range).map(|(key, _)| *key).take(max).collect()
    }

    /// Returns the changed counts of the hours from `from` (inclusive) to `until` (exclusive).
    pub(crate) fn hours(&self, tenant: TenantId, facet: Facet, from: Hour, until: Hour) -> Vec<(Hour, Arc<Counts>)> {
        let range = self.rows.range((tenant, facet, from)..(tenant, facet, until.max(from)));
        range.map(|((.., hour), changed)| (*hour, changed.counts.clone())).collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    /// Writes the changed counts to the index at the sequence `at`.
    pub(crate) fn write(&mut self, index: &dyn Index, at: Sequence) {
        self.bytes = 0;
        for ((tenant, facet, hour), changed) in std::mem::take(&mut self.rows) {
            let value = stored::count::encode(&changed.counts);
            index.put(Family::Points, &counted::key(tenant, facet, hour), &value, at);
        }
    }
}

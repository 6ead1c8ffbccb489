//! Counts of final runs that the state machine has changed since it last wrote them to the index.
//!
//! The state machine adds a run to the counts in memory in the step that writes the final record of the run. It writes
//! the counts to the index with each checkpoint, and earlier if they are too large. A replay therefore starts with the
//! counts of the checkpoint, and adds the runs of the later entries.

use std::collections::BTreeMap;

use domain::{Counts, Facet, Hour, RunOrigin, RunSample, TenantId};

use super::Usages;
use crate::codec::counted;
use crate::index::{Family, Index, Sequence};

/// Maximum number of groups and of rows in memory. A group has about 500 bytes.
const GROUPS_MAX: usize = 32_768;
const ROWS_MAX: usize = 16_384;

type Key = (TenantId, Facet, Hour);

#[derive(Debug)]
struct Changed {
    counts: Counts,
    /// [`Counts::size`], with which the row counts as bytes of its tenant. `None` if the row is new.
    size: Option<usize>,
    /// True if the index contains the row.
    is_stored: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Counted {
    rows: BTreeMap<Key, Changed>,
    groups: usize,
}

impl Counted {
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.rows.contains_key(&key)
    }

    /// Adds the counts of a row of the index, or no counts if the index has no row.
    pub(crate) fn load(&mut self, key: Key, counts: Option<Counts>) {
        let is_stored = counts.is_some();
        let size = counts.as_ref().map(Counts::size);
        let counts = counts.unwrap_or_default();
        self.groups += counts.groups().len();
        self.rows.insert(key, Changed { counts, size, is_stored });
    }

    /// Adds a final run, and changes the bytes of its tenant. The caller has loaded the row.
    pub(crate) fn record(&mut self, usages: &mut Usages, key: Key, origin: Option<&RunOrigin>, sample: &RunSample) {
        let Some(Changed { counts, size, .. }) = self.rows.get_mut(&key) else { return };
        let groups = counts.groups().len();
        let after = Some(size.unwrap_or(0) + counts.record(key.1, origin, sample));
        self.groups += counts.groups().len() - groups;
        usages.resize(key.0, *size, after);
        *size = after;
    }

    /// Removes a row that the history sweep deletes. Returns the size of the row, and whether the index contains it.
    /// Returns `None` if the counts have not changed since the last write.
    pub(crate) fn remove(&mut self, key: Key) -> Option<(Option<usize>, bool)> {
        let changed = self.rows.remove(&key)?;
        self.groups -= changed.counts.groups().len();
        Some((changed.size, changed.is_stored))
    }

    /// Returns the keys of the changed rows of a tenant and facet before the hour `before`.
    pub(crate) fn keys_before(&self, tenant: TenantId, facet: Facet, before: Hour) -> Vec<Key> {
        let range = (tenant, facet, Hour(i64::MIN))..(tenant, facet, before);
        self.rows.range(range).map(|(key, _)| *key).collect()
    }

    /// Returns the changed counts of the hours from `from` (inclusive) to `until` (exclusive).
    pub(crate) fn hours(&self, tenant: TenantId, facet: Facet, from: Hour, until: Hour) -> BTreeMap<Hour, Counts> {
        let range = self.rows.range((tenant, facet, from)..(tenant, facet, until.max(from)));
        range.map(|((.., hour), changed)| (*hour, changed.counts.clone())).collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.groups >= GROUPS_MAX || self.rows.len() >= ROWS_MAX
    }

    /// Writes the changed counts to the index. The sequence of these writes is higher than the sequences of all other
    /// writes of the journal entry `last_entry`.
    pub(crate) fn write(&mut self, index: &dyn Index, last_entry: u64) {
        self.groups = 0;
        for ((tenant, facet, hour), changed) in std::mem::take(&mut self.rows) {
            let value = stored::count::encode(&changed.counts);
            index.put(Family::Points, &counted::key(tenant, facet, hour), &value, Sequence::end_of(last_entry));
        }
    }
}

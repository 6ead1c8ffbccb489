//! Counts of final runs: their changes with the outcomes, their deletion, and their reads.
//!
//! docs/decisions/0244-count-final-runs-by-hour.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use domain::{Counts, Facet, Hour, RunOrigin, RunSample, TenantId};
use store::{CountPage, CountRead, StoreError};
use stored::{Malformed, count};

use super::Machine;
use crate::codec::counted;
use crate::index::{Family, Sequence};
use crate::memory::Memory;
use crate::read::{Rows, damaged};

/// Maximum number of rows that one item of a journal entry deletes. Other entries wait while the applying task applies
/// the item.
const DELETED_MAX: usize = 128;

impl Machine {
    /// Adds a final run to the counts of its hour. A damaged row of counts is no error, because no outcome may be lost
    /// for it. The counts of its hour then start again.
    pub(super) fn count_run(
        &self,
        at: Sequence,
        tenant: TenantId,
        hour: Hour,
        origin: Option<&RunOrigin>,
        sample: &RunSample,
    ) -> Result<(), StoreError> {
        if self.memory().counted.is_full() {
            // The reads below are before `at`, so they find the rows again.
            self.write_counted(at.previous());
        }
        let keys = Facet::ALL.map(|facet| (tenant, facet, hour));
        let is_missing = {
            let memory = self.memory();
            keys.map(|key| !memory.counted.contains(key))
        };
        // Only this task changes the counts, so it can read the rows without the lock.
        for (key, _) in keys.into_iter().zip(is_missing).filter(|(_, is_missing)| *is_missing) {
            let counts = match self.rows.counts_at(key, at) {
                Ok(counts) => counts,
                Err(StoreError::Damaged(reason)) => {
                    let hour = hour.start();
                    tracing::error!(reason, %hour, "counts of an hour start again, because their row is damaged");
                    None
                }
                Err(error) => return Err(error),
            };
            self.memory().counted.load(key, counts);
        }
        // If a read fails, the run counts in no facet.
        let Memory { counted, usages, .. } = &mut *self.memory();
        keys.into_iter().for_each(|key| counted.record(usages, key, origin, sample));
        Ok(())
    }

    /// Deletes the first counts of the tenant for the hours before `before`, up to [`DELETED_MAX`] rows. Returns true
    /// if it deleted a row. There may then be further rows.
    ///
    /// A replay may find rows in memory that the first application found in the index, or the reverse. The union of
    /// both is always the same, and the method takes the first rows of the union.
    pub(super) fn forget_counts(&self, at: Sequence, tenant: TenantId, before: Hour) -> Result<bool, StoreError> {
        let mut keys = BTreeSet::new();
        for facet in Facet::ALL {
            let changed = self.memory().counted.keys_before(tenant, facet, before, DELETED_MAX);
            keys.extend(changed);
            let from = counted::key(tenant, facet, Hour(i64::MIN));
            let to = counted::key(tenant, facet, before);
            let (mut scanned, mut first_error) = (0, None);
            let scan = self.index().scan(Family::Points, &from, &to, at, &mut |key, _| {
                match counted::parse(key) {
                    Ok(key) => {
                        keys.insert(key);
                    }
                    Err(error) => first_error = Some(self.rows.malformed_point(key, error)),
                }
                scanned += 1;
                if scanned < DELETED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            scan.map_err(damaged)?;
            first_error.map_or(Ok(()), Err)?;
        }
        for key in keys.iter().take(DELETED_MAX) {
            let (tenant, facet, hour) = *key;
            let row = counted::key(tenant, facet, hour);
            let changed = self.memory().counted.remove(*key);
            let size = match changed {
                Some(size) => Some(size),
                None => match self.rows.counts_at(*key, at) {
                    Ok(counts) => counts.map(|counts| counts.size()),
                    Err(StoreError::Damaged(_)) => None,
                    Err(error) => return Err(error),
                },
            };
            // The index may contain the row at a later sequence than `at`, if this is a replay.
            self.index().remove(Family::Points, &row, at);
            self.memory().usages.resize(tenant, size, None);
        }
        Ok(!keys.is_empty())
    }
}

impl Rows {
    /// Returns the counts of a row as of the sequence `before`.
    fn counts_at(&self, key: (TenantId, Facet, Hour), before: Sequence) -> Result<Option<Counts>, StoreError> {
        let row = counted::key(key.0, key.1, key.2);
        let Some(value) = self.index.get(Family::Points, &row, before).map_err(damaged)? else { return Ok(None) };
        count::decode(&value).map(Some).map_err(|error| self.malformed_point(&row, error))
    }

    /// Reads the counts of some hours. Counts in memory are newer than the rows of the index.
    pub(crate) fn counts(&self, memory: &Mutex<Memory>, read: &CountRead) -> Result<CountPage, StoreError> {
        let CountRead { tenant, facet, from, until } = *read;
        // The memory comes first. A row that the state machine then moves to the index is in both.
        let changed = memory.lock().expect("no holder of this lock panics").counted.hours(tenant, facet, from, until);
        let mut hours = BTreeMap::new();
        let (first, end) = (counted::key(tenant, facet, from), counted::key(tenant, facet, until));
        self.collect(Family::Points, &first, &end, usize::MAX, |key, value| {
            let (.., hour) = counted::parse(key)?;
            match count::decode(value) {
                Ok(counts) => {
                    hours.insert(hour, counts);
                }
                Err(error) => {
                    let (tenant, hour) = (tenant.0, hour.start());
                    tracing::error!(tenant, %hour, %error, "report lacks counts of an hour, because their row is damaged");
                }
            }
            Ok::<(), Malformed>(())
        })?;
        hours.extend(changed.into_iter().map(|(hour, counts)| (hour, Arc::unwrap_or_clone(counts))));
        Ok(CountPage { hours: hours.into_iter().collect(), counted_from: Hour::default() })
    }
}

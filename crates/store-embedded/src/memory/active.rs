//! Number of active schedules of each tenant. The state machine updates the counts with every change and writes them
//! with each checkpoint.
//!
//! Invariant: a checkpoint contains the counts after its last entry, so a replay from the checkpoint continues with
//! correct counts. A store of an earlier build has no counts. This build then counts its schedules once.

use std::collections::{BTreeMap, BTreeSet};

use domain::{Status, TenantId};
use store::StoreError;
use stored::{Malformed, Put as _, Take, schedule};

use crate::codec::key;
use crate::index::{Family, Index, Sequence};
use crate::read::{Rows, just_after};

/// Number of schedules that one step of a count reads.
const PAGE: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Active {
    counts: BTreeMap<TenantId, u64>,
    /// Tenants whose count differs from the last written count.
    changed: BTreeSet<TenantId>,
    /// True if the written counts are complete. A tenant without a row then has no active schedules.
    is_complete: bool,
}

impl Active {
    pub(crate) fn of(&self, tenant: TenantId) -> u64 {
        self.counts.get(&tenant).copied().unwrap_or(0)
    }

    /// Updates a tenant's count after the status of a schedule changed.
    pub(crate) fn change(&mut self, tenant: TenantId, before: Option<Status>, after: Status) {
        let (before, after) = (before == Some(Status::Active), after == Status::Active);
        if before == after {
            return;
        }
        let count = self.counts.entry(tenant).or_default();
        // The count never drops below 0, even if a damaged disk lost rows.
        *count = if after { *count + 1 } else { count.saturating_sub(1) };
        self.changed.insert(tenant);
    }

    /// Writes the counts that changed since the last call. The sequence of these writes is after all other writes of
    /// the last entry.
    pub(crate) fn write(&mut self, index: &dyn Index, last_entry: u64) {
        let at = Sequence::end_of(last_entry);
        for tenant in std::mem::take(&mut self.changed) {
            let mut value = vec![1];
            value.u64(self.of(tenant));
            index.put(Family::Points, &key::active(tenant), &value, at);
        }
        if !std::mem::replace(&mut self.is_complete, true) {
            index.put(Family::Points, &[key::ACTIVE], &[1], at);
        }
    }

    pub(crate) fn take_row(&mut self, row_key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if row_key == [key::ACTIVE] {
            self.is_complete = true;
            return Ok(());
        }
        let mut take = Take::new("a count of active schedules", value);
        take.version(1)?;
        self.counts.insert(key::parse_active(row_key)?, take.u64()?);
        take.end()
    }

    /// Counts all active schedules as of the sequence `before`, unless the counts from the index are complete.
    pub(crate) fn complete(&mut self, rows: &Rows, before: Sequence) -> Result<(), StoreError> {
        if self.is_complete {
            return Ok(());
        }
        self.counts.clear();
        let (mut from, mut counted) = (Vec::new(), 0_u64);
        loop {
            let numbers = rows.numbers(&from, before, PAGE)?;
            let Some(last) = numbers.last() else { break };
            from = just_after(&key::row(*last));
            for number in numbers {
                // If no schedule has this incarnation, the row contains a later spec of another incarnation.
                let Some(known) = rows.known(number, before)? else { continue };
                let head = schedule::head(&known.row).map_err(|error| rows.malformed(known.changed.row, error))?;
                self.change(head.tenant, None, known.changed.state.status);
                counted += 1;
            }
        }
        self.changed = self.counts.keys().copied().collect();
        if counted > 0 {
            tracing::info!(schedules = counted, "active schedules counted, because an earlier build stored no counts");
        }
        Ok(())
    }
}

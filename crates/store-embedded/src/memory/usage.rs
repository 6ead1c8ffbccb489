//! Numbers of stored schedules and bytes of each tenant. The state machine updates the numbers with every change and
//! writes them with each checkpoint.
//!
//! Invariant: a checkpoint contains the numbers as of its last journal entry, so a replay from the checkpoint continues
//! with correct numbers. An index that an earlier build wrote lacks the numbers. This build counts all rows of such an
//! index once.
//!
//! docs/decisions/0201-count-stored-bytes-with-every-change.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeInclusive};

use domain::{Status, TenantId};
use store::{StoreError, Usage};
use stored::{Malformed, Put as _, Take, count, run, schedule, timing};

use crate::codec::{counted, key};
use crate::index::{Family, Index, Sequence};
use crate::read::{Rows, damaged, just_after};

/// Format version of the rows that contain a tenant's numbers of schedules and bytes. Rows of version 1, which earlier
/// builds wrote, contain only the number of active schedules.
const VERSION: u8 = 2;
/// Number of bytes that the store counts for each schedule row and for each run, in addition to the length of the
/// value. It is about the size of the keys and of the small rows that belong to the schedule or run.
const ROW_BYTES: u64 = 128;
/// Number of schedules that one step of the count reads.
const PAGE: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Usages {
    of: BTreeMap<TenantId, Usage>,
    /// Tenants whose numbers have changed since the state machine last wrote them to the index.
    changed: BTreeSet<TenantId>,
    /// True if the index contains the numbers of all tenants with schedules. A tenant without a row of numbers then has
    /// no schedules.
    is_complete: bool,
    /// True if an earlier build wrote numbers after this build had marked the numbers as complete.
    is_outdated: bool,
}

impl Usages {
    pub(crate) fn of(&self, tenant: TenantId) -> Usage {
        self.of.get(&tenant).copied().unwrap_or_default()
    }

    /// Returns the tenants with these ids that have or had schedules.
    pub(crate) fn tenants(&self, ids: RangeInclusive<TenantId>) -> Vec<TenantId> {
        self.of.range(ids).map(|(tenant, _)| *tenant).collect()
    }

    /// Counts a schedule whose status changed from `before` to `after`. `None` means that the schedule does not exist.
    pub(crate) fn count(&mut self, tenant: TenantId, before: Option<Status>, after: Option<Status>) {
        if before == after {
            return;
        }
        let usage = self.change(tenant);
        // The subtraction stops at 0, because a damaged disk may have lost rows.
        if let Some(before) = before {
            let count = usage.count_mut(before);
            *count = count.saturating_sub(1);
        }
        if let Some(after) = after {
            *usage.count_mut(after) += 1;
        }
    }

    /// Counts a row whose value changed from `before` to `after` bytes. `None` means that the row does not exist.
    pub(crate) fn resize(&mut self, tenant: TenantId, before: Option<usize>, after: Option<usize>) {
        let size = |len: Option<usize>| len.map_or(0, |len| len as u64 + ROW_BYTES);
        if size(before) != size(after) {
            let usage = self.change(tenant);
            usage.bytes = (usage.bytes + size(after)).saturating_sub(size(before));
        }
    }

    fn change(&mut self, tenant: TenantId) -> &mut Usage {
        self.changed.insert(tenant);
        self.of.entry(tenant).or_default()
    }

    /// Writes to the index the numbers that have changed since the last call. The sequence of these writes is higher
    /// than the sequences of all other writes of the journal entry `last_entry`.
    pub(crate) fn write(&mut self, index: &dyn Index, last_entry: u64) {
        let at = Sequence::end_of(last_entry);
        for tenant in std::mem::take(&mut self.changed) {
            let usage = self.of(tenant);
            let mut value = vec![VERSION];
            for number in [usage.active, usage.ended, usage.cancelled, usage.bytes] {
                value.u64(number);
            }
            index.put(Family::Points, &key::usage(tenant), &value, at);
        }
        if !std::mem::replace(&mut self.is_complete, true) {
            index.put(Family::Points, &[key::USAGE], &[VERSION], at);
        }
    }

    pub(crate) fn take_row(&mut self, row_key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if value.first() == Some(&1) {
            if row_key != [key::USAGE] {
                self.is_outdated = true;
                self.changed.insert(key::parse_usage(row_key)?);
            }
            return Ok(());
        }
        let mut take = Take::new("a row with the usage of a tenant", value);
        take.version(VERSION)?;
        if row_key == [key::USAGE] {
            self.is_complete = true;
            return take.end();
        }
        let [active, ended, cancelled, bytes] = [take.u64()?, take.u64()?, take.u64()?, take.u64()?];
        self.of.insert(key::parse_usage(row_key)?, Usage { active, ended, cancelled, bytes });
        take.end()
    }

    /// Counts all rows as of the sequence `before`, unless the numbers from the index are complete.
    pub(crate) fn complete(&mut self, rows: &Rows, before: Sequence) -> Result<(), StoreError> {
        if self.is_complete && !self.is_outdated {
            return Ok(());
        }
        self.of.clear();
        self.is_complete = false;
        let counted = self.count_schedules(rows, before).and_then(|count| {
            self.count_past_timings(rows, before)?;
            self.count_counts(rows, before)?;
            Ok((count, self.count_runs(rows, before)?))
        });
        let (schedules, runs) = match counted {
            Ok(counted) => counted,
            // The damaged row ends the count. The store still serves the other rows, as an earlier build did.
            Err(StoreError::Damaged(reason)) => {
                tracing::warn!(reason, "the number of stored bytes is too low, because a row is damaged");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if schedules > 0 {
            tracing::info!(schedules, runs, "schedules and runs counted, because an earlier build did not count bytes");
        }
        Ok(())
    }

    fn count_schedules(&mut self, rows: &Rows, before: Sequence) -> Result<u64, StoreError> {
        let (mut from, mut counted) = (Vec::new(), 0);
        loop {
            let numbers = rows.numbers(&from, before, PAGE)?;
            let Some(last) = numbers.last() else { return Ok(counted) };
            from = just_after(&key::row(*last));
            for number in numbers {
                let Some(row) = rows.row(number, before)? else { continue };
                let head = schedule::head(&row).map_err(|error| rows.malformed(number, error))?;
                self.resize(head.tenant, None, Some(row.len()));
                // If no schedule has the incarnation `number`, the row contains a later spec of a schedule with another
                // incarnation.
                if let Some(known) = rows.known(number, before)? {
                    self.count(head.tenant, None, Some(known.changed.state.status));
                    counted += 1;
                }
            }
        }
    }

    fn count_past_timings(&mut self, rows: &Rows, before: Sequence) -> Result<(), StoreError> {
        let (from, to) = ([key::PAST_TIMING], [key::PAST_TIMING + 1]);
        let mut first_error = None;
        let scan = rows.index.scan(Family::Points, &from, &to, before, &mut |_, value| match timing::tenant(value) {
            Ok(tenant) => {
                self.resize(tenant, None, Some(value.len()));
                ControlFlow::Continue(())
            }
            Err(error) => {
                first_error = Some(error);
                ControlFlow::Break(())
            }
        });
        scan.map_err(damaged)?;
        first_error.map_or(Ok(()), |error| Err(rows.malformed_point(&from, error)))
    }

    fn count_counts(&mut self, rows: &Rows, before: Sequence) -> Result<(), StoreError> {
        let (from, to) = ([counted::COUNTED], [counted::COUNTED + 1]);
        let mut first_error = None;
        let scan = rows.index.scan(Family::Points, &from, &to, before, &mut |key, value| {
            let row = counted::parse(key).and_then(|(tenant, ..)| Ok((tenant, count::decode(value)?)));
            match row {
                Ok((tenant, counts)) => {
                    self.resize(tenant, None, Some(counts.size()));
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    first_error = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        scan.map_err(damaged)?;
        first_error.map_or(Ok(()), |error| Err(rows.malformed_point(&from, error)))
    }

    fn count_runs(&mut self, rows: &Rows, before: Sequence) -> Result<u64, StoreError> {
        let (mut counted, mut first_error) = (0, None);
        let scan = rows.index.scan(Family::Points, &[key::RUN], &[key::RUN + 1], before, &mut |_, value| {
            match run::summary(value) {
                Ok((tenant, ..)) => self.resize(tenant, None, Some(value.len())),
                Err(error) => {
                    first_error = Some(error);
                    return ControlFlow::Break(());
                }
            }
            counted += 1;
            ControlFlow::Continue(())
        });
        scan.map_err(damaged)?;
        first_error.map_or(Ok(counted), |error| Err(rows.malformed_point(&[key::RUN], error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_row_of_an_earlier_build_marks_the_usage_as_outdated() {
        let mut usages = Usages::default();
        usages.take_row(&[key::USAGE], &[VERSION]).unwrap();
        assert!(usages.is_complete && !usages.is_outdated);
        let mut active_only = vec![1];
        active_only.u64(5);
        usages.take_row(&key::usage(TenantId(7)), &active_only).unwrap();
        assert!(
            usages.is_outdated && usages.changed.contains(&TenantId(7)),
            "this build counts and writes the tenant again"
        );
        assert_eq!(usages.of(TenantId(7)), Usage::default());
    }
}

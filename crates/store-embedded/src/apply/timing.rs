//! Past timings: the state machine writes the timing of a revision in the step that ends the revision.

use domain::{Author, Incarnation, PastTiming, ScheduleVersion, TenantId, Timestamp, TimingEnd};
use store::StoreError;
use stored::{schedule, timing};

use super::Machine;
use crate::codec::changed::Changed;
use crate::codec::key;
use crate::index::{Family, Sequence};
use crate::read::Known;

impl Machine {
    /// Writes the timing of the revision of `known`, which a put replaces at `until`.
    pub(super) fn write_replaced_timing(
        &self,
        at: Sequence,
        tenant: TenantId,
        known: &Known,
        until: Timestamp,
        by: Option<&str>,
    ) -> Result<(), StoreError> {
        let (incarnation, changed) = (known.incarnation, &known.changed);
        self.write_past_timing(at, tenant, incarnation, changed, &known.row, |timing| {
            timing.until = Some(until);
            timing.by = by.map(str::to_owned);
        })
    }

    /// Writes the timing of the current revision of a schedule, before the state machine cancels the schedule.
    pub(super) fn write_cancelled_timing(
        &self,
        at: Sequence,
        tenant: TenantId,
        incarnation: Incarnation,
        changed: &Changed,
        author: Option<Author>,
    ) -> Result<(), StoreError> {
        let Some(row) = self.rows.row(changed.row, at)? else { return Ok(()) };
        self.write_past_timing(at, tenant, incarnation, changed, &row, |timing| {
            timing.end = TimingEnd::Cancelled;
            timing.until = author.as_ref().map(|author| author.at);
            timing.by = author.and_then(|author| author.key);
        })
    }

    fn write_past_timing(
        &self,
        at: Sequence,
        tenant: TenantId,
        incarnation: Incarnation,
        changed: &Changed,
        row: &[u8],
        complete: impl FnOnce(&mut PastTiming),
    ) -> Result<(), StoreError> {
        let when = schedule::when(row).map_err(|error| self.rows.malformed(changed.row, error))?;
        let edition = ScheduleVersion { incarnation, revision: changed.state.revision };
        let from = changed.state.updated_at;
        let mut past = PastTiming { edition, when, from, until: None, end: TimingEnd::Replaced, by: None };
        complete(&mut past);
        let value = timing::encode(tenant, &past);
        self.index().put(Family::Points, &key::past_timing(edition), &value, at);
        self.memory().usages.resize(tenant, None, Some(value.len()));
        Ok(())
    }

    /// Deletes the past timing of a revision, unless it was written again after the sequence `seen`. Returns whether it
    /// deleted the timing.
    pub(super) fn forget_past_timing(
        &self,
        at: Sequence,
        of: ScheduleVersion,
        seen: Sequence,
    ) -> Result<bool, StoreError> {
        let timing_key = key::past_timing(of);
        let value = self.index().get(Family::Points, &timing_key, at).map_err(crate::read::damaged)?;
        let Some(value) = value else { return Ok(false) };
        if self.written(&timing_key, at)? != Some(seen) {
            return Ok(false);
        }
        let tenant = timing::tenant(&value).map_err(|error| self.rows.malformed_point(&timing_key, error))?;
        self.index().remove(Family::Points, &timing_key, at);
        self.memory().usages.resize(tenant, Some(value.len()), None);
        Ok(true)
    }
}

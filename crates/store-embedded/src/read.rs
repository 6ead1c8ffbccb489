//! Look-ups of rows, for the state machine and for the store's readers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, Precondition, Revision, RunState, Schedule, ScheduleId,
    ScheduleVersion, TenantId, Timestamp,
};
use store::{DueBound, DuePage, DueRead, Order, StoreError};
use stored::schedule;
use stored::{Malformed, Take, run, timing};

use crate::codec::changed::Changed;
use crate::codec::key;
use crate::index::{Family, Index, IndexError, Sequence, Unreadable};
use crate::memory::{Fresh, States};

#[derive(Clone)]
pub(crate) struct Rows {
    pub index: Arc<dyn Index>,
    pub states: Arc<States>,
    pub fresh: Arc<Fresh>,
    /// True if every run has a row that lists it by time.
    pub are_runs_listed: Arc<AtomicBool>,
}

/// Result of a look-up of a schedule. The schedule's spec is still encoded.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub incarnation: Incarnation,
    /// Current state of the schedule. It equals the state in the first row if the schedule has not changed.
    pub changed: Changed,
    pub row: Bytes,
}

impl Known {
    pub(crate) fn seen(&self) -> Precondition {
        let state = self.changed.state;
        Precondition {
            edition: ScheduleVersion { incarnation: self.incarnation, revision: state.revision },
            next: state.next,
        }
    }
}

pub(crate) fn damaged(error: IndexError) -> StoreError {
    match error {
        IndexError::Damaged { .. } => {
            tracing::error!(%error, "stored data is damaged; restore a backup");
            StoreError::Damaged(error.to_string())
        }
        IndexError::Io(error) => StoreError::Unavailable(format!("the index cannot be read: {error}")),
    }
}

impl Rows {
    pub(crate) fn new(index: Arc<dyn Index>) -> Self {
        Rows { index, states: Arc::default(), fresh: Arc::default(), are_runs_listed: Arc::default() }
    }

    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, StoreError> {
        self.index.get(family, key, before).map_err(damaged)
    }

    /// Returns whether [`Family::Rows`] has a row with the key `number` ([`Rows::row`]).
    pub(crate) fn is_number_used(&self, number: Incarnation, before: Sequence) -> Result<bool, StoreError> {
        Ok(self.row(number, before)?.is_some())
    }

    /// Returns the row with the key `number`: the first row of the schedule with this incarnation, or a later spec of
    /// another schedule.
    pub(crate) fn row(&self, number: Incarnation, before: Sequence) -> Result<Option<Bytes>, StoreError> {
        self.get(Family::Rows, &key::row(number), before)
    }

    pub(crate) fn known(&self, incarnation: Incarnation, before: Sequence) -> Result<Option<Known>, StoreError> {
        let state_key = key::state(incarnation);
        while let Some(value) = self.get(Family::Points, &state_key, before)? {
            let changed = Changed::decode(&value).map_err(|error| self.malformed(incarnation, error))?;
            if let Some(row) = self.get(Family::Rows, &key::row(changed.row), before)? {
                return Ok(Some(Known { incarnation, changed, row }));
            }
            // A concurrent write may have replaced or deleted the row after this loop read the state. In that case, the
            // row still exists as of the state's sequence, or the next iteration reads another state.
            let written = self.index.written(&state_key, before).map_err(damaged)?;
            let then = written.map_or(before, Sequence::next);
            if let Some(row) = self.get(Family::Rows, &key::row(changed.row), then)? {
                return Ok(Some(Known { incarnation, changed, row }));
            }
            if self.get(Family::Points, &state_key, before)? == Some(value) {
                return Err(self.malformed_reason(changed.row, "the schedule's row is missing"));
            }
        }
        let Some(row) = self.get(Family::Rows, &key::row(incarnation), before)? else { return Ok(None) };
        let head = schedule::head(&row).map_err(|error| self.malformed(incarnation, error))?;
        if head.incarnation != incarnation {
            return Ok(None);
        }
        Ok(Some(Known { incarnation, changed: Changed { state: head.state, row: incarnation }, row }))
    }

    /// Returns the current state of a schedule. The caller ensures that no change has a sequence at or after `before`.
    pub(crate) fn changed(&self, incarnation: Incarnation, before: Sequence) -> Result<Option<Changed>, StoreError> {
        match self.states.get(incarnation) {
            Some(changed) => Ok(Some(changed)),
            None => Ok(self.known(incarnation, before)?.map(|known| known.changed)),
        }
    }

    /// Returns the schedule that has the id `id` before the sequence `before`.
    pub(crate) fn find(&self, tenant: TenantId, id: &str, before: Sequence) -> Result<Option<Known>, StoreError> {
        let name_key = key::id(tenant, id);
        while let Some(value) = self.get(Family::Points, &name_key, before)? {
            let incarnation = take_name(&value).map_err(|error| damaged(points_damaged(id, error)))?;
            if let Some(known) = self.known(incarnation, before)? {
                return Ok(Some(known));
            }
            // A concurrent deletion may have removed the schedule. Such a deletion removes the row of the id first.
            if self.get(Family::Points, &name_key, before)? == Some(value) {
                let reason = "the row of the schedule id refers to a schedule that does not exist";
                return Err(self.malformed_reason(incarnation, reason));
            }
        }
        let server_made = ScheduleId::new(id).ok().and_then(|id| id.to_incarnation());
        let Some(incarnation) = server_made else { return Ok(None) };
        let Some(known) = self.known(incarnation, before)? else { return Ok(None) };
        let (head, named) =
            schedule::head_and_id(&known.row).map_err(|error| self.malformed(known.changed.row, error))?;
        Ok((head.tenant == tenant && named == id).then_some(known))
    }

    pub(crate) fn decode(&self, known: &Known) -> Result<Schedule, StoreError> {
        let mut schedule = self.decode_row(known.row.clone())?;
        let state = known.changed.state;
        schedule.revision = state.revision;
        schedule.status = state.status;
        schedule.updated_at = state.updated_at;
        schedule.next = state.next;
        Ok(schedule)
    }

    pub(crate) fn decode_row(&self, row: Bytes) -> Result<Schedule, StoreError> {
        schedule::decode(&row).map_err(|error| {
            let number = schedule::head(&row).map_or(Incarnation(0), |head| head.incarnation);
            self.malformed(number, error)
        })
    }

    pub(crate) fn schedule(&self, incarnation: Incarnation) -> Result<Option<Arc<Schedule>>, StoreError> {
        let begun = self.states.begin(incarnation);
        let Some(known) = self.known(incarnation, Sequence::LATEST)? else { return Ok(None) };
        self.states.remember(begun, incarnation, known.changed);
        self.decode(&known).map(|schedule| Some(Arc::new(schedule)))
    }

    pub(crate) fn named(&self, tenant: TenantId, id: &ScheduleId) -> Result<Option<Arc<Schedule>>, StoreError> {
        let known = self.find(tenant, id.as_str(), Sequence::LATEST)?;
        known.map(|known| self.decode(&known).map(Arc::new)).transpose()
    }

    pub(crate) fn run_value(&self, run_key: &[u8], before: Sequence) -> Result<Option<Bytes>, StoreError> {
        self.get(Family::Points, run_key, before)
    }

    /// Returns the state of a run and the length of its value.
    pub(crate) fn run_state(&self, run_key: &[u8], before: Sequence) -> Result<Option<(RunState, usize)>, StoreError> {
        let Some(value) = self.run_value(run_key, before)? else { return Ok(None) };
        let (_, _, state) = run::summary(&value).map_err(|error| damaged(points_damaged("a run", error)))?;
        Ok(Some((state, value.len())))
    }

    pub(crate) fn has_point(&self, point_key: &[u8], before: Sequence) -> Result<bool, StoreError> {
        Ok(self.get(Family::Points, point_key, before)?.is_some())
    }

    pub(crate) fn run(&self, of: &Occurrence) -> Result<Option<Run>, StoreError> {
        let value = self.run_value(&key::run(of), Sequence::LATEST)?;
        value.map(|value| run::decode(&value).map_err(|error| self.malformed_run(of, error))).transpose()
    }

    pub(crate) fn runs(
        &self,
        incarnation: Incarnation,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (mut from, to) = key::run_bounds(incarnation);
        if let Some(after) = after {
            from = from.max(just_after(&key::run(&after)));
        }
        let mut found = Vec::new();
        self.collect(Family::Points, &from, &to, limit, |_, value| {
            found.push(run::decode(value)?);
            Ok(())
        })?;
        Ok(found)
    }

    pub(crate) fn past_timings(
        &self,
        incarnation: Incarnation,
        from: Revision,
        limit: usize,
    ) -> Result<Vec<PastTiming>, StoreError> {
        let (from, to) = key::past_timing_bounds(incarnation, from);
        let mut found = Vec::new();
        self.collect(Family::Points, &from, &to, limit, |key, value| {
            found.push(timing::decode(key::parse_past_timing(key)?, value)?);
            Ok(())
        })?;
        Ok(found)
    }

    pub(crate) fn dead_letters(
        &self,
        tenant: TenantId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (mut from, to) = key::dead_letter_bounds(tenant);
        if let Some(after) = after {
            from = from.max(just_after(&key::dead_letter(tenant, &after)));
        }
        let mut of = Vec::new();
        self.collect(Family::Points, &from, &to, limit, |key, _| {
            of.push(key::parse_dead_letter(key)?.1);
            Ok(())
        })?;
        let mut runs = Vec::with_capacity(of.len());
        for occurrence in of {
            // A redrive may have removed the dead letter after the scan. The run still exists.
            runs.extend(self.run(&occurrence)?);
        }
        Ok(runs)
    }

    pub(crate) fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Result<Vec<Audit>, StoreError> {
        let from = just_after(&key::audit(tenant, after));
        let to = just_after(&key::audit(tenant, u64::MAX));
        let mut entries = Vec::new();
        self.collect(Family::Points, &from, &to, limit, |_, value| {
            entries.push(stored::tenant::decode_audit(value).map_err(|_| Malformed { what: "an audit entry", at: 0 })?);
            Ok(())
        })?;
        Ok(entries)
    }

    /// Returns a page of due rows. `done` is the poller's watermark. The page omits rows at or before `done`, because
    /// the index may already have dropped some of these rows. It also omits the ranges that the index cannot read, and
    /// adds them to `skipped`.
    pub(crate) fn due(
        &self,
        read: &DueRead,
        done: Timestamp,
        skipped: &mut Vec<Unreadable>,
    ) -> Result<DuePage, StoreError> {
        let from = match read.after {
            DueBound::Instant(instant) => key::due_after(read.poller, instant.max(done)),
            DueBound::Key(after) if after.position > done => just_after(&key::due(read.poller, &after)),
            DueBound::Key(_) => key::due_after(read.poller, done),
        };
        let to = key::due_end(read.poller);
        let mut page = DuePage::default();
        self.walk_due(&from, &to, skipped, |due| {
            if page.keys.len() < read.limit && due.position <= read.until {
                page.keys.push(due);
                return ControlFlow::Continue(());
            }
            page.next = Some(due.position);
            ControlFlow::Break(())
        })?;
        Ok(page)
    }

    /// Calls `take` with the readable due rows from `from` (inclusive) to `to` (exclusive), until `take` returns
    /// [`ControlFlow::Break`]. Adds the ranges that the index cannot read to `skipped`.
    pub(crate) fn walk_due(
        &self,
        from: &[u8],
        to: &[u8],
        skipped: &mut Vec<Unreadable>,
        mut take: impl FnMut(DueKey) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut first_error = None;
        let mut visit = |key: &[u8], _: &Bytes| match key::parse_due(key) {
            Ok((_, due)) => take(due),
            Err(error) => {
                let (family, range) = (Family::Due.name(), hex(key));
                first_error = Some(IndexError::Damaged { family, range, reason: error.to_string() });
                ControlFlow::Break(())
            }
        };
        self.index.scan_readable_due(from, to, skipped, &mut visit).map_err(damaged)?;
        first_error.map_or(Ok(()), |error| Err(damaged(error)))
    }

    /// Returns the keys of up to `limit` schedule rows from the key `from` on, as of the sequence `before`.
    pub(crate) fn numbers(&self, from: &[u8], before: Sequence, limit: usize) -> Result<Vec<Incarnation>, StoreError> {
        let mut numbers = Vec::with_capacity(limit);
        let mut first_error: Option<Malformed> = None;
        // A key that is above the key of every schedule row.
        let to = [0xff; 17];
        let scan = self.index.scan(Family::Rows, from, &to, before, &mut |key, _| {
            match key::parse_row(key) {
                Ok(number) => numbers.push(number),
                Err(error) => first_error = Some(error),
            }
            let is_enough = numbers.len() == limit || first_error.is_some();
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scan.map_err(damaged)?;
        first_error.map_or(Ok(numbers), |error| Err(self.malformed(Incarnation(0), error)))
    }

    /// Calls `take` with up to `limit` rows from `from` (inclusive) to `to` (exclusive).
    pub(crate) fn collect(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        mut take: impl FnMut(&[u8], &Bytes) -> Result<(), Malformed>,
    ) -> Result<(), StoreError> {
        if limit == 0 {
            return Ok(());
        }
        let mut left = limit;
        self.walk(family, from, to, |key, value| {
            take(key, value)?;
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }

    /// Calls `take` with the rows from `from` (inclusive) to `to` (exclusive), until `take` returns
    /// [`ControlFlow::Break`].
    pub(crate) fn walk(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        take: impl FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>, Malformed>,
    ) -> Result<(), StoreError> {
        self.walk_in(Order::Oldest, family, from, to, take)
    }

    /// Calls `take` as [`Rows::walk`] does, from the last row to the first if `order` is [`Order::Newest`].
    pub(crate) fn walk_in(
        &self,
        order: Order,
        family: Family,
        from: &[u8],
        to: &[u8],
        mut take: impl FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>, Malformed>,
    ) -> Result<(), StoreError> {
        let mut first_error = None;
        let mut visit = |key: &[u8], value: &Bytes| {
            take(key, value).unwrap_or_else(|error| {
                let (family, range) = (family.name(), hex(key));
                first_error = Some(IndexError::Damaged { family, range, reason: error.to_string() });
                ControlFlow::Break(())
            })
        };
        let scan = match order {
            Order::Oldest => self.index.scan(family, from, to, Sequence::LATEST, &mut visit),
            Order::Newest => self.index.scan_back(family, from, to, Sequence::LATEST, &mut visit),
        };
        scan.map_err(damaged)?;
        first_error.map_or(Ok(()), |error| Err(damaged(error)))
    }

    pub(crate) fn malformed(&self, number: Incarnation, error: Malformed) -> StoreError {
        self.malformed_reason(number, &error.to_string())
    }

    fn malformed_reason(&self, number: Incarnation, reason: &str) -> StoreError {
        let range = format!("{number:?}");
        damaged(IndexError::Damaged { family: Family::Rows.name(), range, reason: reason.to_owned() })
    }

    pub(crate) fn malformed_point(&self, key: &[u8], error: Malformed) -> StoreError {
        damaged(points_damaged(&hex(key), error))
    }

    pub(crate) fn malformed_run(&self, of: &Occurrence, error: Malformed) -> StoreError {
        damaged(points_damaged(&format!("run {}", of.run_id()), error))
    }
}

fn points_damaged(range: &str, error: Malformed) -> IndexError {
    IndexError::Damaged { family: Family::Points.name(), range: range.to_owned(), reason: error.to_string() }
}

pub(crate) fn take_name(value: &[u8]) -> Result<Incarnation, Malformed> {
    let mut take = Take::new("an id's row", value);
    take.version(1)?;
    let incarnation = Incarnation(take.u128()?);
    take.end()?;
    Ok(incarnation)
}

/// Returns the smallest key that is greater than `key`.
pub(crate) fn just_after(key: &[u8]) -> Vec<u8> {
    let mut after = Vec::with_capacity(key.len() + 1);
    after.extend_from_slice(key);
    after.push(0);
    after
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use domain::{Incarnation, PollerId, Revision, TargetKey, TenantId};
    use store::DueBound;

    use super::*;
    use crate::index::map::MapIndex;

    const POLLER: PollerId = PollerId { tenant: TenantId(1), generation: 0, number: 0 };

    fn due(second: i64) -> DueKey {
        let nominal = Timestamp::from_millis(second * 1_000);
        let occurrence = Occurrence { incarnation: Incarnation(7), revision: Revision(0), nominal, replay: 0 };
        DueKey { position: nominal, occurrence, attempt: 1, target: TargetKey(0) }
    }

    /// A read must stop at the end of its range, because a poller may have millions of due rows and the owner reads due
    /// rows repeatedly.
    #[test]
    fn read_stops_at_the_first_due_row_after_its_range() {
        let simulation = simulator::Simulation::new(1);
        simulation.run_until(async {
            let index = MapIndex::open(&simulation.outside(), Path::new("/index"), false).await.unwrap();
            for second in 1..=4 {
                index.put(Family::Due, &key::due(POLLER, &due(second)), &[], Sequence::new(1, 0));
            }
            // This row is damaged: a read that reaches it returns an error.
            index.put(Family::Due, &key::due_after(POLLER, due(4).position), &[], Sequence::new(1, 0));
            let rows = Rows::new(Arc::new(index));
            let read = |until: i64, limit| {
                let (after, until) = (DueBound::Instant(Timestamp::from_millis(0)), due(until).position);
                let read = DueRead { poller: POLLER, after, until, limit };
                rows.due(&read, Timestamp::from_millis(0), &mut Vec::new())
            };
            for (until, limit, count) in [(3, 100, 3), (2, 100, 2), (3, 2, 2), (0, 100, 0), (3, 0, 0)] {
                let page = read(until, limit).unwrap();
                assert_eq!((page.keys.len(), page.next), (count, Some(due(count as i64 + 1).position)));
            }
            assert!(read(4, 100).is_err());
        });
    }
}

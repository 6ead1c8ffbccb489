//! Listing of the runs of a tenant by time, from the rows of [`crate::codec::timed`], or of the runs of a few
//! schedules, from the runs themselves.
//!
//! Invariants:
//! - The state machine writes the row of a run together with the run, and removes both together.
//! - If a run leaves the class [`Class::Retrying`], the state machine writes the new row before it removes the old one.
//!   A read scans this class first, so it misses no run.
//!
//! docs/decisions/0240-list-runs-by-time.md gives the reasons for the design.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::atomic;
use std::time::Duration;

use bytes::Bytes;
use domain::{Incarnation, Occurrence, RunFilter, RunOutline, TenantId};
use store::runs::EXAMINED_MAX;
use store::{Order, RunList, RunRead, StoreError};
use stored::{Malformed, run};

use crate::apply::Machine;
use crate::codec::key;
use crate::codec::timed::{self, Class, Progress};
use crate::index::{Family, Sequence};
use crate::read::{Rows, damaged, just_after};

/// Maximum number of rows that one scan of a class or of a schedule examines.
const SCANNED_MAX: usize = 250;

/// Returns the number of rows that each of `parts` scans may examine. All scans together examine at most
/// [`EXAMINED_MAX`] rows.
fn share_of(parts: usize) -> usize {
    (EXAMINED_MAX / parts.max(1)).clamp(1, SCANNED_MAX)
}

impl Machine {
    /// Writes the row that lists a run. `is_retry` is true if the run had a record before.
    pub(crate) fn list_run(
        &self,
        at: Sequence,
        tenant: TenantId,
        of: &Occurrence,
        outline: &RunOutline,
        is_retry: bool,
    ) {
        let class = Class::of(outline);
        self.index().put(Family::Points, &class.key(tenant, of), &timed::encode(outline), at);
        if is_retry && class != Class::Retrying {
            self.index().remove(Family::Points, &Class::Retrying.key(tenant, of), at);
        }
    }

    pub(crate) fn unlist_run(&self, at: Sequence, tenant: TenantId, of: &Occurrence, outline: &RunOutline) {
        self.index().remove(Family::Points, &Class::of(outline).key(tenant, of), at);
    }

    /// Writes the rows of up to `count` runs that an earlier build stored. A damaged run is no error: no replay must fail
    /// because of a run that no caller needs.
    pub(crate) fn index_runs(&self, at: Sequence, count: usize) -> Result<IndexStep, StoreError> {
        match self.try_index_runs(at, count) {
            Err(StoreError::Damaged(_)) => Ok(IndexStep::Damaged),
            step => step,
        }
    }

    /// Makes no change if it returns an error.
    fn try_index_runs(&self, at: Sequence, count: usize) -> Result<IndexStep, StoreError> {
        let mut from = match self.rows.run_index_progress(at)? {
            Some(Progress::Complete) => return Ok(IndexStep::Complete),
            Some(Progress::UpTo(key)) => just_after(&key),
            None => vec![key::RUN],
        };
        let mut runs = Vec::new();
        let mut collect = |key: &[u8], value: &Bytes| {
            runs.push((key.to_vec(), value.clone()));
            if runs.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.index().scan(Family::Points, &from, &[key::RUN + 1], at, &mut collect).map_err(damaged)?;
        let is_complete = runs.len() < count;
        let decode = |(key, value): &(Vec<u8>, Bytes)| {
            let malformed = |error| self.rows.malformed_point(key, error);
            let (tenant, of, _) = run::summary(value).map_err(malformed)?;
            Ok((tenant, of, run::outline(value).map_err(malformed)?))
        };
        let decoded = runs.iter().map(decode).collect::<Result<Vec<_>, StoreError>>()?;
        decoded.iter().for_each(|(tenant, of, outline)| self.list_run(at, *tenant, of, outline, false));
        if let Some((last, _)) = runs.pop() {
            from = last;
        }
        let progress = if is_complete { Progress::Complete } else { Progress::UpTo(from) };
        self.index().put(Family::Points, &Progress::KEY, &progress.encode(), at);
        if is_complete {
            self.rows.are_runs_listed.store(true, atomic::Ordering::Release);
        }
        Ok(if is_complete { IndexStep::Complete } else { IndexStep::Incomplete })
    }
}

/// Result of a journal entry that indexes runs of an earlier build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IndexStep {
    /// More runs may have no row.
    Incomplete,
    Complete,
    /// The entry had no effect, because a run is damaged.
    Damaged,
}

/// Result of one scan.
struct Part {
    /// Occurrences of the runs that match.
    found: Vec<Occurrence>,
    /// Last occurrence that the scan examined, if more runs follow.
    reached: Option<Occurrence>,
    examined: usize,
}

impl Rows {
    pub(crate) fn run_index_progress(&self, before: Sequence) -> Result<Option<Progress>, StoreError> {
        let value = self.index.get(Family::Points, &Progress::KEY, before).map_err(damaged)?;
        let decode = |value: Bytes| Progress::decode(&value);
        value.map(decode).transpose().map_err(|error| self.malformed_point(&Progress::KEY, error))
    }

    pub(crate) fn list_runs(&self, read: &RunRead) -> Result<RunList, StoreError> {
        if read.schedules.is_none() && !self.are_runs_listed.load(atomic::Ordering::Acquire) {
            return Err(StoreError::Unindexed(
                "the store is indexing the runs that an earlier build stored; retry later, or list the runs of a \
                 schedule"
                    .to_owned(),
            ));
        }
        let (mut read, mut list) = (read.clone(), RunList::default());
        loop {
            let parts = match &read.schedules {
                Some(schedules) => self.parts_of_schedules(&read, schedules)?,
                None => self.parts_of_classes(&read)?,
            };
            let examined_max = parts.len() * share_of(parts.len());
            list.examined += parts.iter().map(|part| part.examined).sum::<usize>();
            let order = |a: &Occurrence, b: &Occurrence| in_order(read.order, a, b);
            // A scan that stopped early did not examine the runs after its end. The page therefore ends at the first of
            // these ends.
            list.next = parts.iter().filter_map(|part| part.reached).min_by(order);
            let mut found: Vec<Occurrence> = parts.into_iter().flat_map(|part| part.found).collect();
            found.retain(|of| list.next.is_none_or(|next| order(of, &next) != Ordering::Greater));
            found.sort_by(order);
            found.dedup();
            let last = found.last().copied();
            for of in found {
                // The run may have changed since the scan, or the history sweep may have deleted it.
                let Some(run) = self.run(&of)? else { continue };
                if run.tenant != read.tenant || !read.filter.matches(&RunOutline::of(&run)) {
                    continue;
                }
                list.runs.push(run);
                if list.runs.len() == read.limit && (last != Some(of) || list.next.is_some()) {
                    list.next = Some(of);
                    return Ok(list);
                }
            }
            if list.next.is_none() || list.examined + examined_max > EXAMINED_MAX {
                return Ok(list);
            }
            read.after = list.next;
        }
    }

    /// Scans each class that can contain matching runs.
    fn parts_of_classes(&self, read: &RunRead) -> Result<Vec<Part>, StoreError> {
        let is_by_class = read.filter.status.is_none() && read.filter.late_by.is_none();
        let classes: Vec<Class> = Class::matching(&read.filter).collect();
        let share = share_of(classes.len());
        let rows_max = if is_by_class { read.limit.min(share) } else { share };
        let scan = |class: &Class| {
            let (mut from, mut to) = (class.from(read.tenant, read.from), class.from(read.tenant, read.until));
            match (read.order, read.after) {
                (Order::Oldest, Some(after)) => from = from.max(just_after(&class.key(read.tenant, &after))),
                (Order::Newest, Some(after)) => to = to.min(class.key(read.tenant, &after).to_vec()),
                (_, None) => {}
            }
            self.part(read, &from, &to, rows_max, timed::decode)
        };
        classes.iter().map(scan).collect()
    }

    /// Scans the runs of each schedule.
    fn parts_of_schedules(&self, read: &RunRead, schedules: &[Incarnation]) -> Result<Vec<Part>, StoreError> {
        let share = share_of(schedules.len());
        let rows_max = if read.filter == RunFilter::default() { read.limit.min(share) } else { share };
        let (mut from, mut until) = (read.from, read.until);
        match (read.order, read.after) {
            (Order::Oldest, Some(after)) => from = from.max(after.nominal),
            (Order::Newest, Some(after)) => until = until.min(after.nominal + Duration::from_millis(1)),
            (_, None) => {}
        }
        let decode = |_: &[u8], value: &[u8]| Ok((run::summary(value)?.1, run::outline(value)?));
        let scan = |incarnation: &Incarnation| {
            let (from, to) = (key::runs_from(*incarnation, from), key::runs_from(*incarnation, until));
            self.part(read, &from, &to, rows_max, decode)
        };
        schedules.iter().map(scan).collect()
    }

    /// Examines up to `rows_max` rows from `from` (inclusive) to `to` (exclusive).
    fn part(
        &self,
        read: &RunRead,
        from: &[u8],
        to: &[u8],
        rows_max: usize,
        decode: impl Fn(&[u8], &[u8]) -> Result<(Occurrence, RunOutline), Malformed>,
    ) -> Result<Part, StoreError> {
        let mut part = Part { found: Vec::new(), reached: None, examined: 0 };
        let mut last = None;
        self.walk_in(read.order, Family::Points, from, to, |key, value| {
            let (of, outline) = decode(key, value)?;
            if !read.contains(&of) {
                return Ok(ControlFlow::Continue(()));
            }
            if part.examined == rows_max {
                part.reached = last;
                return Ok(ControlFlow::Break(()));
            }
            part.examined += 1;
            last = Some(of);
            part.found.extend(read.filter.matches(&outline).then_some(of));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(part)
    }
}

fn in_order(order: Order, a: &Occurrence, b: &Occurrence) -> Ordering {
    let ordering = a.by_time().cmp(&b.by_time());
    if order == Order::Oldest { ordering } else { ordering.reverse() }
}

//! Listing of the runs of a tenant by time, from the rows of [`crate::codec::timed`], or of the runs of a few
//! schedules, from the runs themselves. A page merges several streams of rows: one stream per class, or one per
//! schedule.
//!
//! Invariants:
//! - The state machine writes the row of a run together with the run, and removes both together.
//! - The key of a row never changes. A retry replaces only the value of the row.
//! - One call reads at most [`EXAMINED_MAX`] rows. Removed rows that the index still contains count, too.
//!
//! docs/decisions/0240-list-runs-by-time.md gives the reasons for the design.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic;
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{Incarnation, Occurrence, RunFilter, RunOutline};
use store::runs::EXAMINED_MAX;
use store::{Order, RunList, RunRead, StoreError};
use stored::run;

use crate::codec::key;
use crate::codec::timed::{self, Class, Progress};
use crate::index::{Family, ScanRange, Sequence};
use crate::read::{Rows, damaged, just_after};

/// Maximum number of rows that one scan of a stream reads.
const SCANNED_MAX: usize = 250;

/// Rows of one class or of one schedule, in the order of the read.
struct Stream {
    /// Range of keys that the stream has not read yet: an inclusive lower and an exclusive upper bound.
    from: Vec<u8>,
    to: Vec<u8>,
    rows: VecDeque<Row>,
    /// True if `rows` contains the last row of the range.
    is_read: bool,
}

struct Row {
    of: Occurrence,
    /// True if the run of the row can match the filter.
    can_match: bool,
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
        let mut streams = match &read.schedules {
            Some(schedules) => streams_of_schedules(read, schedules),
            None => streams_of_classes(read),
        };
        // The first reads of all streams use at most half of the rows of the call.
        let share = (EXAMINED_MAX / 2 / streams.len().max(1)).clamp(1, SCANNED_MAX);
        let scanned_max = if read.filter == RunFilter::default() { share.min(read.limit + 1) } else { share };
        let mut list = RunList::default();
        let mut last = None;
        loop {
            for stream in &mut streams {
                while stream.rows.is_empty() && !stream.is_read {
                    let rows_max = scanned_max.min(EXAMINED_MAX - list.examined);
                    if rows_max == 0 {
                        list.next = last;
                        return Ok(list);
                    }
                    list.examined += self.extend(stream, read, rows_max)?;
                }
            }
            let first = streams
                .iter_mut()
                .filter(|stream| !stream.rows.is_empty())
                .min_by(|a, b| in_order(read.order, &a.rows[0].of, &b.rows[0].of));
            let Some(row) = first.and_then(|stream| stream.rows.pop_front()) else { return Ok(list) };
            if list.runs.len() == read.limit {
                list.next = last;
                return Ok(list);
            }
            last = Some(row.of);
            if row.can_match {
                self.add_run(&mut list, read, &row.of)?;
            }
        }
    }

    /// Adds the run to the page if it matches. The run may have changed since the scan, or the history sweep may have
    /// deleted it.
    fn add_run(&self, list: &mut RunList, read: &RunRead, of: &Occurrence) -> Result<(), StoreError> {
        let is_wanted = |run: &Run| run.tenant == read.tenant && read.filter.matches(&RunOutline::of(run));
        match self.run(of) {
            Ok(run) => list.runs.extend(run.filter(is_wanted)),
            Err(error @ StoreError::Damaged(_)) => {
                tracing::error!(%error, run = %of.run_id(), "run omitted from a listing because it is damaged");
                list.unreadable += 1;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads up to `rows_max` further rows of the stream. Returns the number of rows that it read.
    fn extend(&self, stream: &mut Stream, read: &RunRead, rows_max: usize) -> Result<usize, StoreError> {
        let late_by = read.filter.late_by.map(|late_by| late_by.min(timed::LATENESS_MAX));
        let filter = RunFilter { late_by, ..read.filter };
        let (mut examined, mut reached) = (0, None);
        let is_back = read.order == Order::Newest;
        let range = ScanRange { from: &stream.from, to: &stream.to, before: Sequence::LATEST, is_back };
        let mut visit = |key: &[u8], value: Option<&Bytes>| {
            examined += 1;
            let is_run = key.first() == Some(&key::RUN);
            let of = if is_run { key::parse_run(key) } else { timed::decode_key(key) };
            let outline = |value: &Bytes| if is_run { run::outline(value) } else { timed::decode(value) };
            match of {
                Ok(of) if read.contains(&of) => {
                    // If the row is damaged, the run itself determines the result.
                    let can_match = value.is_some_and(|value| outline(value).map_or(true, |it| filter.matches(&it)));
                    stream.rows.push_back(Row { of, can_match });
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "row omitted from a listing of runs because its key is damaged"),
            }
            if examined == rows_max {
                reached = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        self.index.scan_versions(Family::Points, range, &mut visit).map_err(damaged)?;
        stream.is_read = reached.is_none();
        if let Some(reached) = reached {
            match read.order {
                Order::Oldest => stream.from = just_after(&reached),
                Order::Newest => stream.to = reached,
            }
        }
        Ok(examined)
    }
}

/// Returns one stream for each class that can contain matching runs.
fn streams_of_classes(read: &RunRead) -> Vec<Stream> {
    let stream = |class: Class| {
        let (mut from, mut to) = (class.from(read.tenant, read.from), class.from(read.tenant, read.until));
        match (read.order, read.after) {
            (Order::Oldest, Some(after)) => from = from.max(just_after(&class.key(read.tenant, &after))),
            (Order::Newest, Some(after)) => to = to.min(class.key(read.tenant, &after).to_vec()),
            (_, None) => {}
        }
        Stream { from, to, rows: VecDeque::new(), is_read: false }
    };
    Class::matching(&read.filter).map(stream).collect()
}

/// Returns one stream for each of the schedules.
fn streams_of_schedules(read: &RunRead, schedules: &[Incarnation]) -> Vec<Stream> {
    let stream = |incarnation: &Incarnation| {
        let (mut from, mut to) = (key::runs_from(*incarnation, read.from), key::runs_from(*incarnation, read.until));
        match (read.order, read.after) {
            (Order::Oldest, Some(after)) if after.incarnation == *incarnation => {
                from = from.max(just_after(&key::run(&after)));
            }
            (Order::Oldest, Some(after)) => from = from.max(place_in(*incarnation, &after)),
            (Order::Newest, Some(after)) => to = to.min(place_in(*incarnation, &after)),
            (_, None) => {}
        }
        Stream { from, to, rows: VecDeque::new(), is_read: false }
    };
    schedules.iter().map(stream).collect()
}

/// Returns the place of the occurrence `of` among the keys of the runs of a schedule, in the order of
/// [`Occurrence::by_time`].
fn place_in(incarnation: Incarnation, of: &Occurrence) -> Vec<u8> {
    match incarnation.cmp(&of.incarnation) {
        Ordering::Less => key::runs_from(incarnation, of.nominal + Duration::from_millis(1)),
        Ordering::Equal => key::run(of).to_vec(),
        Ordering::Greater => key::runs_from(incarnation, of.nominal),
    }
}

fn in_order(order: Order, a: &Occurrence, b: &Occurrence) -> Ordering {
    let ordering = a.by_time().cmp(&b.by_time());
    if order == Order::Oldest { ordering } else { ordering.reverse() }
}

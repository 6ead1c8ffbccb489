//! Reads the runs of some schedules in parts, and compares each part with the timings.

use std::sync::Arc;
use std::time::Duration;

use domain::audit::{DIFFERENCES_MAX, DifferenceKind, Differences, Facts, differences};
use domain::occurrence::Run;
use domain::{DueKey, Occurrence, PastTiming, RunFilter, RunState, Schedule, Timestamp, When};

use super::{Pace, Reader};
use crate::runs::EXAMINED_MAX;
use crate::{Order, RunRead, StoreError};

/// Maximum number of runs in memory. More runs at one instant end the comparison.
const RUNS_MAX: usize = 20_000;
/// Maximum number of reads for the newest run before a stretch. An engine may return an empty page for a long range.
const EARLIER_READS_MAX: usize = 64;
/// Number of runs before a stretch that the audit reads.
const EARLIER_RUNS: usize = 20;
const MILLI: Duration = Duration::from_millis(1);

/// Stretch of one schedule from `from` to `until`, both inclusive. It is empty if `from` is after `until`.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) schedule: Arc<Schedule>,
    pub(super) past: Vec<PastTiming>,
    pub(super) due: Vec<DueKey>,
    /// Newest runs before `from`.
    pub(super) earlier: Vec<Run>,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Stretch {
    fn is_empty(&self) -> bool {
        self.from > self.until
    }

    /// Reads the newest runs before the stretch. A record of missed runs among them can cover the start of the stretch.
    /// If the read finds no run within its bound, the stretch becomes empty, because a record may exist. Returns false
    /// if the store cannot read a run.
    pub(super) async fn read_earlier_runs<P: Pace>(&mut self, reader: &Reader<'_, P>) -> Result<bool, StoreError> {
        let Schedule { tenant, incarnation, created_at, ref spec, .. } = *self.schedule;
        if self.is_empty() || matches!(spec.when, When::At(_)) || created_at >= self.from {
            return Ok(true);
        }
        let mut after = None;
        for _ in 0..EARLIER_READS_MAX {
            let read = RunRead {
                tenant,
                schedules: Some(vec![incarnation]),
                from: created_at,
                until: self.from,
                filter: RunFilter::default(),
                order: Order::Newest,
                after,
                limit: EARLIER_RUNS,
            };
            let page = reader.read(|store| store.list_runs(read)).await?;
            if page.unreadable > 0 {
                self.until = self.from - MILLI;
                return Ok(false);
            }
            after = page.next;
            if !page.runs.is_empty() || after.is_none() {
                self.earlier = page.runs;
                self.earlier.sort_by_key(|run| run.occurrence);
                return Ok(true);
            }
        }
        self.until = self.from - MILLI;
        Ok(true)
    }
}

/// Result of a comparison.
pub(super) struct Compared {
    /// Differences of each stretch.
    pub(super) differences: Vec<Differences>,
    /// True if the store cannot read some of the runs.
    pub(super) is_incomplete: bool,
}

/// Compares the runs of each stretch with its timings. All schedules belong to one tenant, and there are at most
/// [`super::SLICE`] of them.
pub(super) async fn compare<P: Pace>(reader: &Reader<'_, P>, stretches: &[Stretch]) -> Result<Compared, StoreError> {
    let mut compared = Compared { differences: vec![Differences::default(); stretches.len()], is_incomplete: false };
    let of_range = || stretches.iter().filter(|stretch| !stretch.is_empty());
    let from = of_range().map(|stretch| stretch.from).min();
    let until = of_range().map(|stretch| stretch.until).max();
    let (Some(mut from), Some(until)) = (from, until) else { return Ok(compared) };
    let end = until + MILLI;
    let mut runs: Vec<Run> = Vec::new();
    // The last record of missed runs of each schedule can cover instants of later parts.
    let mut earlier: Vec<Vec<Run>> = stretches.iter().map(|stretch| stretch.earlier.clone()).collect();
    let (mut after, mut is_readable) = (None, true);
    loop {
        let read = read_of(stretches, from, end, after);
        let page = reader.read(|store| store.list_runs(read)).await?;
        // An engine that divides a page among the schedules ends it when one of them has used up its share.
        if after.is_none() && stretches.len() > 1 && page.next.is_some() && page.runs.len() < EXAMINED_MAX / 4 {
            return compare_halves(reader, stretches).await;
        }
        is_readable &= page.unreadable == 0;
        runs.extend(page.runs);
        // The next page can contain further runs at the instant of `next`.
        let cut = page.next.map_or(end, |next: Occurrence| next.nominal);
        if cut > from {
            for (index, stretch) in stretches.iter().enumerate() {
                let part = part_of(stretch, from, cut, &runs, &earlier[index]);
                append(&mut compared.differences[index], part.differences(is_readable));
                earlier[index] = part.covering();
            }
            compared.is_incomplete |= !is_readable;
            runs.retain(|run| run.occurrence.nominal >= cut);
            (from, is_readable) = (cut, true);
        }
        after = page.next;
        compared.is_incomplete |= runs.len() > RUNS_MAX;
        if after.is_none() || runs.len() > RUNS_MAX {
            break;
        }
    }
    for differences in compared.differences.iter_mut().filter(|differences| differences.has_other_zone_data) {
        differences.found.retain(|difference| difference.kind != DifferenceKind::MissingOutcome);
        differences.is_cut &= !differences.found.is_empty();
    }
    Ok(compared)
}

/// Compares each half of `stretches` alone, so that a schedule with many runs shares its pages with fewer others.
async fn compare_halves<P: Pace>(reader: &Reader<'_, P>, stretches: &[Stretch]) -> Result<Compared, StoreError> {
    let (first, second) = stretches.split_at(stretches.len() / 2);
    let mut compared = Box::pin(compare(reader, first)).await?;
    let rest = Box::pin(compare(reader, second)).await?;
    compared.differences.extend(rest.differences);
    compared.is_incomplete |= rest.is_incomplete;
    Ok(compared)
}

/// Appends the differences of the next part of a stretch.
fn append(all: &mut Differences, part: Differences) {
    all.found.extend(part.found);
    all.is_cut |= part.is_cut || all.found.len() > DIFFERENCES_MAX;
    all.found.truncate(DIFFERENCES_MAX);
    all.has_other_zone_data |= part.has_other_zone_data;
}

fn read_of(stretches: &[Stretch], from: Timestamp, until: Timestamp, after: Option<Occurrence>) -> RunRead {
    RunRead {
        tenant: stretches[0].schedule.tenant,
        schedules: Some(stretches.iter().map(|stretch| stretch.schedule.incarnation).collect()),
        from,
        until,
        filter: RunFilter::default(),
        order: Order::Oldest,
        after,
        limit: EXAMINED_MAX,
    }
}

/// Part of a stretch, with the runs of its schedule.
struct Part<'a> {
    stretch: &'a Stretch,
    runs: Vec<Run>,
    from: Timestamp,
    until: Timestamp,
}

fn part_of<'a>(stretch: &'a Stretch, from: Timestamp, cut: Timestamp, runs: &[Run], earlier: &[Run]) -> Part<'a> {
    let is_wanted = |run: &&Run| {
        let Occurrence { incarnation, nominal, .. } = run.occurrence;
        incarnation == stretch.schedule.incarnation && nominal < cut
    };
    let mut runs: Vec<Run> = earlier.iter().chain(runs.iter().filter(is_wanted)).cloned().collect();
    runs.sort_by_key(|run| run.occurrence);
    runs.dedup_by_key(|run| run.occurrence);
    Part { stretch, runs, from: from.max(stretch.from), until: stretch.until.min(cut - MILLI) }
}

impl Part<'_> {
    fn differences(&self, is_readable: bool) -> Differences {
        let Part { stretch: Stretch { schedule, past, due, .. }, ref runs, from, until } = *self;
        let mut compared = match from <= until {
            true => differences(&Facts { schedule, past, runs, due, from, until }),
            false => Differences::default(),
        };
        // A run that the engine cannot decode may be the missing record.
        compared.found.retain(|difference| is_readable || difference.kind != DifferenceKind::MissingOutcome);
        compared
    }

    /// Returns the record of missed runs that ends last, if any.
    fn covering(self) -> Vec<Run> {
        let end = |run: &Run| match run.state {
            RunState::Missed { last, .. } => Some(last),
            RunState::Retrying | RunState::Succeeded | RunState::Failed | RunState::Cancelled => None,
        };
        let covering = self.runs.into_iter().filter(|run| end(run).is_some()).max_by_key(|run| end(run));
        covering.into_iter().collect()
    }
}

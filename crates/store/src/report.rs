//! Reports about the final runs of a tenant. A report reads the counts that the engine keeps ([`Store::counts`]), and
//! no runs.
//!
//! Invariants:
//! - A final run with a nominal instant in the range of the report counts once, except in a report by label. There, it
//!   counts once in the row of each of its labels.
//! - A report has at most [`ROWS_MAX`] rows with values.
//! - A call of the engine reads at most [`HOURS_AT_ONCE`] hours, or [`GROUPED_HOURS_AT_ONCE`] by host or by label.
//!
//! docs/decisions/0244-count-final-runs-by-hour.md gives the reasons for the design.

use std::collections::BTreeMap;

use domain::{Counts, Facet, Group, Histogram, Hour, RunStateKind, Tally, TenantId};

use crate::{Store, StoreError};

/// Maximum number of hours of a report: 92 days. A report whose range starts within an hour has one hour more.
pub const HOURS_MAX: i64 = 92 * 24;
/// Maximum number of hours that one call of the engine reads: a week, or a day of the larger counts by host or by
/// label.
pub const HOURS_AT_ONCE: i64 = 7 * 24;
pub const GROUPED_HOURS_AT_ONCE: i64 = 24;
/// Maximum number of rows of a report with values. A report by hour can have more rows, up to [`HOURS_MAX`].
pub const ROWS_MAX: usize = 1_000;

/// Read of the counts of `facet` for the hours from `from` (inclusive) to `until` (exclusive). `from` is at most
/// `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountRead {
    pub tenant: TenantId,
    pub facet: Facet,
    pub from: Hour,
    pub until: Hour,
}

/// Counts of some hours, in ascending order. An hour without final runs has no entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CountPage {
    pub hours: Vec<(Hour, Counts)>,
    /// First hour from which the engine has counted all final runs. The counts of earlier hours may lack runs that a
    /// member of an earlier build wrote.
    pub counted_from: Hour,
}

/// Property by which a report has rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReportBy {
    State,
    Hour,
    Host,
    Label,
}

impl ReportBy {
    fn facet(self) -> Facet {
        match self {
            ReportBy::State | ReportBy::Hour => Facet::All,
            ReportBy::Host => Facet::Host,
            ReportBy::Label => Facet::Label,
        }
    }

    fn hours_at_once(self) -> i64 {
        match self {
            ReportBy::State | ReportBy::Hour => HOURS_AT_ONCE,
            ReportBy::Host | ReportBy::Label => GROUPED_HOURS_AT_ONCE,
        }
    }
}

/// Request for a report about the hours from `from` (inclusive) to `until` (exclusive): at most [`HOURS_MAX`] hours
/// and one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportRead {
    pub tenant: TenantId,
    pub by: ReportBy,
    pub from: Hour,
    pub until: Hour,
    /// Only runs in this state.
    pub state: Option<RunStateKind>,
}

/// Key of a row of a report.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RowKey {
    State(RunStateKind),
    Hour(Hour),
    Group(Group),
}

/// Values of a row of a report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportRow {
    /// Number of runs in each state. States without runs are absent.
    pub states: BTreeMap<RunStateKind, u64>,
    pub lateness: Histogram,
    pub duration: Histogram,
}

impl ReportRow {
    /// Returns the number of runs in all states.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.states.values().fold(0, |sum, runs| sum.saturating_add(*runs))
    }

    fn add(&mut self, state: RunStateKind, tally: &Tally) {
        let runs = self.states.entry(state).or_default();
        *runs = runs.saturating_add(tally.runs);
        self.lateness.merge(&tally.lateness);
        self.duration.merge(&tally.duration);
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    pub rows: BTreeMap<RowKey, ReportRow>,
    /// First hour from which the counts are complete. `None` if this is so for the whole range.
    pub counted_from: Option<Hour>,
}

impl Report {
    fn add(&mut self, read: &ReportRead, hour: Hour, counts: &Counts) {
        for (group, tallies) in counts.groups() {
            let is_wanted = |state| read.state.is_none_or(|wanted| wanted == state);
            for (state, tally) in tallies.iter().filter(|(state, _)| is_wanted(**state)) {
                let key = match read.by {
                    ReportBy::State => RowKey::State(*state),
                    ReportBy::Hour => RowKey::Hour(hour),
                    ReportBy::Host | ReportBy::Label => RowKey::Group(self.within_bound(group)),
                };
                self.rows.entry(key).or_default().add(*state, tally);
            }
        }
    }

    /// Returns `group` if the report has it or may have one more row. Otherwise returns the group of other values.
    fn within_bound(&self, group: &Group) -> Group {
        let Group::Value { name, .. } = group else { return group.clone() };
        if self.rows.len() < ROWS_MAX || self.rows.contains_key(&RowKey::Group(group.clone())) {
            return group.clone();
        }
        let other = Group::OtherValue { name: name.clone() };
        let has_room = self.rows.len() < 2 * ROWS_MAX || self.rows.contains_key(&RowKey::Group(other.clone()));
        if has_room { other } else { Group::OtherName }
    }
}

/// Makes a report. Calls `turn` before each read of the engine, and keeps the result of `turn` until the read has
/// ended. With `turn`, the caller limits the number of concurrent reads.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn report<T, Turn: Future<Output = T>>(
    store: &dyn Store,
    read: &ReportRead,
    turn: impl Fn() -> Turn,
) -> Result<Report, StoreError> {
    let mut report = Report::default();
    let mut from = read.from;
    while from < read.until {
        let until = read.until.min(Hour(from.0.saturating_add(read.by.hours_at_once())));
        let _turn = turn().await;
        let page = store.counts(CountRead { tenant: read.tenant, facet: read.by.facet(), from, until }).await?;
        page.hours.iter().for_each(|(hour, counts)| report.add(read, *hour, counts));
        report.counted_from = Some(page.counted_from).filter(|counted_from| *counted_from > read.from);
        from = until;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{RunOrigin, RunSample};

    fn counts(hosts: impl IntoIterator<Item = usize>) -> Counts {
        let mut counts = Counts::default();
        for host in hosts {
            let origin = RunOrigin { host: Some(host.to_string()), labels: Vec::new() };
            let sample = RunSample { state: RunStateKind::Failed, lateness: Some(1), duration: None };
            counts.record(Facet::Host, Some(&origin), &sample);
        }
        counts
    }

    #[test]
    fn report_of_many_hosts_has_a_row_for_the_others() {
        let (from, until) = (Hour(0), Hour(100));
        let read = ReportRead { tenant: TenantId(1), by: ReportBy::Host, from, until, state: None };
        let mut report = Report::default();
        for hour in 0..100 {
            let first = usize::try_from(hour).unwrap() * 50;
            report.add(&read, Hour(hour), &counts(first..first + 50));
        }
        report.add(&read, Hour(100), &counts([0, 4_999]));
        let runs = |group| report.rows[&RowKey::Group(group)].runs();
        let host = |host: &str| Group::Value { name: String::new(), value: host.to_owned() };
        assert_eq!(report.rows.len(), ROWS_MAX + 1);
        assert_eq!(report.rows.values().map(ReportRow::runs).sum::<u64>(), 5_002, "no run is lost");
        assert_eq!((runs(host("0")), runs(Group::OtherValue { name: String::new() })), (2, 4_001));
        let none = ReportRead { state: Some(RunStateKind::Succeeded), ..read };
        let mut report = Report::default();
        report.add(&none, Hour(0), &counts([1]));
        assert!(report.rows.is_empty());
    }
}

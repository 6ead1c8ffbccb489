//! Counts of the final runs of a tenant, by the hour of their nominal instants. A store engine adds a run to the counts
//! in the step that writes the final record of the run, so a report needs no scan of the runs.
//!
//! Each hour has counts for each [`Facet`]. The counts of a facet consist of groups, for example one group for each
//! host. The number of groups of an hour is bounded. Runs beyond the bound are in groups that state this.
//!
//! docs/decisions/0244-count-final-runs-by-hour.md gives the reasons for the design.

mod histogram;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::histogram::{BUCKETS, Histogram};
use crate::occurrence::{Attempt, Run};
use crate::{RunOutline, RunStateKind, Schedule, Timestamp};

const HOUR_MILLIS: i64 = 3_600_000;

/// Hour of the UTC clock, as the number of hours since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Hour(pub i64);

impl Hour {
    #[must_use]
    pub fn of(at: Timestamp) -> Self {
        Hour(at.as_millis().div_euclid(HOUR_MILLIS))
    }

    /// Returns the first hour that starts at or after `at`.
    #[must_use]
    pub fn from_start(at: Timestamp) -> Self {
        let hour = Hour::of(at);
        if hour.start() == at { hour } else { Hour(hour.0 + 1) }
    }

    #[must_use]
    pub fn start(self) -> Timestamp {
        Timestamp::from_millis(self.0.saturating_mul(HOUR_MILLIS))
    }
}

/// Property of runs by which counts are kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Facet {
    /// All runs of the hour, in the single group [`Group::None`].
    All,
    /// The host of the target. The name of each group is empty.
    Host,
    /// The labels of the schedule. A run is in a group for each of its labels.
    Label,
}

impl Facet {
    pub const ALL: [Facet; 3] = [Facet::All, Facet::Host, Facet::Label];

    /// Returns the maximum number of different names of groups in an hour, and of different values of a name.
    #[must_use]
    pub const fn groups_max(self) -> (usize, usize) {
        match self {
            Facet::All => (0, 0),
            Facet::Host => (1, 64),
            Facet::Label => (8, 32),
        }
    }

    /// Returns the groups of a run with this origin. An unknown origin has the group [`Group::None`].
    fn groups_of(self, origin: Option<&RunOrigin>) -> Vec<Group> {
        let mut groups = Vec::new();
        match (self, origin) {
            (Facet::All, _) | (_, None) => {}
            (Facet::Host, Some(origin)) => {
                groups.extend(origin.host.iter().map(|host| Group::value("", host)));
            }
            (Facet::Label, Some(origin)) => {
                groups.extend(origin.labels.iter().map(|(name, value)| Group::value(name, value)));
            }
        }
        if groups.is_empty() {
            groups.push(Group::None);
        }
        groups
    }
}

/// Properties of the schedule of a run when the run ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunOrigin {
    /// Host of the target in the form of [`crate::target::canonical_host`]. `None` for a topic.
    pub host: Option<String>,
    /// Labels, each name once.
    pub labels: Vec<(String, String)>,
}

impl RunOrigin {
    #[must_use]
    pub fn of(schedule: &Schedule) -> Self {
        let labels = schedule.spec.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        RunOrigin { host: schedule.spec.target.host(), labels }
    }
}

/// Group of runs of a facet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Group {
    /// The runs without the property, and the runs whose property is unknown.
    None,
    Value {
        name: String,
        value: String,
    },
    /// The runs with further values of this name, beyond the bound on values.
    OtherValue {
        name: String,
    },
    /// The runs with further names, beyond the bound on names.
    OtherName,
}

impl Group {
    fn value(name: &str, value: &str) -> Self {
        Group::Value { name: name.to_owned(), value: value.to_owned() }
    }

    fn size(&self) -> usize {
        GROUP_BYTES
            + match self {
                Group::Value { name, value } => name.len() + value.len(),
                Group::OtherValue { name } => name.len(),
                Group::None | Group::OtherName => 0,
            }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Group::Value { name, .. } | Group::OtherValue { name } => Some(name),
            Group::None | Group::OtherName => None,
        }
    }
}

/// Approximate number of stored bytes of a tally, and of a group without its texts.
const TALLY_BYTES: usize = 96;
const GROUP_BYTES: usize = 8;

/// Number of runs, with their lateness and durations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub runs: u64,
    /// Lateness in milliseconds of the runs that have one.
    pub lateness: Histogram,
    /// Duration in milliseconds of the last attempt of each run that has one.
    pub duration: Histogram,
}

impl Tally {
    /// Adds a run. Returns the number of new buckets.
    fn record(&mut self, sample: &RunSample) -> usize {
        self.runs = self.runs.saturating_add(1);
        let is_new = [
            sample.lateness.is_some_and(|lateness| self.lateness.record(lateness)),
            sample.duration.is_some_and(|duration| self.duration.record(duration)),
        ];
        is_new.into_iter().filter(|is_new| *is_new).count()
    }

    /// Adds the runs of another tally.
    pub fn merge(&mut self, other: &Tally) {
        self.runs = self.runs.saturating_add(other.runs);
        self.lateness.merge(&other.lateness);
        self.duration.merge(&other.duration);
    }
}

/// Tallies of a group by the states of the runs. The states are final.
pub type Tallies = BTreeMap<RunStateKind, Tally>;

/// Values of one final run that the counts contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunSample {
    pub state: RunStateKind,
    /// Lateness in milliseconds ([`RunOutline::lateness`]).
    pub lateness: Option<u64>,
    /// Duration of the last attempt in milliseconds, rounded up.
    pub duration: Option<u64>,
}

impl RunSample {
    /// Returns the sample of a run with this outline, whose last stored attempt took `last_attempt`. Returns `None` if
    /// the run is not final.
    #[must_use]
    pub fn new(outline: &RunOutline, last_attempt: Option<Duration>) -> Option<Self> {
        let millis = |nanos: u128| u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        (outline.state != RunStateKind::Retrying).then(|| RunSample {
            state: outline.state,
            lateness: outline.lateness.map(|lateness| millis(lateness.as_nanos())),
            duration: last_attempt.map(|duration| millis(duration.as_nanos())),
        })
    }

    /// Returns the sample of a run, or `None` if the run is not final.
    #[must_use]
    pub fn of(run: &Run) -> Option<Self> {
        let last: Option<&Attempt> = run.attempts.last();
        RunSample::new(&RunOutline::of(run), last.map(|attempt| attempt.duration))
    }
}

/// Growth of counts by one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// Number of bytes by which [`Counts::size`] grows.
    pub size: usize,
    /// Number by which [`Counts::buckets`] grows.
    pub buckets: usize,
}

/// Counts of one facet of one hour.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    groups: BTreeMap<Group, Tallies>,
}

impl Counts {
    /// Returns the counts with these groups.
    #[must_use]
    pub fn of_groups(groups: BTreeMap<Group, Tallies>) -> Self {
        Counts { groups }
    }

    #[must_use]
    pub fn groups(&self) -> &BTreeMap<Group, Tallies> {
        &self.groups
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the approximate number of bytes that the counts need. The number depends only on the groups and their
    /// states, and not on the numbers of runs.
    #[must_use]
    pub fn size(&self) -> usize {
        self.groups.iter().map(|(group, tallies)| group.size() + tallies.len() * TALLY_BYTES).sum()
    }

    /// Returns the number of buckets of all histograms.
    #[must_use]
    pub fn buckets(&self) -> usize {
        let tallies = self.groups.values().flat_map(Tallies::values);
        tallies.map(|tally| tally.lateness.buckets().len() + tally.duration.buckets().len()).sum()
    }

    /// Adds a final run. Returns the growth of the counts.
    pub fn record(&mut self, facet: Facet, origin: Option<&RunOrigin>, sample: &RunSample) -> Growth {
        let (mut placed, mut grown) = (Vec::new(), Growth::default());
        for group in facet.groups_of(origin) {
            let group = self.within_bounds(facet, group);
            // Several labels of a run can share a group beyond the bounds. The run counts once.
            if !placed.contains(&group) {
                match self.groups.get(&group) {
                    None => grown.size += group.size() + TALLY_BYTES,
                    Some(tallies) if !tallies.contains_key(&sample.state) => grown.size += TALLY_BYTES,
                    Some(_) => {}
                }
                grown.buckets += self.tally(group.clone(), sample.state).record(sample);
                placed.push(group);
            }
        }
        grown
    }

    /// Adds the runs of other counts of the same facet. Groups beyond the bounds of the facet become part of the groups
    /// of other values.
    pub fn merge(&mut self, facet: Facet, other: &Counts) {
        for (group, tallies) in &other.groups {
            let group = self.within_bounds(facet, group.clone());
            for (state, tally) in tallies {
                self.tally(group.clone(), *state).merge(tally);
            }
        }
    }

    fn tally(&mut self, group: Group, state: RunStateKind) -> &mut Tally {
        self.groups.entry(group).or_default().entry(state).or_default()
    }

    /// Returns `group` if the counts contain it or may contain one more such group. Otherwise returns the group of
    /// other values or names.
    fn within_bounds(&self, facet: Facet, group: Group) -> Group {
        let Some(name) = group.name() else { return group };
        if self.groups.contains_key(&group) {
            return group;
        }
        let (names_max, values_max) = facet.groups_max();
        let first = Group::Value { name: name.to_owned(), value: String::new() };
        let of_name = self
            .groups
            .range(first..)
            .take_while(|(known, _)| matches!(known, Group::Value { name: known, .. } if known == name));
        let values = of_name.take(values_max).count();
        let other = Group::OtherValue { name: name.to_owned() };
        if values == 0 && !self.groups.contains_key(&other) && self.names(names_max) >= names_max {
            return Group::OtherName;
        }
        if values < values_max { group } else { other }
    }

    /// Returns the number of different names, up to `max`.
    fn names(&self, max: usize) -> usize {
        let mut names: Vec<&str> = self.groups.keys().filter_map(Group::name).collect();
        names.sort_unstable();
        names.dedup();
        names.len().min(max)
    }
}

#[cfg(test)]
mod tests;

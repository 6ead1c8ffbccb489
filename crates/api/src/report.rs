//! Report about the runs of a tenant.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Response of `GET /v1/report`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Report {
    /// Start of the range of due instants: the requested instant, rounded down to a whole hour.
    pub from: Time,
    /// End of the range of due instants, exclusive: the requested instant, rounded up to a whole hour.
    pub to: Time,
    /// Property by which the report has rows.
    pub by: ReportBy,
    /// Instant from which the counts are complete. Earlier runs may be missing, because an earlier version of the
    /// server did not count them, or because the server has deleted their counts. The field is absent if the counts
    /// are complete for the whole range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_from: Option<Time>,
    /// Rows in the order of the states or hours. Rows of hosts or labels are in the order of their numbers of runs, the
    /// largest number first.
    pub rows: Vec<ReportRow>,
}

/// Property by which a report has rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReportBy {
    /// State of the run.
    State,
    /// Hour of the due instant.
    Hour,
    /// Host of the target of the run's schedule when the run ended.
    Host,
    /// Labels of the run's schedule when the run ended. A run is in the row of each of its labels.
    Label,
}

/// Runs of a report that have the same state, hour, host or label.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct ReportRow {
    /// Kind of the row.
    pub group: ReportGroup,
    /// Name of the label. The field is absent in other reports, and if the row contains runs with further names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// State, start of the hour, host, or value of the label. The field is absent if `group` is not `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Number of runs that have ended.
    pub runs: u64,
    /// Number of these runs in each state.
    pub states: ReportStates,
    /// Duration from the due instant to the start of the first attempt, of the runs that have one. The field is absent
    /// if there is no such run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness_ms: Option<Percentiles>,
    /// Duration of the last attempt of the runs that have one. The field is absent if there is no such run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<Percentiles>,
}

/// Kind of a row of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReportGroup {
    /// Runs with the value of the row.
    Value,
    /// Runs without a host or without labels, and runs whose schedule the server did not know when they ended.
    None,
    /// Runs with further values of the name, or with further names. The number of values of an hour and of a report is
    /// limited. If there is such a row, the numbers of the other rows may be too low.
    Other,
}

/// Numbers of runs by their final states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct ReportStates {
    /// Number of runs whose last attempt succeeded.
    pub succeeded: u64,
    /// Number of runs of which all attempts failed, also if a caller has redriven them.
    pub failed: u64,
    /// Number of missed runs. A missed run counts once, also if it represents several occurrences.
    pub missed: u64,
    /// Number of cancelled runs.
    pub cancelled: u64,
}

/// Percentiles in milliseconds. A percentile is at least the exact one, and less than 1/16 above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Percentiles {
    /// Number of runs with a value.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest value, exactly.
    pub max: u64,
}

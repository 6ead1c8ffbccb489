//! Result of the audits of the store.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Response of `GET /v1/audit`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Audit {
    /// Start of the stretch of time that the last complete audit compared. Absent if the present leader has not
    /// completed an audit yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// End of the last complete audit. Absent if the present leader has not completed an audit yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Number of differences between the timings of the schedules and the records in the store.
    pub unaccounted: u32,
    /// True if there are more differences than `findings` contains.
    pub truncated: bool,
    /// True if the audit skipped schedules, because the store cannot read some of their rows.
    #[serde(default)]
    pub incomplete: bool,
    /// Differences, at most 1,000.
    pub findings: Vec<AuditFinding>,
}

/// Difference between the timing of a schedule and the records in the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct AuditFinding {
    /// Kind of the difference: `missing_outcome`, `missing_due_row`, `missing_retry`, `no_such_occurrence`,
    /// `no_such_revision`, `not_started`, `not_redriven`, `duplicate` or `wrong_count`. Later versions may add kinds.
    pub kind: String,
    /// The difference as a sentence in English.
    pub text: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Id of the schedule.
    pub schedule: String,
    /// Instant of the occurrence.
    pub at: Time,
    /// Id of the run that is missing or should not exist.
    pub run: String,
    /// Instant at which an audit first found the difference.
    pub found_at: Time,
}

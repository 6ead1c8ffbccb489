//! Runs, and the results of a cancellation and of a redrive.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Response of `GET /v1/schedules/{id}/runs` and `GET /v1/runs`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct RunPage {
    /// Runs of this page, at most `limit`.
    pub runs: Vec<Run>,
    /// Token of the next page; `null` on the last page.
    pub next_page_token: Option<String>,
    /// Number of damaged runs that the server could not read while it searched for this page. They may match the
    /// filter, and are not in `runs`. The server's log contains their ids. The field is absent if the number is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Execution of one occurrence of a schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Run {
    /// Id of the run, equal to the callback's `webhook-id`.
    pub id: String,
    /// Id of the run's schedule. The field is absent if the schedule no longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// State of the run.
    pub state: RunState,
    /// Nominal instant of the occurrence.
    pub scheduled_at: Time,
    /// Revision of the schedule at the time when the server planned the run.
    pub revision: u32,
    /// Number of earlier redrives of this occurrence; 0 for the first run.
    pub replay: u16,
    /// Nominal instant of the last occurrence that a missed run represents. The run represents `missed_count`
    /// occurrences, the first of which is at `scheduled_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_last: Option<Time>,
    /// Number of occurrences that a missed run represents. The field is absent for other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_count: Option<u64>,
    /// True if an attempt of the occurrence at `scheduled_at` may have started before the server failed, although the
    /// run is missed. The target may have received this callback. No attempt of the run's other occurrences started.
    /// The field is absent if it is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attempt_possible: bool,
    /// Latest attempts of the run, in the order of their numbers.
    pub attempts: Vec<Attempt>,
}

/// State of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// An attempt failed, and another attempt is due.
    Retrying,
    /// The last attempt succeeded: the target responded with a 2xx status, or the bus stored the record.
    Succeeded,
    /// All attempts failed. The run is a dead letter until a caller redrives it.
    Failed,
    /// The occurrence was overdue, and so was a later occurrence of its schedule. If `attempt_possible` is true, the
    /// target may have received the callback.
    Missed,
    /// A client cancelled or changed the schedule while an attempt was in flight or a retry was due.
    Cancelled,
}

/// One attempt of a run, with the `status` of the target's response, the position of the stored record, or an `error`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Attempt {
    /// Number of the attempt within its run, from 1.
    pub number: u16,
    /// Instant at which the attempt started.
    pub started_at: Time,
    /// Duration of the attempt in milliseconds, rounded down.
    pub duration_ms: u64,
    /// Status of the target's response, if one arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Partition of the bus that stored the record, for an attempt to a topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Offset of the stored record in its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Class of the failure: `status_3xx`, `status_4xx`, `status_5xx`, `status_other`, `dns`, `tls`, `unreachable`,
    /// `timeout`, `panic`, `egress_refused`, `secret_not_opened`, `bus_not_configured` or `bus_rejected`. Later versions
    /// may add classes. The field is absent if the attempt succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// Reason why no response arrived: `timed out`, or a short text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// First bytes of the body of the target's response, at most 1,024, if the tenant has switched `excerpts` on. The
    /// field contains the bytes as the target sent them, and may end within a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The same bytes in base64, instead of `excerpt`, if they are not UTF-8 or contain control characters other than
    /// tabs and line ends, for example because the body is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt_base64: Option<String>,
}

/// Response of `DELETE /v1/schedules/{id}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Cancelled {
    /// Effect of the cancellation.
    pub result: CancelResult,
    /// Latest instant at which the owner decides on the cancellation; present only if `result` is `pending`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Time>,
}

/// Effect of a cancellation on the schedule's attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelResult {
    /// No attempt will start.
    Cancelled,
    /// An attempt is in flight. No other attempt will start.
    TooLate,
    /// The cancellation record is durable, but the schedule's owner is unreachable. The status is 202.
    Pending,
}

/// Response of `POST /v1/runs/{id}/redrive`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Redriven {
    /// Id of the new run.
    pub run_id: String,
}

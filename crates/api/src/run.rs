//! Runs, and what became of a cancel or a redrive.

use serde::{Deserialize, Serialize};

use crate::Time;

/// The answer of `GET /v1/schedules/{id}/runs` and `GET /v1/runs`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunPage {
    pub runs: Vec<Run>,
    /// Asks for the next page; `null` on the last one.
    pub next_page_token: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Run {
    /// The callback's `webhook-id`.
    pub id: String,
    /// Absent if the schedule is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    pub state: RunState,
    /// The instant that the schedule named.
    pub scheduled_at: Time,
    /// The schedule's revision that this run was planned for.
    pub revision: u32,
    /// 0, or how often this occurrence was redriven.
    pub replay: u16,
    /// Of a missed run: it stands for `missed_count` occurrences, from `scheduled_at` to `missed_last`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_last: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_count: Option<u64>,
    /// The last attempts, in order.
    pub attempts: Vec<Attempt>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// An attempt failed; another is due.
    Retrying,
    Succeeded,
    /// A dead letter, until it is redriven.
    Failed,
    /// Overdue when a later occurrence of its schedule was, too.
    Missed,
    Cancelled,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attempt {
    pub number: u16,
    pub started_at: Time,
    pub duration_ms: u64,
    /// The target's status, if it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there was no answer: `timed out`, or a short reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The answer of `DELETE /v1/schedules/{id}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cancelled {
    pub result: CancelResult,
    /// With `pending`: when it is decided at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// It will never fire (again).
    Cancelled,
    /// An attempt is in flight; no other will start.
    TooLate,
    /// With status 202: the wish is durable, the schedule's owner cannot be reached.
    Pending,
}

/// The answer of `POST /v1/runs/{id}/redrive`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Redriven {
    /// The new run.
    pub run_id: String,
}

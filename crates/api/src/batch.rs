//! `POST /v1/schedules:batch`: each line of the body is one request, and the response has one result for each line, in
//! the same order.

use serde::{Deserialize, Serialize};

use crate::{Problem, ScheduleSummary};

/// Result of one line of a batch.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchLine<'a> {
    /// Number of the line in the request's body, counted from 1. Empty lines count but have no result.
    pub line: u64,
    /// HTTP status that a single request would get for this line: 201, or the status of the problem.
    pub status: u16,
    /// Summary of the schedule that the line created; absent if the line failed.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSummary<'a>>,
    /// True if an earlier batch with the same `Idempotency-Key` created the schedule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// Problem of the line; absent if the line created a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

impl BatchLine<'_> {
    /// Copies the borrowed text, so that the result outlives the text that it was parsed from.
    #[must_use]
    pub fn into_owned(self) -> BatchLine<'static> {
        let BatchLine { line, status, schedule, replayed, problem } = self;
        BatchLine { line, status, schedule: schedule.map(ScheduleSummary::into_owned), replayed, problem }
    }
}

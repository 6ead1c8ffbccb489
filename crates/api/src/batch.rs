//! `POST /v1/schedules:batch`: one request per line in, one result per line out, in order.

use serde::{Deserialize, Serialize};

use crate::{Problem, ScheduleSummary};

/// The result of one line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchLine<'a> {
    /// The number of the request's line, from 1; empty lines count, but have no result.
    pub line: u64,
    /// The status that the line would have had alone: 201, or a problem's.
    pub status: u16,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSummary<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

impl BatchLine<'_> {
    /// Apart from the text that it was read from.
    #[must_use]
    pub fn into_owned(self) -> BatchLine<'static> {
        let BatchLine { line, status, schedule, problem } = self;
        BatchLine { line, status, schedule: schedule.map(ScheduleSummary::into_owned), problem }
    }
}

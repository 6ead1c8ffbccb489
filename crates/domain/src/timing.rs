//! Past timings of a schedule. Each change and each cancellation of a schedule ends the timing of one revision.
//!
//! docs/decisions/0241-explain-occurrences-from-past-timings.md gives the reasons for the design.

use crate::{ScheduleVersion, Timestamp, When};

/// Timing of a revision that is no longer the current revision of its schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct PastTiming {
    pub edition: ScheduleVersion,
    pub when: When,
    /// Instant at which the revision began. It is the anchor of [`When::next_after`].
    pub from: Timestamp,
    /// Instant at which the revision ended. `None` if an earlier build or a second cancellation record cancelled the
    /// schedule without this instant.
    pub until: Option<Timestamp>,
    pub end: TimingEnd,
    /// Id of the API key that ended the revision, or the name of the interface that did. `None` if it is unknown.
    pub by: Option<String>,
}

impl PastTiming {
    /// Returns true if the revision had begun and had not ended at `at`.
    #[must_use]
    pub fn is_in_force_at(&self, at: Timestamp) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

/// Change that ended a revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimingEnd {
    /// A put or a patch replaced the revision.
    Replaced,
    Cancelled,
}

/// Actor and instant of a cancellation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Author {
    pub at: Timestamp,
    /// Id of the API key that requested the cancellation, or the name of the interface that made it. `None` if it is
    /// unknown.
    pub key: Option<String>,
}

//! Preview of the occurrences of a schedule before its creation.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Response of `POST /v1/schedules/preview`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Preview {
    /// Time zone of the local times: the field `zone` of the schedule, or `UTC` for a schedule without `cron`.
    pub zone: String,
    /// Next occurrences, in the order of their instants. The list is short if the schedule has no further occurrence,
    /// or none in the next 41 years.
    pub occurrences: Vec<PreviewOccurrence>,
    /// Local times that the schedule names and for which it does not fire, because of a clock change before the last of
    /// `occurrences`. The list contains at most as many entries as the request's `count`.
    pub dropped: Vec<PreviewOccurrence>,
    /// Number of all local times that belong in `dropped`.
    pub dropped_count: u64,
}

/// Occurrence in a preview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct PreviewOccurrence {
    /// Instant of the occurrence. For a dropped local time, the instant at which the clock would show it if it did not
    /// skip it, or shows it for the second time.
    pub at: Time,
    /// Local time in the zone, with its offset from UTC. A dropped local time that the clock skips has no offset.
    pub local: String,
    /// Effect of a clock change of the time zone on this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_change: Option<ClockChange>,
}

/// Effect of a clock change of a time zone on an occurrence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct ClockChange {
    /// Kind of the effect.
    pub kind: ClockChangeKind,
    /// The effect as a sentence in English.
    pub text: String,
}

/// Kind of the effect of a clock change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClockChangeKind {
    /// The clock skips the local time, and the schedule fires at the first instant after the skip.
    Moved,
    /// The schedule does not fire for the local time.
    Dropped,
    /// The clock shows the local time for the second time, and the schedule fires both times.
    Repeated,
    /// The kind is newer than this version of the client. The server never sends this value.
    #[cfg_attr(feature = "schema", schemars(skip))]
    #[serde(other)]
    Other,
}

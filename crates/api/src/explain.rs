//! Explanation of one instant of a schedule.

use serde::{Deserialize, Serialize};

use crate::Time;

/// Response of `GET /v1/schedules/{id}/explain`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Explanation {
    /// Instant that the explanation is about.
    pub at: Time,
    /// Answer to the question whether the schedule fires at this instant.
    pub verdict: Verdict,
    /// Causes of the verdict, at least one. The first cause answers the question, and each later cause gives the reason
    /// for an earlier cause.
    pub causes: Vec<Cause>,
}

/// Answer to the question whether a schedule fires at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// The instant is in the future, and the schedule has an occurrence at this instant.
    WillFire,
    /// The instant is in the future, and the schedule has no occurrence at this instant.
    WillNotFire,
    /// The occurrence is due and has no outcome yet.
    Pending,
    /// An attempt succeeded.
    Fired,
    /// All attempts failed.
    Failed,
    /// The instant is in the past, and the schedule did not fire at this instant.
    DidNotFire,
    /// The server does not have the facts, for example because it deleted the history.
    Unknown,
}

/// One cause in the chain of an explanation. The fields after `text` are present if the kind of the cause has them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Cause {
    /// Kind of the cause.
    pub kind: CauseKind,
    /// The cause as a sentence in English.
    pub text: String,
    /// Instant that belongs to the cause, for example the instant of a cancellation, of the next occurrence, or of the
    /// next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Number of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u16>,
    /// Status of the target's response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Number of missed occurrences, attempts or attempts left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Id of the API key that changed the schedule, or the name of the interface that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Cause {
    /// Returns a cause without further fields.
    #[must_use]
    pub fn new(kind: CauseKind, text: String) -> Self {
        Cause { kind, text, at: None, attempt: None, status: None, count: None, key: None }
    }
}

/// Kind of a cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// The occurrence is not yet due.
    NotYetDue,
    /// The attempt succeeded.
    Fired,
    /// The first attempt started late.
    Late,
    /// The occurrence is due and has no record yet.
    Due,
    /// A change of the schedule made the occurrence void.
    Replaced,
    /// A cancellation made the occurrence void.
    Cancelled,
    /// The schedule has no further occurrence.
    Ended,
    /// A later occurrence was due too, and fired instead.
    Missed,
    /// The target responded with a status other than 2xx.
    Answered,
    /// The attempt timed out.
    TimedOut,
    /// The attempt could not reach the target.
    Unreachable,
    /// The egress policy rejected the address of the target.
    EgressRejected,
    /// The server failed during the attempt.
    Panicked,
    /// The run has further attempts.
    RetriesLeft,
    /// The run used all its attempts.
    DeadLetter,
    /// A user redrove the dead letter.
    Redriven,
    /// The tenant has reached a quota.
    OverQuota,
    /// All slots of the service, of the tenant or of the target were in use.
    NoSlot,
    /// The circuit of the target is open.
    CircuitOpen,
    /// The occurrence fired after missed occurrences.
    CaughtUp,
    /// The member that started the attempt took over the schedule after the instant, for example after a restart.
    MemberDown,
    /// A user set the timing after the instant.
    SetLate,
    /// The owner of the schedule is unreachable.
    OwnerUnreachable,
    /// The server cannot read the stored schedule.
    RowUnreadable,
    /// The timing has no occurrence at the instant.
    NoMatch,
    /// A clock change of the time zone moves or suppresses the occurrence.
    ZoneMoved,
    /// The schedule did not exist.
    NotCreated,
    /// The server has deleted the history.
    HistoryDeleted,
    /// The kind is newer than this version of the client. The server never sends this value.
    #[cfg_attr(feature = "schema", schemars(skip))]
    #[serde(other)]
    Other,
}

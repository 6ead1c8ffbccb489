//! Requests for changes of schedules, their answers, and the owner-only part of both.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, Spec, Tenant, Timestamp};
use store::StoreError;

/// A request for a new schedule; its spec has been checked.
#[derive(Clone, Debug)]
pub struct Create {
    pub tenant: Arc<Tenant>,
    /// `None`: an id is made.
    pub id: Option<ScheduleId>,
    /// `None`: one is drawn. A request that is made again with its own is known: it makes no second schedule.
    pub incarnation: Option<Incarnation>,
    pub spec: Spec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateRefusal {
    #[error("a schedule of this id exists")]
    Exists,
    /// It is not known whether it was made.
    #[error("the owner of this id cannot be reached now")]
    Unreachable,
    #[error("the schedule has no occurrence after the present instant")]
    NeverFires,
}

/// What becomes of a live schedule's timing when its contents are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timing {
    /// It is set anew: `every` counts from now.
    Anew,
    /// It stays as it is, the next occurrence included; the request's spec says it, too.
    Kept,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PutAnswer {
    pub schedule: Arc<Schedule>,
    /// There was no live schedule of this id.
    pub created: bool,
    /// An attempt of what was replaced is in flight; no other of it will start.
    pub too_late: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    NotFound,
    /// It will never fire (again).
    Cancelled,
    /// An attempt is in flight; no other will start.
    TooLate,
    /// It is durably asked for, and its owner cannot be reached: by this instant, at the latest, it has fired for the
    /// last time.
    Pending {
        decided_by: Timestamp,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedriveAnswer {
    /// No such run of this tenant.
    NotFound,
    /// It is not a dead letter, or it was redriven before.
    NotDead,
    Redriven(Occurrence),
}

/// The outcome of an attempt that an earlier owner had in flight, for the present owner; as [`store::Change::Run`].
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptOutcome {
    pub poller: PollerId,
    pub run: Run,
    pub then: Option<DueKey>,
    pub ends: bool,
}

/// Why the owner of a shard has no answer to an owner-only request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Undone {
    /// The shard is not, or not yet, owned here; nothing was done.
    NotOwned,
    /// The request may have been done.
    Failed(StoreError),
}

impl From<StoreError> for Undone {
    fn from(error: StoreError) -> Self {
        Undone::Failed(error)
    }
}

impl From<Undone> for StoreError {
    fn from(undone: Undone) -> Self {
        match undone {
            Undone::NotOwned => StoreError::Unavailable("no member owns the shard now".to_owned()),
            Undone::Failed(error) => error,
        }
    }
}

//! Requests for changes of schedules, and their results.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Delay, Difference, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, Spec, TargetKey, Tenant,
    TenantId, Timestamp,
};
use store::StoreError;

/// Request for a new schedule. The caller must already have validated the spec.
#[derive(Clone, Debug)]
pub struct Create {
    pub tenant: Arc<Tenant>,
    /// Id of the schedule. If it is `None`, the scheduler generates an id.
    pub id: Option<ScheduleId>,
    /// Incarnation of the schedule. If it is `None`, the scheduler generates an incarnation. A repeated request with
    /// the same incarnation creates no second schedule.
    pub incarnation: Option<Incarnation>,
    pub spec: Spec,
    /// Id of the API key that requested the change, for the history of the schedule's timings. `None` if the caller
    /// does not know the key.
    pub by: Option<String>,
}

/// Reason why the scheduler did not create a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateRejection {
    #[error("a schedule with this id already exists; choose another id or replace the schedule")]
    Exists,
    /// The owner may or may not have created the schedule.
    #[error("cannot reach the member that owns the schedule's shard; retry the request")]
    Unreachable,
    #[error("the schedule has no future occurrence; change its timing")]
    NeverFires,
}

/// Effect of a put on the timing of an existing schedule that is not cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timing {
    /// The timing starts again: the first interval of an `every` timing begins at the put.
    Restarted,
    /// The timing does not change, and the next occurrence stays the same. The spec of the request must contain the
    /// same timing.
    Kept,
}

/// Result of a put.
#[derive(Clone, PartialEq, Debug)]
pub struct PutResponse {
    pub schedule: Arc<Schedule>,
    /// True if no schedule had the requested id before the put, or only a cancelled schedule had it.
    pub created: bool,
    /// True if an attempt of the replaced schedule is in flight. No other attempt of that schedule will start.
    pub too_late: bool,
}

/// Result of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelResponse {
    NotFound,
    /// No attempt of the schedule will start.
    Cancelled,
    /// An attempt of the schedule is in flight. No other attempt will start.
    TooLate,
    /// The cancellation record is durable, but the owner is unreachable. No attempt starts after `decided_by`.
    Pending {
        decided_by: Timestamp,
    },
}

/// Result of a redrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedriveResponse {
    /// The tenant has no recorded run of the requested occurrence.
    NotFound,
    /// The run is not a dead letter, or an earlier request has already redriven it.
    NotDead,
    Redriven(Occurrence),
}

/// Outcome of an attempt that an earlier owner of the shard had in flight. The earlier owner sends the outcome to the
/// current owner. The fields correspond to [`store::Change::Run`].
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptOutcome {
    pub poller: PollerId,
    pub run: Run,
    pub then: Option<DueKey>,
    pub ends: bool,
}

impl AttemptOutcome {
    /// Returns a copy that a member of any build can decode. The copy has neither the delays nor the excerpts of the
    /// attempts.
    pub(crate) fn for_any_build(&self) -> Self {
        let mut copy = self.clone();
        for attempt in &mut copy.run.attempts {
            attempt.delay = None;
            attempt.excerpt = None;
        }
        copy
    }
}

/// Request for the progress of the occurrence at `nominal`, whose key was due at `due`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    pub poller: PollerId,
    pub incarnation: Incarnation,
    pub nominal: Timestamp,
    pub target: TargetKey,
    pub due: Timestamp,
}

/// Progress of an occurrence, according to its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// True if the owner makes an attempt now.
    pub is_in_flight: bool,
    /// Reason why the occurrence waits. `None` if it does not wait, or if the owner knows no reason.
    pub delay: Option<Delay>,
}

/// Request for the result of the audits of the leader, for one tenant or for all tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditRequest {
    pub tenant: Option<TenantId>,
}

/// Result of the last complete audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// Start of the audited stretch. `None` if the leader has not completed an audit yet.
    pub from: Option<Timestamp>,
    /// End of the audit. `None` if the leader has not completed an audit yet.
    pub completed_at: Option<Timestamp>,
    /// Number of differences that the auditor keeps.
    pub unaccounted: u32,
    /// True if there are more differences than `findings` contains.
    pub is_truncated: bool,
    /// True if the audit skipped schedules, because the store cannot read some of their rows.
    pub is_incomplete: bool,
    pub findings: Vec<AuditFinding>,
}

/// Difference between the timing of a schedule and the records in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditFinding {
    pub tenant: TenantId,
    pub schedule: ScheduleId,
    pub difference: Difference,
    /// Instant at which an audit of this leader first found the difference.
    pub found_at: Timestamp,
}

/// Reason why an owner-only request has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnerError {
    /// This member does not own the shard. The request has had no effect.
    NotOwned,
    /// The request may have taken effect.
    Failed(StoreError),
}

impl From<StoreError> for OwnerError {
    fn from(error: StoreError) -> Self {
        OwnerError::Failed(error)
    }
}

impl From<OwnerError> for StoreError {
    fn from(undone: OwnerError) -> Self {
        match undone {
            OwnerError::NotOwned => {
                StoreError::Unavailable("no member owns the schedule's shard now; retry the request".to_owned())
            }
            OwnerError::Failed(error) => error,
        }
    }
}

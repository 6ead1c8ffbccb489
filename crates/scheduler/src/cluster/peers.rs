//! What members ask of each other, and the way there.
//!
//! A request that only the owner of a shard may answer is passed to it; a member that should own a shard asks the one
//! that does to let go; an outcome that comes after that is told to the next owner. [`Peers`] carries an [`Ask`] to
//! [`crate::Scheduler::answer`] of another member, and its [`Reply`] back; it retries nothing.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{DueKey, Edition, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, Seen, ShardId, Spec, TenantId};
use futures_util::future::BoxFuture;
use membership::{Member, MemberId};
use store::StoreError;

use crate::requests::{CancelAnswer, CreateRefusal, PutAnswer, RedriveAnswer, Timing};

pub trait Peers: Send + Sync + 'static {
    /// # Errors
    /// [`PeerError::Unreachable`] if no answer came; then it is not known whether `to` did what was asked.
    fn ask(&self, to: &Member, ask: Ask) -> BoxFuture<'static, Result<Reply, PeerError>>;
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    #[error("member {member} cannot be reached: {reason}")]
    Unreachable { member: String, reason: String },
}

/// The work of the owner of a shard.
#[derive(Clone, PartialEq, Debug)]
pub enum Ask {
    /// Makes schedules whose ids were chosen, all of one home shard.
    Create(Vec<Named>),
    Put(Named),
    /// As [`crate::Scheduler::put_if`]. Not a field of [`Ask::Put`]: a member that does not know it must not put without it.
    PutIf {
        named: Named,
        seen: Option<Seen>,
        timing: Timing,
    },
    /// The mark is durable; `applied` as the store said.
    Cancel {
        poller: PollerId,
        incarnation: Incarnation,
        applied: bool,
    },
    /// As [`crate::Scheduler::cancel_if`].
    CancelIf {
        poller: PollerId,
        edition: Edition,
    },
    Redrive {
        tenant: TenantId,
        of: Occurrence,
    },
    /// `member` should own these, and waits until the one asked has let go of them.
    LetGo {
        member: MemberId,
        shards: Vec<ShardId>,
    },
    /// What became of an attempt that was in flight when its shard was let go of.
    Outcome(Outcome),
    /// Rows that are due soon have arrived.
    Nudge,
}

/// A schedule that is asked for under a chosen id; its spec has been checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub tenant: TenantId,
    pub id: ScheduleId,
    /// As [`crate::Create::incarnation`].
    pub incarnation: Option<Incarnation>,
    pub spec: Spec,
}

/// As [`store::Change::Run`].
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub poller: PollerId,
    pub run: Run,
    pub then: Option<DueKey>,
    pub ends: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Created(Vec<Result<Arc<Schedule>, CreateRefusal>>),
    Put(Result<PutAnswer, CreateRefusal>),
    Cancelled(CancelAnswer),
    Redriven(RedriveAnswer),
    /// Those of the shards asked for that are free now.
    LetGo(Vec<ShardId>),
    /// It is not as whoever asks has seen it; nothing was done.
    Changed,
    /// Heard, whether anybody waited for it or not.
    Heard,
    /// The shard is not, or not yet, owned by the one asked; nothing was done.
    NotOwned,
    /// The store failed; what was asked may have been done.
    Failed(StoreError),
}

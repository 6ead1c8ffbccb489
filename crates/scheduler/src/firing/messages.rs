//! Messages between the owner, its tasks, the outcome writer and the rest of the member.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{Delay, PollerId, RunOrigin, ShardId, Term, Timestamp};
use store::{Cursor, DuePage, DueRead, HandedOver, InsertLogEntry, OwnerWrite, Positions, WriteRejection};
use tokio::sync::oneshot;

use crate::cluster::shards::ShardTerm;
use crate::firing::dispatch::{Lane, TargetHealth};
use crate::firing::window::{EntryId, PollerIndex, ReadKind};
use crate::requests::{AttemptOutcome, Waiting};

/// Result of one read of due rows.
pub(crate) type ReadDone = (PollerIndex, ReadKind, DueRead, Option<DuePage>);

#[derive(Debug)]
pub(crate) enum ToOwner {
    Read(Vec<ReadDone>),
    InsertLog(Option<(Vec<InsertLogEntry>, Cursor)>),
    Ended(Vec<Ended>),
    Written(Vec<WriteDone>),
    /// Due row that this member has written for a user's change of a schedule.
    DueRow(InsertLogEntry),
    Gained(Gained),
    /// Shards that the owner must release. The owner responds with the list of their attempts in flight. After the
    /// response, no attempt of these shards starts, and the outcome writer's queue contains the outcomes of all ended
    /// attempts.
    Release(BTreeSet<ShardId>, oneshot::Sender<Vec<HandedOver>>),
    /// Outcome of an attempt that an earlier owner had in flight, and the origin of its run. The response is true if
    /// the owner expected the outcome.
    Outcome(AttemptOutcome, Option<RunOrigin>, oneshot::Sender<bool>),
    /// Request for the reason for which a key waits now.
    Waiting(Waiting, oneshot::Sender<Option<Delay>>),
}

/// Shards that the member has gained, or new pollers of owned shards. The owner fires their rows from now on.
#[derive(Debug, Default)]
pub(crate) struct Gained {
    pub(crate) shards: Vec<ShardId>,
    pub(crate) pollers: Vec<(PollerId, ShardTerm, Positions)>,
    pub(crate) handed_over: Vec<HandedOver>,
    /// Reading of the member's wall clock when it took the shards.
    pub(crate) taken_at: Timestamp,
}

/// Key that has freed its slot in the lane of its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) lane: Lane,
    pub(crate) entry: EntryId,
    pub(crate) reason: EndReason,
    /// Health of the target, according to the attempt. `None` if the key caused no attempt.
    pub(crate) health: Option<TargetHealth>,
    /// Processor time that the key used, if the run executor measured it.
    pub(crate) cost: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    /// The outcome writer writes the outcome. The key is resolved when the outcome is durable.
    Writing,
    /// The key needs no attempt and no write.
    Dropped,
    /// The store cannot read the schedule, because its row is damaged or its format is unknown.
    Unreadable,
    /// The store was unavailable when the run executor read the schedule or its run.
    Unavailable,
    /// The key is no longer due by this member's clock, because the clock went back.
    NotDue,
    /// The schedule does not exist yet. Its creator may still write it.
    NotCreated,
    /// The owner released the shard, or the lease ended, before the attempt started.
    Released,
}

/// Write to the store, and the change of the owner's window that follows when the write is durable.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) write: OwnerWrite,
    pub(crate) then: Then,
}

#[derive(Debug)]
pub(crate) enum ToWriter {
    Write(PendingWrite),
    /// Write that must be durable before an attempt starts. The response is false if the attempt must not start,
    /// because the shard has a later owner.
    WriteBeforeStart(PendingWrite, oneshot::Sender<bool>),
    /// Pollers of gained shards, with their closed timestamps.
    Gained(Vec<(PollerId, Timestamp)>),
    /// Request for a notification when all earlier writes are durable or rejected.
    Flush(oneshot::Sender<()>),
}

/// Reason for which the owner writes a key again at a later position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deferral {
    /// The key waited too long for its target.
    Waits,
    /// The store cannot read the schedule.
    Unreadable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    Nothing,
    Resolve(EntryId),
    Deferred(EntryId, Deferral),
    Positions(PollerIndex),
}

/// Result of one [`PendingWrite`].
#[derive(Clone, Debug)]
pub(crate) struct WriteDone {
    pub(crate) poller: PollerId,
    /// Term under which the owner requested the write.
    pub(crate) term: Term,
    pub(crate) then: Then,
    /// Due row that this write stored. `None` if the write has no due row, or if the store rejected the write.
    pub(crate) row: Option<InsertLogEntry>,
    pub(crate) positions: Positions,
    pub(crate) refusal: Option<WriteRejection>,
    /// Outcome that the store rejected because the shard has a later owner. This member forwards the outcome to that
    /// owner.
    pub(crate) outcome: Option<AttemptOutcome>,
}

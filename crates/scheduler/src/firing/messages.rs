//! Messages between the owner, its tasks, the outcome writer and the rest of the member.

use std::collections::BTreeSet;

use domain::{PollerId, ShardId, Term, Timestamp};
use store::{Cursor, DuePage, DueRead, HandedOver, InsertLogEntry, OwnerWrite, Positions, WriteRejection};
use tokio::sync::oneshot;

use crate::cluster::shards::ShardTerm;
use crate::firing::dispatch::{Lane, TargetHealth};
use crate::firing::window::{EntryId, PollerIndex, ReadKind};
use crate::requests::AttemptOutcome;

/// Result of one read of due rows.
pub(crate) type ReadDone = (PollerIndex, ReadKind, DueRead, Option<DuePage>);

#[derive(Debug)]
pub(crate) enum ToOwner {
    Read(Vec<ReadDone>),
    InsertLog(Option<(Vec<InsertLogEntry>, Cursor)>),
    Ended(Vec<Ended>),
    Written(Vec<WriteDone>),
    /// A due row that a user's change wrote.
    DueRow(InsertLogEntry),
    Gained(Gained),
    /// Shards to release. The response lists their attempts in flight. No attempt of these shards starts after the
    /// response, and the outcomes of ended attempts are on their way to the outcome writer.
    Release(BTreeSet<ShardId>, oneshot::Sender<Vec<HandedOver>>),
    /// The outcome of an attempt that an earlier owner had in flight. The response is true if the owner expected it.
    Outcome(AttemptOutcome, oneshot::Sender<bool>),
}

/// Shards, or new pollers of owned shards, that the owner serves from now on.
#[derive(Debug, Default)]
pub(crate) struct Gained {
    pub(crate) shards: Vec<ShardId>,
    pub(crate) pollers: Vec<(PollerId, ShardTerm, Positions)>,
    pub(crate) handed_over: Vec<HandedOver>,
}

/// A key that left its target's lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) lane: Lane,
    pub(crate) entry: EntryId,
    pub(crate) reason: EndReason,
    /// Health of the target as the attempt showed it; `None` if no attempt was made.
    pub(crate) health: Option<TargetHealth>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    /// A write of the outcome is pending, and resolves the key.
    Writing,
    /// The key needs no attempt, and nothing is written.
    Dropped,
    /// The schedule cannot be read, because its row is damaged or its format is unknown.
    Unreadable,
    /// The store could not be reached.
    Unavailable,
    /// The key is not due by this clock, because the clock went back.
    NotDue,
    /// The schedule does not exist, and its creator may be about to write it.
    NotCreated,
    /// The shard was released, or its lease ended, before the attempt started.
    Released,
}

/// A write, and the change of the owner's window once the write is durable.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) write: OwnerWrite,
    pub(crate) then: Then,
}

#[derive(Debug)]
pub(crate) enum ToWriter {
    Write(PendingWrite),
    /// Pollers that the owner serves from now on, with their closed timestamps.
    Gained(Vec<(PollerId, Timestamp)>),
    /// Requests a notification when all earlier writes are durable or rejected.
    Flush(oneshot::Sender<()>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    Nothing,
    Resolve(EntryId),
    Deferred(EntryId),
    Positions(PollerIndex),
}

/// The result of one [`PendingWrite`].
#[derive(Clone, Debug)]
pub(crate) struct WriteDone {
    pub(crate) poller: PollerId,
    /// Term under which the row was written.
    pub(crate) term: Term,
    pub(crate) then: Then,
    /// The due row of this write, if the write has one.
    pub(crate) row: Option<InsertLogEntry>,
    pub(crate) positions: Positions,
    pub(crate) refusal: Option<WriteRejection>,
    /// An outcome that was rejected because the shard has a later owner. It is forwarded to that owner.
    pub(crate) outcome: Option<AttemptOutcome>,
}

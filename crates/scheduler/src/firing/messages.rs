//! Messages between the owner, its tasks, the outcome writer and the rest of the member.

use std::collections::BTreeSet;

use domain::{PollerId, ShardId, Term, Timestamp};
use store::{Arrival, Cursor, DuePage, DueRead, HandedOver, OwnerWrite, Positions, WriteRefusal};
use tokio::sync::oneshot;

use crate::cluster::shards::ShardTerm;
use crate::firing::dispatch::{Lane, TargetSays};
use crate::firing::window::{EntryId, PollerIndex, ReadKind};
use crate::requests::AttemptOutcome;

/// One read of due rows that has ended.
pub(crate) type ReadDone = (PollerIndex, ReadKind, DueRead, Option<DuePage>);

#[derive(Debug)]
pub(crate) enum ToOwner {
    Read(Vec<ReadDone>),
    Arrivals(Option<(Vec<Arrival>, Cursor)>),
    Ended(Vec<Ended>),
    Written(Vec<WriteDone>),
    /// A due row that a user's change wrote.
    Arrived(Arrival),
    Gained(Gained),
    /// Answered with the attempts in flight: from then on none of these shards' starts, and their outcomes are on their
    /// way to the outcome writer.
    Release(BTreeSet<ShardId>, oneshot::Sender<Vec<HandedOver>>),
    /// The outcome of an attempt that an earlier owner had in flight; answered with whether
    /// anybody waited for it.
    Outcome(AttemptOutcome, oneshot::Sender<bool>),
}

/// Shards, or pollers of theirs, that are owned from now on.
#[derive(Debug, Default)]
pub(crate) struct Gained {
    pub(crate) shards: Vec<ShardId>,
    pub(crate) pollers: Vec<(PollerId, ShardTerm, Positions)>,
    pub(crate) held: Vec<HandedOver>,
}

/// A key has left its target's lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) lane: Lane,
    pub(crate) entry: EntryId,
    pub(crate) how: HowEnded,
    /// What an attempt told of its target; `None` if there was none.
    pub(crate) says: Option<TargetSays>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HowEnded {
    /// A write of its outcome is pending, and resolves the key.
    Writing,
    /// It came to nothing, and nothing needs to be written.
    Dropped,
    /// Its schedule cannot be read as it is: what is stored is damaged, or not understood.
    Unreadable,
    /// The store could not be reached.
    Unavailable,
    /// By this clock it is not due: the clock went back.
    NotYet,
    /// Its schedule is not there, and may be about to be.
    Unborn,
    /// Its shard was released, or the lease on it ended, before it began.
    Released,
}

/// A write, and what the owner's window is to be told once it is durable.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) write: OwnerWrite,
    pub(crate) then: Then,
}

#[derive(Debug)]
pub(crate) enum ToWriter {
    Write(PendingWrite),
    /// Pollers are served from here on, and closed so far.
    Gained(Vec<(PollerId, Timestamp)>),
    /// To be told when all that came before is durable, or refused.
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
    /// Under which it was written.
    pub(crate) term: Term,
    pub(crate) then: Then,
    /// The due row that this wrote, if it wrote one.
    pub(crate) row: Option<Arrival>,
    pub(crate) positions: Positions,
    pub(crate) refusal: Option<WriteRefusal>,
    /// An outcome that was refused because the shard has a later owner, who is to be told.
    pub(crate) outcome: Option<AttemptOutcome>,
}

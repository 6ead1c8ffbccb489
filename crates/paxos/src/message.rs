//! What members of a paxos group tell each other. May be lost, doubled, reordered and late.

use std::time::Duration;

use bytes::Bytes;

use crate::agreed::Agreed;
use crate::entry::{BeMaster, Entry, Position, Value};
use crate::ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Tenure};
use crate::mover::Move;
use crate::system::{Fence, Preparation, Step};

/// Durations are such on the sender's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Phase 1. On trial it changes nothing: a node that is cut off shall not raise ballots that depose a master later.
    Prepare {
        ballot: Ballot,
        trial: bool,
        over: Over,
    },
    /// `idle` is how long ago, at least, the last slot that renewed a lease in this log was proposed.
    Promise {
        ballot: Ballot,
        trial: bool,
        last: Position,
        idle: Duration,
    },
    /// Of a prepare or an accept; `promised` is what to go beyond, if it is greater.
    Refuse {
        ballot: Ballot,
        promised: Ballot,
    },
    /// The entries after `after`, for a candidate with a quorum of promises; of a snapshot, what is from `offset` on.
    Pull {
        ballot: Ballot,
        after: Position,
        offset: u64,
    },
    Pulled {
        ballot: Ballot,
        after: Position,
        entries: Vec<Entry>,
    },
    /// Phase 2, and what is decided. Empty, it asks how far the other is.
    Accept {
        ballot: Ballot,
        after: Position,
        entries: Vec<Entry>,
        decided: Slot,
    },
    /// All up to `slot` is durable, and the leader's; and up to where is known to be decided. Of who does not know whether anybody
    /// leads, all up to `slot` is decided, and the other field is 0.
    Accepted {
        ballot: Ballot,
        slot: Slot,
        decided: Slot,
    },
    /// Entries are missing after `slot`, or what is there is not the leader's.
    Gap {
        ballot: Ballot,
        slot: Slot,
    },
    /// A part of the snapshot, for who is behind its log.
    Snapshot {
        ballot: Ballot,
        head: SnapshotHead,
        offset: u64,
        part: Bytes,
    },
    /// So many bytes of this snapshot are here.
    Received {
        ballot: Ballot,
        slot: Slot,
        offset: u64,
    },
    /// For the master to propose; whoever sent it learns of it from the log, if at all.
    Forward {
        entry: Bytes,
    },
    /// Who is to take over asks the master.
    Ask {
        tenure: Tenure,
    },
    /// The master has stopped, for `taker`. One that gives up says so to each member; the first that follows voids the others'.
    Consent {
        tenure: Tenure,
        taker: NodeId,
    },
    Decline {
        tenure: Tenure,
    },
    /// To the system group's master, from each node, not only from its members.
    Report(Report),
    /// The answer to it, while a master is moved that concerns its node.
    Orders(Orders),
}

impl Message {
    /// Whether a member may say so, as far as can be told without its log. What is not sound is as good as lost.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Message::Prepare { ballot, over, .. } => {
                ballot.is_sound() && (over.tenure() == Tenure::NONE || over.tenure().is_sound())
            }
            Message::Promise { ballot, last, .. } => ballot.is_sound() && last.is_sound(*ballot),
            Message::Refuse { ballot, promised } => ballot.is_sound() && promised.is_sound(),
            Message::Pull { ballot, after, .. } => ballot.is_sound() && after.is_sound(*ballot),
            Message::Pulled { ballot, after, entries } => {
                ballot.is_sound() && after.is_sound(*ballot) && are_sound(entries, *after, *ballot)
            }
            Message::Accept { ballot, after, entries, decided } => {
                let is_linked = after.is_sound(*ballot) && are_sound(entries, *after, *ballot);
                ballot.is_sound() && is_linked && decided.is_sound()
            }
            Message::Accepted { ballot, slot, decided } => ballot.is_sound() && slot.is_sound() && decided.is_sound(),
            Message::Gap { ballot, slot } | Message::Received { ballot, slot, .. } => {
                ballot.is_sound() && slot.is_sound()
            }
            Message::Snapshot { ballot, head, offset, part } => {
                let until = offset.checked_add(part.len() as u64);
                let Agreed { mastership, members } = &head.agreed;
                ballot.is_sound()
                    && head.position.is_sound(*ballot)
                    && mastership.tenure.is_sound()
                    && are_members(members)
                    && until.is_some_and(|until| until <= head.len)
            }
            Message::Ask { tenure } | Message::Consent { tenure, .. } | Message::Decline { tenure } => {
                tenure.is_sound()
            }
            Message::Forward { .. } => true,
            // The node judges them.
            Message::Report(_) | Message::Orders(_) => true,
        }
    }
}

/// Ballots never fall along a log, and none is beyond that of who sends it.
fn are_sound(entries: &[Entry], after: Position, most: Ballot) -> bool {
    let mut ballot = after.ballot;
    entries.iter().all(|entry| {
        let is_sound = entry.ballot > Ballot::NONE
            && (ballot..=most).contains(&entry.ballot)
            && match &entry.value {
                Value::Members(members) | Value::BeMaster(BeMaster { members, .. }) => are_members(members),
                Value::Noop | Value::Data(_) | Value::Shorten(_) => true,
            };
        ballot = entry.ballot;
        is_sound
    })
}

fn are_members(members: &[NodeId]) -> bool {
    !members.is_empty() && members.is_sorted_by(|one, next| one < next)
}

/// What a node is master of, and how far it is with what it was ordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub process: u64,
    /// When it was made, by the clock of that process.
    pub stamp: Instant,
    pub serves: Vec<Serving>,
    pub prepared: Option<(Fence, Preparation)>,
    /// This step of the move under this fence cannot be done.
    pub refused: Option<(Fence, Step)>,
}

/// A paxos group that a node serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Serving {
    pub group: GroupId,
    pub epoch: Epoch,
    /// Each member, in order, and how many slots it is behind.
    pub members: Vec<(NodeId, u64)>,
}

/// What the nodes of a move are to do, and until when: that is counted from the report that this answers. So orders that
/// were long on their way are known to be late, and those of an earlier process are nobody's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orders {
    /// Of the report.
    pub process: u64,
    pub stamp: Instant,
    pub of: Move,
    pub step: Step,
    pub within: Duration,
}

/// Why an acceptor may promise though there is a master: the mastership that is named is over, and so are all before it, of which
/// an acceptor may know one that is renewed by its node's liveness. It is the last one in the candidate's log, or one that its
/// master left, which may be later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Its lease is over by time.
    Waited { tenure: Tenure },
    /// So it is, and the system group decided that its node's liveness epoch is over.
    Expired { tenure: Tenure, node: NodeId, liveness: u64 },
    /// Its master stopped, and left it to who asks.
    Consent { tenure: Tenure },
}

impl Over {
    pub(crate) fn tenure(self) -> Tenure {
        match self {
            Over::Waited { tenure } | Over::Expired { tenure, .. } | Over::Consent { tenure } => tenure,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotHead {
    /// The last entry that it has.
    pub position: Position,
    pub agreed: Agreed,
    /// Of the application's bytes.
    pub len: u64,
}

/// The application's state after the entry at `position`, and what the log said about the paxos group there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub position: Position,
    pub agreed: Agreed,
    pub application: Bytes,
}

impl Snapshot {
    #[must_use]
    pub fn head(&self) -> SnapshotHead {
        SnapshotHead { position: self.position, agreed: self.agreed.clone(), len: self.application.len() as u64 }
    }
}

//! Messages between the members of a paxos group. The network may lose, duplicate, reorder and delay them.

use std::time::Duration;

use bytes::Bytes;

use crate::entry::{BeMaster, Entry, Position, Value};
use crate::ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Term};
use crate::mover::Move;
use crate::state::GroupState;
use crate::system::{Fence, Preparation, Step};

/// Message to a member of a paxos group. The sender measures durations by its own clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Starts phase 1 or a pre-vote. A pre-vote does not change the state of the receiver. Therefore, a node that was
    /// isolated and has a greater ballot does not depose the master by a pre-vote.
    Prepare {
        ballot: Ballot,
        pre_vote: bool,
        over: MastershipEnd,
    },
    /// Promises to obey the ballot. `idle` is at most the time since a leader proposed the last lease renewal in the
    /// sender's log.
    Promise {
        ballot: Ballot,
        pre_vote: bool,
        last: Position,
        idle: Duration,
    },
    /// Rejects a message with the ballot `ballot`. If `promised` is greater than `ballot`, the receiver of the
    /// rejection needs a ballot greater than `promised`.
    Reject {
        ballot: Ballot,
        promised: Ballot,
    },
    /// Requests the entries after the position `after`. The sender is a candidate with a quorum of promises. If the
    /// receiver has only a snapshot of these entries, the message requests the bytes of the snapshot from `offset` on.
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
    /// Contains the entries that a leader proposes in phase 2, and the leader's last decided slot. A message without
    /// entries requests the progress of the receiver.
    Accept {
        ballot: Ballot,
        after: Position,
        entries: Vec<Entry>,
        decided: Slot,
    },
    /// Confirms that all entries up to `slot` are durable on the sender and equal to the entries of the leader. It also
    /// confirms that the sender has decided all slots up to `decided`. A member that knows no leader sends its last
    /// decided slot as `slot`, and 0 as `decided`.
    Accepted {
        ballot: Ballot,
        slot: Slot,
        decided: Slot,
    },
    /// Reports that the sender lacks entries after `slot`, or that its entries after `slot` may differ from the
    /// leader's entries.
    Gap {
        ballot: Ballot,
        slot: Slot,
    },
    /// Contains a part of the snapshot, for a node that lacks entries before the start of the sender's log.
    Snapshot {
        ballot: Ballot,
        head: SnapshotHead,
        offset: u64,
        part: Bytes,
    },
    /// Confirms that the sender has received the first `offset` bytes of the snapshot up to `slot`.
    Received {
        ballot: Ballot,
        slot: Slot,
        offset: u64,
    },
    /// Contains an entry that the master must propose. The sender learns the outcome only from the log.
    Forward {
        entry: Bytes,
    },
    /// Requests the consent of the master to a takeover by the sender.
    RequestConsent {
        term: Term,
    },
    /// States that the master has stopped serving, and consents to a takeover by `taker`. A master that abandons its
    /// mastership sends this message to each member. Once one member has taken over, the consents to the other members
    /// have no effect.
    Consent {
        term: Term,
        taker: NodeId,
    },
    Decline {
        term: Term,
    },
    /// Reports the state of the sender to the master of the system group. Every node sends reports, including nodes
    /// that are not members of the system group.
    Report(Report),
    /// Response to the report of a node that takes part in a move. It contains the next orders for this node.
    Orders(Orders),
}

impl Message {
    /// Returns true if a correct member may send this message. The function does not use the log of a node, so it
    /// cannot recognise all invalid messages. The receiver drops a message if the function returns false.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Message::Prepare { ballot, over, .. } => {
                ballot.is_sound() && (over.term() == Term::NONE || over.term().is_sound())
            }
            Message::Promise { ballot, last, .. } => ballot.is_sound() && last.is_sound(*ballot),
            Message::Reject { ballot, promised } => ballot.is_sound() && promised.is_sound(),
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
                let GroupState { mastership, members } = &head.state;
                ballot.is_sound()
                    && head.position.is_sound(*ballot)
                    && mastership.term.is_sound()
                    && are_members(members)
                    && until.is_some_and(|until| until <= head.len)
            }
            Message::RequestConsent { term } | Message::Consent { term, .. } | Message::Decline { term } => {
                term.is_sound()
            }
            Message::Forward { .. } => true,
            // `Node` checks these messages.
            Message::Report(_) | Message::Orders(_) => true,
        }
    }
}

/// Returns true if the ballots of the entries never decrease, no ballot exceeds the ballot of the sender, and all
/// member lists are valid.
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

/// Report of a node about its masterships and about its progress with orders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub process: u64,
    /// Instant of the report, by the clock of the process that sends it.
    pub stamp: Instant,
    pub serves: Vec<Serving>,
    pub prepared: Option<(Fence, Preparation)>,
    /// Step that the node cannot do, with the fence of the move that contains the step.
    pub rejected: Option<(Fence, Step)>,
}

/// Paxos group that a node serves as master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Serving {
    pub group: GroupId,
    pub epoch: Epoch,
    /// Members in ascending order, each with the number of slots that the member lacks.
    pub members: Vec<(NodeId, u64)>,
}

/// Orders to a node that takes part in a move. They are the response to a report of this node. The duration of the
/// orders counts from the instant of the report, so the node can recognise late orders. A process ignores orders to an
/// earlier process of its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orders {
    /// Process that sent the report to which the orders respond.
    pub process: u64,
    pub stamp: Instant,
    pub of: Move,
    pub step: Step,
    pub within: Duration,
}

/// Evidence that a mastership is over. With this evidence, an acceptor may promise to obey a candidate's ballot
/// although the acceptor knows a master. `term` names the last mastership in the candidate's log, or a later mastership
/// that the master handed over to the candidate. All earlier masterships are also over, even if an acceptor knows an
/// earlier mastership whose lease a liveness epoch still renews.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MastershipEnd {
    /// The candidate has waited until the lease of the mastership was over.
    Waited { term: Term },
    /// The candidate has waited until the lease was over, and the system group decided that the liveness epoch of the
    /// master's node is over.
    Expired { term: Term, node: NodeId, liveness: u64 },
    /// The master stopped serving, and handed the mastership over to the candidate.
    Consent { term: Term },
}

impl MastershipEnd {
    pub(crate) fn term(self) -> Term {
        match self {
            MastershipEnd::Waited { term } | MastershipEnd::Expired { term, .. } | MastershipEnd::Consent { term } => {
                term
            }
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotHead {
    /// Position of the last entry that the snapshot contains.
    pub position: Position,
    pub state: GroupState,
    /// Number of bytes of the application's state.
    pub len: u64,
}

/// State of the application and state of the paxos group, both after the entry at `position`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub position: Position,
    pub state: GroupState,
    pub application: Bytes,
}

impl Snapshot {
    #[must_use]
    pub fn head(&self) -> SnapshotHead {
        SnapshotHead { position: self.position, state: self.state.clone(), len: self.application.len() as u64 }
    }
}

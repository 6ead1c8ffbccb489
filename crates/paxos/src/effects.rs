//! Inputs and effects of a paxos group.

use bytes::Bytes;

use crate::entry::{Entry, Position};
use crate::ids::{Ballot, GroupId, Instant, NodeId, Slot, Term};
use crate::message::{Message, Snapshot};
use crate::mover::Move;
use crate::state::Mastership;
use crate::system::Preparation;

/// Identifier of the records that a node appended to its journal in one step. Later steps have greater tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// Identifier that the proposer gives to a proposal. The events about its outcome carry it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProposalId(pub u64);

/// Input of a paxos group. Durations are measured by the clock of the node.
#[derive(Clone, Debug)]
pub enum Input {
    /// Delivers a message. The driver has verified that `from` is the sender.
    Message { from: NodeId, message: Message },
    /// Reports that all records appended under this token and earlier ones are durable.
    Persisted(Token),
    /// Reports that appended records may not be durable. The paxos group stops, and the node must be restarted.
    StorageFailed,
    /// Reports that time has passed. [`crate::Group::next_tick`] returns when a tick is due.
    Tick,
    /// Proposes an entry on the master. The core does not limit its size: the driver ensures that a record and a
    /// message can contain it.
    Propose { id: ProposalId, entry: Bytes },
    /// Proposes an entry on the node that is master. No event reports the outcome: the entry may be lost or be decided
    /// twice.
    Forward { entry: Bytes },
    /// Provides the state of the application after the entry at `slot`, which it has applied. The log is trimmed up to
    /// that slot. The input is ignored while another node receives an earlier snapshot from this node and makes
    /// progress; a later input succeeds. A snapshot is one record, and is in memory as a whole on this node and on the
    /// receiver. The driver limits its size, as it does for entries.
    Snapshot { slot: Slot, application: Bytes },
    /// Sets the liveness epoch of this node in the system group (0 for none), and the end of its lease.
    Liveness { liveness: u64, until: Instant },
    /// Sets the nodes that follow this paxos group without being members. They receive its log and have no vote.
    Learners(Vec<NodeId>),
    /// Reports that the system group decided that this liveness epoch of the node is over.
    Expired { node: NodeId, liveness: u64 },
    /// Requests on the master that a node becomes a member once it has caught up. Only the last requested node waits
    /// for that. The driver repeats the request until the members are as required.
    AddMember { node: NodeId },
    /// Requests on the master that another member is removed. The master itself must be moved first. The driver repeats
    /// the request, as for [`Input::AddMember`].
    RemoveMember { node: NodeId },
    /// Requests on the master that it records an early end of its lease: `remaining` from now, or at the regular end if
    /// that is sooner. `to`, another member, may then follow.
    Shorten { to: NodeId, remaining: std::time::Duration },
    /// Requests on the next master that it asks the present master for its consent.
    Take,
}

/// Effects of a step. The driver appends the records first, in order. Messages do not wait until the records are
/// durable.
#[derive(Debug, Default)]
pub struct Effects {
    /// Token of the records of this step. The driver increments it after each step that produced records.
    pub token: Token,
    pub records: Vec<(GroupId, Record)>,
    pub sends: Vec<(NodeId, GroupId, Message)>,
    pub events: Vec<(GroupId, Event)>,
}

/// Record of the journal. A node that restarts needs its records in the order in which they were appended. A driver
/// that drops the beginning of the journal keeps the last promise, and the last snapshot with all entries after its
/// position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Promise(Ballot),
    /// Cuts the log after the slot `after`, and appends these entries.
    Entries {
        after: Slot,
        entries: Vec<Entry>,
    },
    /// Records the last decided slot. It is written only together with other records. Without it, a restarted node
    /// learns later which slots are decided.
    Decided(Slot),
    /// Replaces the log up to the position of the snapshot, or the whole log if the log does not contain that position.
    Snapshot(Snapshot),
}

/// Event for the driver. Events are in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Reports a decided slot. Slots are reported in order and without gaps, except for the slots of an installed
    /// snapshot.
    Decided {
        slot: Slot,
        entry: Entry,
    },
    /// Replaces the state of the application.
    Installed(Snapshot),
    /// Reports that a proposal is decided and durable on a quorum.
    Acknowledged {
        id: ProposalId,
        slot: Slot,
    },
    Rejected {
        id: ProposalId,
        why: Rejection,
    },
    /// Reports that the outcome of a proposal is unknown: it is decided, will be decided later, or is lost.
    Unknown {
        id: ProposalId,
    },
    /// Reports that the last decided slot began a mastership, of a new master or again of the same one.
    MasterChanged(Mastership),
    /// Reports that this node serves until [`crate::Group::serves_until`], which may be in the past.
    Serves {
        term: Term,
    },
    /// Reports that this node leads the paxos group. It does not serve yet.
    Leads {
        ballot: Ballot,
        after: Position,
    },
    /// Reports that the master did not consent: it is not the master of this mastership, or handed it over to another
    /// node.
    Declined {
        term: Term,
    },
    /// Requests that the application prepares the hand-over of a mastership that this node holds. The application then
    /// sends [`crate::NodeInput::Prepared`].
    Prepare {
        of: Move,
        what: Preparation,
    },
}

/// Reason why a proposal is not decided and never will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    #[error("{}", not_master(*.0))]
    NotMaster(Option<NodeId>),
    #[error("too many bytes wait for a slot: propose again after an acknowledgement")]
    Overloaded,
}

fn not_master(master: Option<NodeId>) -> String {
    match master {
        Some(master) => format!("this node is not the master: propose on {master}, the last known master"),
        None => "this node is not the master and knows none: propose again later or on another node".to_owned(),
    }
}

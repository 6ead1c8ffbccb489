//! Inputs and effects of a step of a paxos group.

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

/// Identifier that the proposer gives to a proposal. The events about the proposal's outcome contain this identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProposalId(pub u64);

/// Input of a paxos group. All instants and durations are by the node's own clock.
#[derive(Clone, Debug)]
pub enum Input {
    /// Delivers a message. The driver has verified that `from` is the sender.
    Message { from: NodeId, message: Message },
    /// Reports that all records with this token or an earlier token are durable.
    Persisted(Token),
    /// Reports that appended records might not be durable. The paxos group stops, and the driver must restart the node.
    StorageFailed,
    /// Reports that time has passed. [`crate::Group::next_tick`] returns when a tick is due.
    Tick,
    /// Proposes an entry. The paxos group rejects the entry if this node is not the master. This crate does not limit
    /// the size of the entry: the driver must ensure that the entry fits into a record and into a message.
    Propose { id: ProposalId, entry: Bytes },
    /// Proposes an entry. If this node is not the master, it forwards the entry to the master. No event reports the
    /// outcome: the entry may be lost, or two slots may contain it.
    Forward { entry: Bytes },
    /// Provides the state of the application after the entry at `slot`. The paxos group then trims the log up to this
    /// slot. It ignores the input while it sends an earlier snapshot to another node and that node makes progress. The
    /// driver may repeat the input later. A snapshot is one record. This node and the receiver each have the whole
    /// snapshot in memory. The driver must limit the size of snapshots, as it limits the size of entries.
    Snapshot { slot: Slot, application: Bytes },
    /// Sets the liveness epoch of this node in the system group, and the end of this epoch's lease. The epoch is 0 if
    /// the node has none.
    Liveness { liveness: u64, until: Instant },
    /// Sets the learners: nodes that receive the log of this paxos group but are not members and have no vote.
    Learners(Vec<NodeId>),
    /// Reports that the system group decided that this liveness epoch of the node is over.
    Expired { node: NodeId, liveness: u64 },
    /// Requests that the master add the node as a member once the node has all decided slots. A later request replaces
    /// an earlier request that the master has not fulfilled. The driver repeats the request until the node is a member.
    AddMember { node: NodeId },
    /// Requests that the master remove another member. To remove the master itself, the driver must first move the
    /// mastership. The driver repeats the request until the node is not a member.
    RemoveMember { node: NodeId },
    /// Requests that the master record an early end of its lease. The lease then ends after `remaining`, or at its
    /// regular end if the regular end is sooner. After this end, the member `to` may take over the mastership.
    Shorten { to: NodeId, remaining: std::time::Duration },
    /// Requests that this member take over the mastership. The member then requests the consent of the present master.
    Take,
}

/// Effects of a step. The driver first appends the records to the journal, in order. It then sends the messages, and
/// need not wait until the records are durable.
#[derive(Debug, Default)]
pub struct Effects {
    /// Token of the records of this step. The driver increments the token after each step that produces records.
    pub token: Token,
    pub records: Vec<(GroupId, Record)>,
    pub sends: Vec<(NodeId, GroupId, Message)>,
    pub events: Vec<(GroupId, Event)>,
}

/// Record of the journal. A node that restarts needs its records in the order in which the driver appended them. A
/// driver that drops the beginning of the journal must retain the last promise, the last snapshot, and all entries
/// after the position of this snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Promise(Ballot),
    /// Cuts the log after the slot `after`, and appends these entries.
    Entries {
        after: Slot,
        entries: Vec<Entry>,
    },
    /// Records the last decided slot. A paxos group writes this record only together with other records. Without this
    /// record, a restarted node learns later which slots are decided.
    Decided(Slot),
    /// Replaces the log up to the position of the snapshot, or the whole log if the log does not contain that position.
    Snapshot(Snapshot),
}

/// Event for the driver. The events of a step are in the order in which they occurred.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Reports a decided slot. The paxos group reports slots in order and without gaps, except for the slots of an
    /// installed snapshot.
    Decided {
        slot: Slot,
        entry: Entry,
    },
    /// Requests that the driver replace the state of the application with the state in a snapshot.
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
    /// Reports that the last decided slot began a mastership of a new master, or another mastership of the same master.
    MasterChanged(Mastership),
    /// Reports that this node serves as master until the instant that [`crate::Group::serves_until`] returns. The
    /// instant may be in the past.
    Serves {
        term: Term,
    },
    /// Reports that this node leads the paxos group. It does not serve yet.
    Leads {
        ballot: Ballot,
        after: Position,
    },
    /// Reports that another node declined to consent to a takeover by this node. For example, the other node is not the
    /// master in this term, or has handed the mastership over to a third node.
    Declined {
        term: Term,
    },
    /// Requests that the application prepare the hand-over of a mastership of this node. The application then sends
    /// [`crate::NodeInput::Prepared`].
    Prepare {
        of: Move,
        what: Preparation,
    },
}

/// Reason why the paxos group rejected a proposal. No slot will ever contain the rejected proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    #[error("{}", not_master(*.0))]
    NotMaster(Option<NodeId>),
    #[error("too many proposed bytes wait for a slot: propose again after an acknowledgement")]
    Overloaded,
}

fn not_master(master: Option<NodeId>) -> String {
    match master {
        Some(master) => format!("this node is not the master: propose on {master}, the last known master"),
        None => "this node is not the master and knows no master: propose again later or on another node".to_owned(),
    }
}

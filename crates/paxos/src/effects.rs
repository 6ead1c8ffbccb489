//! What goes into a paxos group, and what comes out.

use bytes::Bytes;

use crate::agreed::Mastership;
use crate::entry::{Entry, Position};
use crate::ids::{Ballot, GroupId, Instant, NodeId, Slot, Tenure};
use crate::message::{Message, Snapshot};
use crate::mover::Move;
use crate::system::Preparation;

/// Of what was appended to a node's journal in one step. Rises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// Whoever proposes names what it proposes, to hear what became of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProposalId(pub u64);

/// What a paxos group is told. Durations are of its node's own clock.
#[derive(Clone, Debug)]
pub enum Input {
    /// `from` is who sent it, as whoever connects nodes has made sure.
    Message { from: NodeId, message: Message },
    /// All that was appended under this token and before is durable.
    Persisted(Token),
    /// What was appended may not be durable. The paxos group does nothing any more: the node has to be started again.
    StorageFailed,
    /// Some time went by. Due when [`crate::Group::next_tick`] says.
    Tick,
    /// To the master. An entry may have any size: who drives sees to it that a record and a message may have it, too.
    Propose { id: ProposalId, entry: Bytes },
    /// As [`Input::Propose`], but at whatever node is master, and nothing is told of it: it may be lost, or there twice.
    Forward { entry: Bytes },
    /// The application's state after the entry at `slot`, which it has applied. The log is trimmed up to there; but not while
    /// a node gets the snapshot before it from this one, and gets on with that: then another is welcome later. It is one record,
    /// and in memory as a whole, here and at who gets it: as with entries, who drives limits its size.
    Snapshot { slot: Slot, application: Bytes },
    /// This node's liveness epoch in the system group (0: none), and until when its lease by it runs.
    Liveness { liveness: u64, until: Instant },
    /// Nodes that follow this paxos group and are no members: they get its log, and have no vote.
    Learners(Vec<NodeId>),
    /// The system group has decided that this liveness epoch of the node is over.
    Expired { node: NodeId, liveness: u64 },
    /// To the master: make it a member, once it has caught up. One at a time waits for that, the last that was asked for;
    /// who drives asks again as long as the members are not as they are to be.
    Admit { node: NodeId },
    /// To the master: let this member go, which is not the master itself: it has to be moved first. As with
    /// [`Input::Admit`], to be repeated.
    Dismiss { node: NodeId },
    /// To the master: write that the lease ends `remaining` from now, or as it would if that is sooner, and that `to` follows,
    /// which is another member.
    Shorten { to: NodeId, remaining: std::time::Duration },
    /// To the member that is to be master next: ask the present one for its consent.
    Take,
}

/// All that a step wants done. Records first, in order; what is sent does not wait for them.
#[derive(Debug, Default)]
pub struct Effects {
    /// Of the records of this step. Whoever drives raises it after each step that left some.
    pub token: Token,
    pub records: Vec<(GroupId, Record)>,
    pub sends: Vec<(NodeId, GroupId, Message)>,
    pub events: Vec<(GroupId, Event)>,
}

/// What a node has to have after it was started again, in the order in which it was appended. Whoever drops the beginning keeps
/// the last promise, and the last snapshot with all entries behind its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Promise(Ballot),
    /// The log is cut after `after`, and these follow.
    Entries {
        after: Slot,
        entries: Vec<Entry>,
    },
    /// Written when something else is. What was decided is found again without it, but later.
    Decided(Slot),
    /// The log up to its position goes, and all of it if it does not have that position.
    Snapshot(Snapshot),
}

/// What whoever drives learns, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Each slot after the one before, but for what an installed snapshot has.
    Decided {
        slot: Slot,
        entry: Entry,
    },
    /// The application's state is this now.
    Installed(Snapshot),
    /// It is decided, and durable at a quorum.
    Acknowledged {
        id: ProposalId,
        slot: Slot,
    },
    Refused {
        id: ProposalId,
        why: Refusal,
    },
    /// It may be decided, or not, or later.
    Unknown {
        id: ProposalId,
    },
    /// The slot decided last has made somebody master, or master anew.
    MasterChanged(Mastership),
    /// This node serves from here on, until [`crate::Group::serves_until`], which may be over already.
    Serves {
        tenure: Tenure,
    },
    /// This node leads the paxos group, which is not yet to serve.
    Leads {
        ballot: Ballot,
        after: Position,
    },
    /// The master did not give its consent: it is not master of that, or left it to another.
    Declined {
        tenure: Tenure,
    },
    /// This node serves, and is to leave that to another: the application prepares for it, and says
    /// [`crate::NodeInput::Prepared`].
    Prepare {
        of: Move,
        what: Preparation,
    },
}

/// Why a proposal is not, and never will be, decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{}", not_master(*.0))]
    NotMaster(Option<NodeId>),
    #[error("too much waits for its slot: propose again once something is acknowledged")]
    Overloaded,
}

fn not_master(master: Option<NodeId>) -> String {
    match master {
        Some(master) => format!("{master} is master, as far as this node knows: propose it there"),
        None => "this node is not master, and knows of none: propose it again later, or to another".to_owned(),
    }
}

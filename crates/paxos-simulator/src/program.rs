//! Program of a simulated node: a state machine to which the simulation passes inputs, and whose outputs it observes.

use std::sync::Arc;

use bytes::Bytes;
use paxos::{Ballot, GroupId, Instant, NodeId, Slot};

use crate::config::RunConfig;

/// Program of one node. The program has no clock, randomness or I/O of its own.
pub trait Program: Sized {
    type Message: Clone;

    /// Starts the program with the durable records of the node. At the first start, the node has no records.
    fn start(node_config: &NodeConfig<'_>, records: Vec<Bytes>, now: Instant, out: &mut Out<Self::Message>) -> Self;

    fn step(&mut self, now: Instant, input: Input<Self::Message>, out: &mut Out<Self::Message>);

    /// # Panics
    /// Panics if the node does not have the paxos group `group`.
    fn view(&self, group: GroupId) -> View;

    /// Returns the paxos group and the ballot of the promise that the message contains, or `None` if it contains no
    /// promise. The sender of the message must never promise a lower ballot later.
    fn promised_ballot(message: &Self::Message) -> Option<(GroupId, Ballot)>;

    /// Calls `shadow` with each change of the log that a durable record causes.
    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk));

    /// Returns true if the message contains the orders of a move. Orders permit the receiver of the message to take
    /// part in the move for a limited time.
    fn is_order(_message: &Self::Message) -> bool {
        false
    }

    /// Returns the roles of the node in moves. A node has a role while it obeys the orders of a move, or while it
    /// serves as master with a lease that it shortened because of earlier orders.
    fn orders(&self, _now: Instant) -> Vec<Ordered> {
        Vec::new()
    }

    /// Returns the fence of the move that may be in progress, as far as the node knows; `None` if the node knows of no
    /// move.
    fn moves(&self) -> Option<u64> {
        None
    }

    /// Performs work that an operator would do, for example the registration of nodes. The simulation calls this method
    /// at each tick.
    fn attend(&mut self, _now: Instant, _out: &mut Out<Self::Message>) {}

    /// Returns the text of a message for the trace.
    fn describe(message: &Self::Message) -> String;
}

/// Configuration of a program on a node.
#[derive(Debug)]
pub struct NodeConfig<'a> {
    pub me: NodeId,
    pub groups: &'a [GroupId],
    /// All nodes, including nodes that are not members.
    pub everyone: &'a [NodeId],
    /// First members of each paxos group.
    pub founders: &'a [NodeId],
    pub run: &'a RunConfig,
}

#[derive(Clone, Debug)]
pub enum Input<M> {
    Message(NodeId, M),
    Persisted(u64),
    StorageFailed,
    Tick,
    Propose(GroupId, u64),
    Request(GroupId, Request),
}

/// Request of an operator or of the application to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Lets the node take over the mastership with the consent of the master.
    Take,
    /// Lets the master end its lease after the given number of microseconds, in favour of the given node.
    Shorten(NodeId, u64),
    /// Lets the application create a snapshot that ends the given number of slots before the last applied slot.
    Snapshot(u64),
    AddMember(NodeId),
    RemoveMember(NodeId),
    /// Requires that the given node hands over all its masterships if the flag is true. Otherwise, permits masterships
    /// on this node again.
    Drain(NodeId, bool),
}

/// Effects of a step of the program.
#[derive(Debug)]
pub struct Out<M> {
    /// Token of the records of this step. `Input::Persisted` with this token or a later token reports that the records
    /// are durable.
    pub token: u64,
    pub records: Vec<Vec<u8>>,
    pub sends: Vec<(NodeId, M)>,
    pub observations: Vec<Observation>,
}

impl<M> Default for Out<M> {
    fn default() -> Self {
        Out { token: 1, records: Vec::new(), sends: Vec::new(), observations: Vec::new() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observation {
    /// Reports a decided slot. `value` is a hash of the slot's entry, and `chain` is a hash of all slots up to this
    /// slot.
    Decided {
        group: GroupId,
        slot: Slot,
        value: u64,
        chain: u64,
    },
    /// Reports that a decided slot contains a proposal.
    Contains {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// Reports that the node installed a snapshot of all slots up to `slot`. `chain` is a hash of these slots. It is
    /// `None` for the system group, because the application does not apply the slots of this group.
    Installed {
        group: GroupId,
        slot: Slot,
        chain: Option<u64>,
    },
    /// Reports a hash of the state that the program computed from all slots up to `slot`.
    Applied {
        group: GroupId,
        slot: Slot,
        state: u64,
    },
    /// Reports that a node renewed its liveness at the slot `at` of the system group.
    Renewed {
        node: NodeId,
        at: Slot,
    },
    /// Reports which move holds the move token after the slot `at` of the system group. The report contains the fence of
    /// this move.
    Token {
        fence: Option<u64>,
        at: Slot,
    },
    Acknowledged {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// Reports that no slot will contain the proposal.
    Rejected {
        id: u64,
    },
    /// Reports that the outcome of a proposal is unknown.
    Unknown {
        id: u64,
    },
    /// Reports that the paxos group has decided a mastership with the epoch `epoch`.
    Mastered {
        group: GroupId,
        epoch: u64,
    },
    /// Reports that the node became leader. The node has not proposed an entry as leader yet.
    Leads,
    /// Reports that the node is master from now on.
    Serves,
    Incident(Incident),
}

#[derive(Clone, Debug)]
pub struct View {
    pub promised: Ballot,
    pub decided: Slot,
    /// End of the time for which the node is master, by its own clock, and the epoch of its mastership. `None` if the
    /// node is not master.
    pub serves: Option<(Instant, u64)>,
    /// Members of the paxos group after the last entry of the node's log. This entry may be undecided.
    pub members: Arc<[NodeId]>,
    /// Members of the paxos group after the last slot that the node has decided.
    pub members_decided: Arc<[NodeId]>,
}

/// Role that a node has in a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// Fence of the move. Two moves never share a fence.
    pub fence: u64,
    pub group: GroupId,
    /// Epoch of the mastership that the move ends. The move is over when this mastership is over.
    pub epoch: u64,
    /// End of the role, by the node's clock.
    pub until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDisk {
    Truncate {
        after: Slot,
    },
    /// Adds the next slot to the log.
    Push {
        value: u64,
    },
    /// Replaces all slots up to and including `slot` by a snapshot.
    Base {
        slot: Slot,
    },
}

/// Kind of incident that a run may contain, for example a fault or a change of the master.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Incident {
    Crash,
    Pause,
    Partition,
    OneWayPartition,
    Lost,
    Duplicated,
    TornWrite,
    LostWrite,
    FailedSync,
    SlowSync,
    BitFlip,
    ClockDrift,
    /// The paxos group removed a member with a damaged disk.
    DamagedMemberRemoved,
    /// A node became master after it had waited for the end of a lease.
    LeaseExpired,
    MovedByConsent,
    MovedByShortening,
    /// A master claimed its own mastership again.
    MastershipRenewed,
    VoidBeMaster,
    ConsentDeclined,
    SnapshotInstalled,
    MembersChanged,
    LivenessExpired,
    /// A process took the move token.
    MoveBegun,
    /// A process took the move token over from another process.
    MoveTakenOver,
    /// The holder of the move token ordered the nodes of a move to hand over the mastership.
    HandedOver,
    /// The node to which a move hands over the mastership became master.
    Moved,
    /// A quorum of nodes without faults decided further entries.
    Healed,
}

impl Incident {
    pub const ALL: [Incident; 27] = [
        Incident::Crash,
        Incident::Pause,
        Incident::Partition,
        Incident::OneWayPartition,
        Incident::Lost,
        Incident::Duplicated,
        Incident::TornWrite,
        Incident::LostWrite,
        Incident::FailedSync,
        Incident::SlowSync,
        Incident::BitFlip,
        Incident::ClockDrift,
        Incident::DamagedMemberRemoved,
        Incident::LeaseExpired,
        Incident::MovedByConsent,
        Incident::MovedByShortening,
        Incident::MastershipRenewed,
        Incident::VoidBeMaster,
        Incident::ConsentDeclined,
        Incident::SnapshotInstalled,
        Incident::MembersChanged,
        Incident::LivenessExpired,
        Incident::MoveBegun,
        Incident::MoveTakenOver,
        Incident::HandedOver,
        Incident::Moved,
        Incident::Healed,
    ];
}

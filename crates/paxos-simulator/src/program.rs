//! Program of a simulated node: a state machine that the simulation steps and observes.

use std::sync::Arc;

use bytes::Bytes;
use paxos::{Ballot, GroupId, Instant, NodeId, Slot};

use crate::config::RunConfig;

/// Program of one node, without a clock, randomness or I/O of its own.
pub trait Program: Sized {
    type Message: Clone;

    /// Starts, or restarts with the durable records.
    fn start(node_config: &NodeConfig<'_>, records: Vec<Bytes>, now: Instant, out: &mut Out<Self::Message>) -> Self;

    fn step(&mut self, now: Instant, input: Input<Self::Message>, out: &mut Out<Self::Message>);

    /// # Panics
    /// Panics if the node has no such group.
    fn view(&self, group: GroupId) -> View;

    /// Returns the ballot that a message promises: its sender must never return to a lower ballot.
    fn promised_ballot(message: &Self::Message) -> Option<(GroupId, Ballot)>;

    /// Passes the effects of a durable record on the log to `shadow`.
    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk));

    /// Returns whether a message permits its receiver to act for a limited time.
    fn is_order(_message: &Self::Message) -> bool {
        false
    }

    /// Returns the roles of the node in moves: the orders that it obeys, and their remaining effects.
    fn orders(&self, _now: Instant) -> Vec<Ordered> {
        Vec::new()
    }

    /// Returns the move that may be in progress, as far as the node knows.
    fn moves(&self) -> Option<u64> {
        None
    }

    /// Performs the work of an operator, at each tick.
    fn attend(&mut self, _now: Instant, _out: &mut Out<Self::Message>) {}

    /// Returns the text of a message for the trace.
    fn describe(message: &Self::Message) -> String;
}

/// Configuration of a program on a node.
#[derive(Debug)]
pub struct NodeConfig<'a> {
    pub me: NodeId,
    pub groups: &'a [GroupId],
    /// All nodes, including spare ones.
    pub everyone: &'a [NodeId],
    /// Members of empty logs.
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
    /// Takes over by consent.
    Take,
    /// Ends the master's lease in this number of microseconds, in favour of this node.
    Shorten(NodeId, u64),
    /// Makes a snapshot of the state this number of slots back.
    Snapshot(u64),
    AddMember(NodeId),
    RemoveMember(NodeId),
    /// Requires masters to leave this node, or allows them to return.
    Drain(NodeId, bool),
}

/// Effects of a step.
#[derive(Debug)]
pub struct Out<M> {
    /// Token of the records of this step.
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
    /// Reports a decided slot. `value` is a hash of its entry, and `chain` a hash of all slots up to it.
    Decided {
        group: GroupId,
        slot: Slot,
        value: u64,
        chain: u64,
    },
    /// Reports a proposal in a decided slot.
    Contains {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// Reports that all slots up to `slot` are present and applied. The chain is missing if the program keeps its own
    /// state.
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
    /// Reports that the node was alive at this slot of the system group.
    Renewed {
        node: NodeId,
        at: Slot,
    },
    /// Reports the fence of the token's move after this slot of the system group.
    Token {
        fence: Option<u64>,
        at: Slot,
    },
    Acknowledged {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// Reports that a proposal will not be decided.
    Rejected {
        id: u64,
    },
    /// Reports that the outcome of a proposal is unknown.
    Unknown {
        id: u64,
    },
    /// Reports a decided mastership.
    Mastered {
        group: GroupId,
        epoch: u64,
    },
    /// Reports that the node may propose from now on, and has not proposed yet.
    Leads,
    /// Reports that the node is master from now on.
    Serves,
    Incident(Incident),
}

#[derive(Clone, Debug)]
pub struct View {
    pub promised: Ballot,
    pub decided: Slot,
    /// End of the node's service by its own clock, and its epoch.
    pub serves: Option<(Instant, u64)>,
    /// Members at the end of the log, decided or not.
    pub members: Arc<[NodeId]>,
    /// Members at the last decided slot.
    pub members_decided: Arc<[NodeId]>,
}

/// Role that a node has in a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// Fence of the move. Two moves never share a fence.
    pub fence: u64,
    pub group: GroupId,
    /// Epoch of the mastership that the move ends. The move is over when that mastership is over.
    pub epoch: u64,
    /// End of the role, by the node's clock.
    pub until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDisk {
    Truncate {
        after: Slot,
    },
    /// Adds the next slot.
    Push {
        value: u64,
    },
    /// Replaces all slots up to this one by a snapshot.
    Base {
        slot: Slot,
    },
}

/// Incident of a run.
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
    /// A member with a damaged disk was removed.
    DamagedMemberRemoved,
    /// A node became master by waiting until a lease ended.
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
    /// A process took the move token over from another one.
    MoveTakenOver,
    /// The nodes of a move were ordered to hand over.
    HandedOver,
    /// A move made its target the master.
    Moved,
    /// A healed core of nodes made progress.
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

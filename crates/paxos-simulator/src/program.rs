//! What runs on a node of the world: a state machine that the world steps, and looks at.

use std::sync::Arc;

use bytes::Bytes;
use paxos::{Ballot, GroupId, Instant, NodeId, Slot};

use crate::knobs::Knobs;

/// One node's program: no clock, chance or I/O of its own.
pub trait Program: Sized {
    type Message: Clone;

    /// Begins, or begins again with the records that are durable.
    fn start(seat: &Seat<'_>, records: Vec<Bytes>, now: Instant, out: &mut Out<Self::Message>) -> Self;

    fn step(&mut self, now: Instant, input: Input<Self::Message>, out: &mut Out<Self::Message>);

    /// # Panics
    /// It may, if there is no such group.
    fn view(&self, group: GroupId) -> View;

    /// What a message says that its sender will never go back behind.
    fn vow(message: &Self::Message) -> Option<(GroupId, Ballot)>;

    /// Of a record that is durable: what it does to the log on the disk.
    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk));

    /// Whether a message allows its receiver something for a time.
    fn is_order(_message: &Self::Message) -> bool {
        false
    }

    /// Its parts in moves: what it was ordered, and obeys, and what is left of that.
    fn orders(&self, _now: Instant) -> Vec<Ordered> {
        Vec::new()
    }

    /// The move that may be under way, as far as it knows.
    fn moves(&self) -> Option<u64> {
        None
    }

    /// At each tick, for what an operator would do.
    fn attend(&mut self, _now: Instant, _out: &mut Out<Self::Message>) {}

    /// For a trace.
    fn describe(message: &Self::Message) -> String;
}

/// Where a program runs.
#[derive(Debug)]
pub struct Seat<'a> {
    pub me: NodeId,
    pub groups: &'a [GroupId],
    /// All that there are, or may come.
    pub everyone: &'a [NodeId],
    /// The members of logs that begin.
    pub founders: &'a [NodeId],
    pub knobs: &'a Knobs,
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

/// What an operator or the application asks a node for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Take over by consent.
    Take,
    /// As master, end the lease so many microseconds from now, for this node.
    Shorten(NodeId, u64),
    /// Of the state so many slots back.
    Snapshot(u64),
    Admit(NodeId),
    Dismiss(NodeId),
    /// Masters are to leave this node, or may come again.
    Drain(NodeId, bool),
}

/// What a step wants done.
#[derive(Debug)]
pub struct Out<M> {
    /// Of this step's records.
    pub token: u64,
    pub records: Vec<Vec<u8>>,
    pub sends: Vec<(NodeId, M)>,
    pub told: Vec<Told>,
}

impl<M> Default for Out<M> {
    fn default() -> Self {
        Out { token: 1, records: Vec::new(), sends: Vec::new(), told: Vec::new() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// `value` stands for what is in the slot, `chain` for all that was applied up to there.
    Decided {
        group: GroupId,
        slot: Slot,
        value: u64,
        chain: u64,
    },
    /// A proposal that is in a slot which is decided.
    Holds {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// All up to `slot` is here, and applied; without a chain where the program keeps a state of its own.
    Installed {
        group: GroupId,
        slot: Slot,
        chain: Option<u64>,
    },
    /// `state` stands for what the program itself made of all up to `slot`.
    Applied {
        group: GroupId,
        slot: Slot,
        state: u64,
    },
    /// The node was alive at this slot of the system group's records.
    Renewed {
        node: NodeId,
        at: Slot,
    },
    /// Whose move the token is for, after this slot of the system group.
    Token {
        fence: Option<u64>,
        at: Slot,
    },
    Acknowledged {
        group: GroupId,
        slot: Slot,
        id: u64,
    },
    /// It will not be decided.
    Refused {
        id: u64,
    },
    /// Nobody knows.
    Unknown {
        id: u64,
    },
    /// This mastership is decided.
    Mastered {
        group: GroupId,
        epoch: u64,
    },
    /// It may propose from here on, and has not yet.
    Leads,
    /// It is master from here on.
    Serves,
    Happened(Incident),
}

#[derive(Clone, Debug)]
pub struct View {
    pub promised: Ballot,
    pub decided: Slot,
    /// By the node's clock; and what fences.
    pub serves: Option<(Instant, u64)>,
    /// As far as it knows at most, decided or not.
    pub members: Arc<[NodeId]>,
    /// As of what is decided.
    pub members_decided: Arc<[NodeId]>,
}

/// A part in a move, which a node was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// Of the move: two moves never have one.
    pub fence: u64,
    pub group: GroupId,
    /// The mastership that it ends; when that is over, so is the move.
    pub epoch: u64,
    /// By the node's clock.
    pub until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDisk {
    Truncate {
        after: Slot,
    },
    /// The next slot.
    Push {
        value: u64,
    },
    /// All up to here is in a snapshot.
    Base {
        slot: Slot,
    },
}

/// What a run came across.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Incident {
    Crash,
    Pause,
    Partition,
    OneWayPartition,
    Lost,
    Doubled,
    TornWrite,
    LostWrite,
    FailedSync,
    SlowSync,
    BitFlip,
    ClockDrift,
    /// A node whose disk is damaged is no member any more.
    Dismissed,
    /// Somebody became master by waiting out a lease.
    LeaseExpired,
    MovedByConsent,
    MovedByShortening,
    /// A master became one anew.
    OwnAgain,
    VoidBeMaster,
    ConsentRefused,
    SnapshotInstalled,
    MembersChanged,
    LivenessExpired,
    /// Somebody holds the token of moves.
    MoveBegun,
    /// Somebody took it over from another.
    MoveTakenOver,
    /// A move's nodes were ordered to hand over.
    HandedOver,
    /// Who was to be master by a move is.
    Moved,
    /// A core of nodes was healed, and went on.
    Healed,
}

impl Incident {
    pub const ALL: [Incident; 27] = [
        Incident::Crash,
        Incident::Pause,
        Incident::Partition,
        Incident::OneWayPartition,
        Incident::Lost,
        Incident::Doubled,
        Incident::TornWrite,
        Incident::LostWrite,
        Incident::FailedSync,
        Incident::SlowSync,
        Incident::BitFlip,
        Incident::ClockDrift,
        Incident::Dismissed,
        Incident::LeaseExpired,
        Incident::MovedByConsent,
        Incident::MovedByShortening,
        Incident::OwnAgain,
        Incident::VoidBeMaster,
        Incident::ConsentRefused,
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

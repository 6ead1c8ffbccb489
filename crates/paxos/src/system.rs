//! State machine of the system group: the shared state of the nodes and of all paxos groups.
//!
//! It records which nodes are alive (with one liveness epoch for all paxos groups of a node), the nodes and paxos
//! groups with their weights, and the *token*, which a move of a master requires. Each record is a compare-and-swap: it
//! names the state for which it was made, and has no effect if the state has changed. A record may therefore be late,
//! duplicated, or proposed by two nodes.
//!
//! The state machine has no clock. The docs of each record state which node waits before it proposes the record, and
//! how long.

use std::collections::BTreeMap;

use crate::ids::{Epoch, GroupId, Instant, NodeId, Slot};

mod codec;
#[cfg(test)]
mod tests;

pub use codec::DecodeError;

/// Fencing number of a token: greater than the numbers of all earlier tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Fence(pub u64);

/// Change that the system group decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Registers a node or changes its capacity. This does not make the node alive.
    Node { node: NodeId, capacity: u32 },
    /// Requires masters to leave this node or, with `draining` false, allows them to return.
    Drain { node: NodeId, draining: bool },
    /// Registers a paxos group or changes its replicas.
    Group { group: GroupId, replicas: Vec<NodeId> },
    /// Sets the measured weights of paxos groups.
    Weigh { weights: Vec<(GroupId, u64)> },
    /// Gives the next liveness epoch of a node, `liveness`, to a process. The epoch before is over then, if it was not
    /// expired. A process joins before all other actions, and again when its epoch has expired, but never while it
    /// serves under another epoch.
    Join {
        node: NodeId,
        liveness: u64,
        /// Random number that the process drew at its start. By this number the process recognises that its own join
        /// succeeded, and not a pending join of an earlier process of the node.
        incarnation: u64,
        /// Instant of the proposal, by the node's own clock. The lease counts from this instant.
        stamp: Instant,
    },
    /// Renews the liveness epoch that this process took up. `last` is the slot of the last renewal that the process
    /// learned. A node whose messages arrive, but that receives none, therefore does not stay alive: it serves no
    /// client, and would block other nodes. `stamp` is as in a join.
    Alive { node: NodeId, liveness: u64, last: Slot, stamp: Instant },
    /// Ends a liveness epoch whose last renewal is at `last`. A node proposes this only after it has waited for the
    /// lease plus the possible clock drift since it learned `last` (or since it started).
    Expire { node: NodeId, liveness: u64, last: Slot },
    /// Takes the token for one move. A process takes it from another holder only after a wait, as for the liveness of a
    /// node.
    TokenTake(Take),
    /// Renews the token, and records the progress of its move.
    TokenStep { fence: Fence, step: Step, stamp: Instant },
    /// Ends the token after its move, successful or not.
    TokenEnd { fence: Fence },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Take {
    /// Last fence that the taker knows, and the slot of the token's last record: 0 while no process holds the token.
    pub precondition: (Fence, Slot),
    pub holder: NodeId,
    /// Liveness epoch of the holder, so that no process treats the token of an earlier process as its own.
    pub liveness: u64,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    /// Epoch of the mastership that is to end.
    pub epoch: Epoch,
    /// Instant of the proposal, by the holder's own clock.
    pub stamp: Instant,
}

/// Progress of a move. The variants are in the order of the steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    Prepare(Preparation),
    Handover(Scheme),
}

impl Step {
    pub const FIRST: Step = Step::Prepare(Preparation::SyncOffsets);
}

/// Preparation of a move while the present master still serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Preparation {
    /// The next master has the offsets that consumers committed.
    SyncOffsets,
    /// Producers, and the nodes that forward for them, know the next master.
    NotifyProducers,
}

/// Scheme of a hand-over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scheme {
    /// The present master stops serving and consents, and then the next master takes over: one round trip and one
    /// proposal.
    Consent,
    /// The present master gets an earlier end of its lease decided, and then the next master waits for that end.
    Shorten,
    /// The present master stops proposing and renewing, and then the next master waits until the lease ends.
    Wait,
}

/// Outcome of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordOutcome {
    Applied,
    /// The state for which the record was made does not hold.
    Stale,
    /// The record names an unregistered node or paxos group.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub capacity: u32,
    pub draining: bool,
    /// Last liveness epoch that a process took up; 0 before the first.
    pub liveness: u64,
    pub incarnation: u64,
    /// Instant of the last renewal's proposal, by the node's own clock.
    pub stamp: Instant,
    /// Slot of the last renewal; `None` once the epoch has expired.
    pub alive: Option<Slot>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    pub replicas: Vec<NodeId>,
    pub weight: u64,
}

/// Right to move one master, and the move for which it was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    pub fence: Fence,
    pub holder: NodeId,
    pub liveness: u64,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    pub epoch: Epoch,
    pub step: Step,
    /// Instant of the last record's proposal, by the holder's own clock.
    pub stamp: Instant,
    /// Slot of the token's last record.
    pub last: Slot,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct System {
    applied: Slot,
    nodes: BTreeMap<NodeId, Node>,
    groups: BTreeMap<GroupId, Group>,
    fence: Fence,
    token: Option<Token>,
}

impl System {
    /// # Panics
    /// Panics if `slot` was applied before, because then this replica has lost its position.
    pub fn apply(&mut self, slot: Slot, record: &Record) -> RecordOutcome {
        assert!(slot > self.applied, "slot {slot} is applied after {}", self.applied);
        self.applied = slot;
        match record {
            Record::Node { node, capacity } => {
                self.nodes.entry(*node).or_default().capacity = *capacity;
                RecordOutcome::Applied
            }
            Record::Drain { node, draining } => self.with(*node, |node| {
                node.draining = *draining;
                RecordOutcome::Applied
            }),
            Record::Group { group, replicas } => self.place(*group, replicas),
            Record::Weigh { weights } => self.weigh(weights),
            Record::Join { node, liveness, incarnation, stamp } => self.with(*node, |node| {
                if *liveness != node.liveness + 1 {
                    return RecordOutcome::Stale;
                }
                (node.liveness, node.incarnation) = (*liveness, *incarnation);
                (node.stamp, node.alive) = (*stamp, Some(slot));
                RecordOutcome::Applied
            }),
            Record::Alive { node, liveness, last, stamp } => self.with(*node, |node| {
                // A renewal that arrives after a later one must not shorten the lease.
                if node.alive != Some(*last) || node.liveness != *liveness || *stamp <= node.stamp {
                    return RecordOutcome::Stale;
                }
                (node.stamp, node.alive) = (*stamp, Some(slot));
                RecordOutcome::Applied
            }),
            Record::Expire { node, liveness, last } => self.with(*node, |node| {
                if node.liveness != *liveness || node.alive != Some(*last) {
                    return RecordOutcome::Stale;
                }
                node.alive = None;
                RecordOutcome::Applied
            }),
            Record::TokenTake(take) => self.take(slot, take),
            Record::TokenStep { fence, step, stamp } => match &mut self.token {
                Some(token) if token.fence == *fence && token.stamp < *stamp => {
                    (token.step, token.stamp, token.last) = (*step, *stamp, slot);
                    RecordOutcome::Applied
                }
                Some(_) | None => RecordOutcome::Stale,
            },
            Record::TokenEnd { fence } => match self.token.take_if(|token| token.fence == *fence) {
                Some(_) => RecordOutcome::Applied,
                None => RecordOutcome::Stale,
            },
        }
    }

    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node)
    }

    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    #[must_use]
    pub fn groups(&self) -> &BTreeMap<GroupId, Group> {
        &self.groups
    }

    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the slot of the last applied record.
    pub(crate) fn applied(&self) -> Slot {
        self.applied
    }

    /// Returns the greatest fence so far.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    #[must_use]
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.alive.is_some())
    }

    fn with(&mut self, node: NodeId, change: impl FnOnce(&mut Node) -> RecordOutcome) -> RecordOutcome {
        self.nodes.get_mut(&node).map_or(RecordOutcome::Unknown, change)
    }

    fn place(&mut self, group: GroupId, replicas: &[NodeId]) -> RecordOutcome {
        if !replicas.iter().all(|node| self.nodes.contains_key(node)) {
            return RecordOutcome::Unknown;
        }
        self.groups.entry(group).or_default().replicas = replicas.to_vec();
        RecordOutcome::Applied
    }

    /// Sets the weights of the registered groups, even if other groups are unknown.
    fn weigh(&mut self, weights: &[(GroupId, u64)]) -> RecordOutcome {
        let mut outcome = RecordOutcome::Applied;
        for (group, weight) in weights {
            match self.groups.get_mut(group) {
                Some(group) => group.weight = *weight,
                None => outcome = RecordOutcome::Unknown,
            }
        }
        outcome
    }

    fn take(&mut self, slot: Slot, take: &Take) -> RecordOutcome {
        let present = (self.fence, self.token.as_ref().map_or(Slot(0), |token| token.last));
        if take.precondition != present {
            return RecordOutcome::Stale;
        }
        match self.nodes.get(&take.holder) {
            None => return RecordOutcome::Unknown,
            Some(node) if node.alive.is_none() || node.liveness != take.liveness => return RecordOutcome::Stale,
            Some(_) => {}
        }
        if !self.groups.contains_key(&take.group) || !self.nodes.contains_key(&take.to) {
            return RecordOutcome::Unknown;
        }
        self.fence = Fence(self.fence.0 + 1);
        self.token = Some(Token {
            fence: self.fence,
            holder: take.holder,
            liveness: take.liveness,
            group: take.group,
            from: take.from,
            to: take.to,
            epoch: take.epoch,
            step: Step::FIRST,
            stamp: take.stamp,
            last: slot,
        });
        RecordOutcome::Applied
    }
}

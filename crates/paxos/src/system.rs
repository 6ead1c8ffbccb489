//! State machine of the system group: the shared state of the nodes and of all paxos groups.
//!
//! The state machine stores which nodes are alive. A node has one liveness epoch for all its paxos groups. The state
//! machine also stores the capacities of nodes, the weights of paxos groups, and the *token*, which a move of a master
//! requires. Most records are compare-and-swap operations: they name the expected state, and have no effect if the
//! state differs. The network may therefore delay or duplicate a record, and two nodes may propose the same record.
//!
//! The state machine has no clock. If a node must wait before it proposes a record, the documentation of the record
//! states how long.

use std::collections::BTreeMap;

use crate::ids::{Epoch, GroupId, Instant, NodeId, Slot};

mod codec;
#[cfg(test)]
mod tests;

pub use codec::DecodeError;

/// Fencing number of a token. It is greater than the numbers of all earlier tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Fence(pub u64);

/// Change that the system group decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Registers a node or changes its capacity. The record does not make the node alive.
    Node { node: NodeId, capacity: u32 },
    /// Requires the mover to move masters away from this node if `draining` is true. Otherwise, allows the mover to
    /// move masters to this node again.
    Drain { node: NodeId, draining: bool },
    /// Registers a paxos group or changes its replicas.
    Group { group: GroupId, replicas: Vec<NodeId> },
    /// Sets the measured weights of paxos groups.
    Weigh { weights: Vec<(GroupId, u64)> },
    /// Gives `liveness`, the next liveness epoch of a node, to a process of the node, and ends the earlier epoch of the
    /// node. A process proposes this record before all other actions. It proposes the record again when its epoch has
    /// expired, but never while it serves with another epoch.
    Join {
        node: NodeId,
        liveness: u64,
        /// Random number that the process drew at its start. By this number, the process distinguishes its own `Join`
        /// record from a pending `Join` record of an earlier process of the node.
        incarnation: u64,
        /// Instant at which the process proposed the join, by the node's own clock. The lease of the liveness epoch
        /// counts from this instant.
        stamp: Instant,
    },
    /// Renews the liveness epoch of a process. `last` is the slot of the last renewal that the process has learned. The
    /// record has no effect if there is a later renewal. Therefore a node that can send messages but receives none does
    /// not stay alive. If this node stayed alive, it could not serve clients, and other nodes could not take over from
    /// it. `stamp` has the same meaning as in [`Record::Join`].
    Alive { node: NodeId, liveness: u64, last: Slot, stamp: Instant },
    /// Ends a liveness epoch whose last renewal is at the slot `last`. A node proposes this record only after a wait of
    /// the lease plus the possible clock drift. The wait begins when the node learns of the renewal at `last`, or when
    /// the node starts.
    Expire { node: NodeId, liveness: u64, last: Slot },
    /// Takes the token for one move. A process takes the token from another holder only after a wait of
    /// [`crate::mover::Options::wait`].
    TokenTake(Take),
    /// Renews the token, and records the progress of its move.
    TokenStep { fence: Fence, step: Step, stamp: Instant },
    /// Ends the token after its move, even if the move has failed.
    TokenEnd { fence: Fence },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Take {
    /// State that the proposer expects: the last fence of a token, and the slot of the last record of the present
    /// token. The slot is 0 if no process holds the token.
    pub precondition: (Fence, Slot),
    pub holder: NodeId,
    /// Liveness epoch of the holder. By this epoch, a process recognises the token of an earlier process of its node.
    pub liveness: u64,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    /// Epoch of the mastership that the move ends.
    pub epoch: Epoch,
    /// Instant of the proposal, by the holder's own clock.
    pub stamp: Instant,
}

/// Step of a move. The variants are in the order in which the steps occur.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    Prepare(Preparation),
    Handover(Scheme),
}

impl Step {
    pub const FIRST: Step = Step::Prepare(Preparation::SyncOffsets);
}

/// Preparation of a move. The present master still serves during the preparation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Preparation {
    /// The present master copies to the next master the offsets that consumers have committed.
    SyncOffsets,
    /// The present master notifies producers about the next master. It also notifies the nodes that forward messages of
    /// producers.
    NotifyProducers,
}

/// Scheme by which the present master of a paxos group hands over to the next master.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scheme {
    /// The present master stops serving and consents to the hand-over. Then the next master takes over. The hand-over
    /// takes one round trip and one proposal.
    Consent,
    /// The present master proposes an early end of its lease. Then the next master waits for this end.
    Shorten,
    /// The present master stops renewing its lease. Then the next master waits until the lease ends.
    Wait,
}

/// Outcome of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordOutcome {
    Applied,
    /// The record has no effect, because the state differs from the state that the record names.
    Stale,
    /// The record names an unregistered node or paxos group.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub capacity: u32,
    pub draining: bool,
    /// Last liveness epoch that a process of the node took; 0 before the first epoch.
    pub liveness: u64,
    pub incarnation: u64,
    /// Instant at which the node proposed the last renewal of its liveness epoch, by its own clock.
    pub stamp: Instant,
    /// Slot of the last renewal of the liveness epoch; `None` if the node is not alive.
    pub alive: Option<Slot>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    pub replicas: Vec<NodeId>,
    pub weight: u64,
}

/// Right to move one master, and the move for which the holder took the token.
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
    /// Instant at which the holder proposed the last record that took or renewed the token, by its own clock.
    pub stamp: Instant,
    /// Slot of the last record that took or renewed the token.
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
    /// Panics if `slot` is not after the last applied slot. In this case, the replica has lost its position in the log.
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
                // The system group rejects a renewal with an earlier stamp than the last renewal, because the earlier
                // stamp would shorten the lease.
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

    /// Returns the greatest fence that a token has had.
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

    /// Sets the weights of the registered paxos groups, and ignores the weights of unregistered paxos groups.
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

//! What the nodes agree on about each other and about all paxos groups: the state machine of the system group.
//!
//! It keeps who is alive (one liveness for all paxos groups of a node), the nodes and paxos groups with their weights,
//! and the *token*, without which no master is moved. Each record is a compare-and-swap: what it was made for is named in
//! it, and if that is no longer so, nothing happens. So a record may be late, doubled, or proposed by two nodes.
//!
//! It has no clock: who waits before a record is proposed, and how long, is said at the record.

use std::collections::BTreeMap;

use crate::ids::{Epoch, GroupId, Instant, NodeId, Slot};

mod codec;
#[cfg(test)]
mod tests;

pub use codec::DecodeError;

/// The number of a take of the token, which fences: each is greater than all before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Fence(pub u64);

/// A change that the system group decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// There is such a node, or its capacity is another now. It is not alive by that.
    Node { node: NodeId, capacity: u32 },
    /// Masters are to leave this node; or, with `draining` false, may come again.
    Drain { node: NodeId, draining: bool },
    /// There is such a paxos group, or its replicas are others now.
    Group { group: GroupId, replicas: Vec<NodeId> },
    /// What paxos groups weigh, as measured.
    Weigh { weights: Vec<(GroupId, u64)> },
    /// A process takes up its node's next liveness epoch, `liveness`; the one before, if it was not expired, is over.
    /// A process joins before all else, and again when it finds itself expired; never while it serves under another epoch.
    Join {
        node: NodeId,
        liveness: u64,
        /// Drawn by chance when the process began: by this it knows that it was its own join that succeeded, not one that
        /// an earlier process of the node had on the way.
        incarnation: u64,
        /// When it proposed this, by the node's own clock: from then on its lease counts.
        stamp: Instant,
    },
    /// Renews the liveness epoch that this process took up, whose last renewal that it learned of is at `last`: who is heard
    /// and hears nothing is not alive, as it serves nobody and would keep others from it. `stamp` as in a join.
    Alive { node: NodeId, liveness: u64, last: Slot, stamp: Instant },
    /// Ends a liveness epoch whose last renewal is at `last`. Proposed only by who has waited the lease, and what clocks
    /// may differ by, since it learned `last` (or since it started).
    Expire { node: NodeId, liveness: u64, last: Slot },
    /// Takes the token for one move; from another's hands only by who has waited for it as for a node's liveness.
    TokenTake(Take),
    /// Renews the token, and says how far its move is.
    TokenStep { fence: Fence, step: Step, stamp: Instant },
    /// The move is over, well or not.
    TokenEnd { fence: Fence },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Take {
    /// The last fence that the taker knows of, and where its last record is: 0 while nobody holds the token.
    pub seen: (Fence, Slot),
    pub holder: NodeId,
    /// The holder's liveness epoch, so that no process takes an earlier one's token for its own.
    pub liveness: u64,
    pub group: GroupId,
    pub from: NodeId,
    pub to: NodeId,
    /// The mastership that is to end.
    pub epoch: Epoch,
    /// When the holder proposed this, by its own clock.
    pub stamp: Instant,
}

/// How far a move is, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    Prepare(Preparation),
    Handover(Scheme),
}

impl Step {
    pub const FIRST: Step = Step::Prepare(Preparation::SyncOffsets);
}

/// What is done before a master moves, while the present one still serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Preparation {
    /// What consumers have committed is with the master to be.
    SyncOffsets,
    /// Producers, and who forwards for them, know of the master to be.
    TellProducers,
}

/// How a mastership passes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scheme {
    /// The present master stops serving and agrees, then the next takes over: one round trip and one propose.
    Consent,
    /// The present master decides an earlier end of its lease, then the next waits for that.
    Shorten,
    /// The present master proposes and renews no more, then the next waits for the lease to end.
    Wait,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordOutcome {
    Applied,
    /// What it was made for is not so, or no longer.
    Stale,
    /// It names a node or a paxos group that there is not.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub capacity: u32,
    pub draining: bool,
    /// The liveness epoch last taken up; 0 before the first.
    pub liveness: u64,
    pub incarnation: u64,
    /// When the last renewal was proposed, by the node's own clock.
    pub stamp: Instant,
    /// Where the last renewal is; none once the epoch is expired.
    pub alive: Option<Slot>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    pub replicas: Vec<NodeId>,
    pub weight: u64,
}

/// The right to move one master, and the move.
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
    /// When the holder proposed its last record, by its own clock.
    pub stamp: Instant,
    /// Where its last record is.
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
    /// `slot` was applied before: then this replica has lost its place.
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
                // One that was overtaken by a later one says nothing new, and must not take the lease back.
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

    /// The last record.
    pub(crate) fn applied(&self) -> Slot {
        self.applied
    }

    /// The greatest fence there was.
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

    /// Those that there are get their weight, also when others are unknown.
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
        if take.seen != present {
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

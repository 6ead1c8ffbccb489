//! State of the model: three nodes and the messages that they have sent.

use crate::log::{Ballot, Claim, Entry, Log, SLOTS, Slot, Term, Value};
use crate::rules::{LEASE, Start};

pub(crate) const NODES: usize = 3;
/// Maximum number of ballots in any configuration of the model.
pub(crate) const BALLOTS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    pub(crate) nodes: [Node; NODES],
    /// Owner of each ballot, and the longest log that the owner has sent. Any prefix of this log may arrive at any
    /// node, at any time, any number of times.
    pub(crate) sent: [Option<Sent>; BALLOTS],
    /// Consent that a leader has sent, if any. A history contains at most one consent, which may arrive at any time.
    pub(crate) consent: Option<Consent>,
    pub(crate) liveness: Liveness,
    /// All slots that a leader has decided.
    pub(crate) decided: Log,
    /// True if leaders have decided two different entries for one slot.
    pub(crate) split: bool,
    pub(crate) crashes: u8,
    pub(crate) skews: u8,
}

/// Liveness epoch of node 0 in the system group. The model treats the system group as a register: the system group
/// decides each change at once, and a node may learn the decision at any later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Liveness {
    /// Number of ticks until the lease of the liveness epoch ends, according to its last renewal in the system group.
    /// `known` is this number according to the last renewal that node 0 has learned.
    pub(crate) renewed: u8,
    pub(crate) known: u8,
    pub(crate) is_over: bool,
    /// Nodes that know that the epoch is over.
    pub(crate) knows_over: [bool; NODES],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) promised: Ballot,
    pub(crate) log: Log,
    /// Ticks since the node accepted the last slot that renewed the lease. The count does not exceed `Bounds::wait`.
    pub(crate) idle: u8,
    /// Role of the node under the ballot `promised`.
    pub(crate) role: Role,
    /// Remaining ticks for which a restarted node still acts as master.
    pub(crate) stale_ticks: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    #[default]
    Follower,
    Candidate {
        claim: Claim,
        promises: [Option<Promise>; NODES],
    },
    Leader(Leader),
}

/// Promise of a node. In the model, the candidate receives each promise at once. A delayed promise would state a
/// shorter time since the last renewal of the lease, so the candidate would only wait longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Promise {
    pub(crate) last: (Ballot, Slot),
    pub(crate) idle: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leader {
    pub(crate) decided: Slot,
    /// Number of remaining ticks of the lease that each slot renewed. The lease counts from the proposal of the slot.
    pub(crate) lease: [u8; SLOTS],
    /// Last slot that each node has accepted under the leader's ballot.
    pub(crate) accepted: [Slot; NODES],
    /// Term of the mastership that the leader consented to end; `Term::default()` if the leader has not consented.
    pub(crate) consented_term: Term,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sent {
    pub(crate) owner: u8,
    pub(crate) log: Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Consent {
    pub(crate) term: Term,
    pub(crate) taker: u8,
}

impl State {
    pub(crate) fn new(start: Start, lives: bool) -> State {
        let mut state = State {
            nodes: [Node::default(); NODES],
            sent: [None; BALLOTS],
            consent: None,
            liveness: if lives {
                Liveness { renewed: LEASE, known: LEASE, ..Liveness::default() }
            } else {
                Liveness::default()
            },
            decided: Log::default(),
            split: false,
            crashes: 0,
            skews: 0,
        };
        if start == Start::Empty {
            return state;
        }
        let claim = Claim::Waited { term: Term::default(), lease_slot: 0 };
        state.decided.push(Entry { ballot: 1, node: 0, value: Value::BeMaster(claim, lives) });
        for node in &mut state.nodes {
            *node = Node { promised: 1, log: state.decided, ..Node::default() };
        }
        state.sent[0] = Some(Sent { owner: 0, log: state.decided });
        if start == Start::Mastered {
            let mut leader = Leader { decided: 1, accepted: [1; NODES], ..Leader::default() };
            leader.lease[0] = LEASE;
            state.nodes[0].role = Role::Leader(leader);
            return state;
        }
        for (owner, ballot) in [(0, 1), (1, 2)] {
            let node = &mut state.nodes[owner];
            node.log.push(Entry { ballot, node: name(owner), value: Value::Data });
            state.sent[owner] = Some(Sent { owner: name(owner), log: node.log });
        }
        for node in &mut state.nodes[1..] {
            node.promised = 2;
        }
        state
    }

    pub(crate) fn leader(&self, node: usize) -> Option<&Leader> {
        match &self.nodes[node].role {
            Role::Leader(leader) => Some(leader),
            Role::Follower | Role::Candidate { .. } => None,
        }
    }

    /// Returns the log of a leader. The log may contain entries that are not yet on the leader's disk.
    pub(crate) fn sent_by(&self, node: usize) -> Log {
        self.sent[index(self.nodes[node].promised)].map_or(Log::default(), |sent| sent.log)
    }

    /// Drops the sent entries of ballots that all nodes have promised to reject. Such entries can have no further
    /// effect.
    pub(crate) fn forget(&mut self) {
        let least = self.nodes.iter().map(|node| node.promised).min().unwrap_or(0);
        for sent in self.sent[..usize::from(least.saturating_sub(1))].iter_mut().flatten() {
            *sent = Sent { owner: 0, log: Log::default() };
        }
    }

    /// Returns the lowest of all states that differ from this state only in the names of nodes.
    pub(crate) fn representative(&self, start: Start) -> State {
        let names: &[[u8; NODES]] = match start {
            Start::Empty => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
            Start::Mastered => &[[0, 2, 1]],
            Start::Forked => &[],
        };
        names.iter().map(|&names| self.renamed(names)).fold(*self, |least, state| least.min(state))
    }

    /// Returns this state with the name `names[n]` for each node `n`.
    fn renamed(&self, names: [u8; NODES]) -> State {
        let mut state = *self;
        for (node, &to) in self.nodes.iter().zip(&names) {
            let mut node = *node;
            node.log = node.log.renamed(names);
            match &mut node.role {
                Role::Follower => {}
                Role::Candidate { promises, .. } => *promises = moved(*promises, names),
                Role::Leader(leader) => leader.accepted = moved(leader.accepted, names),
            }
            state.nodes[usize::from(to)] = node;
        }
        for sent in state.sent.iter_mut().flatten() {
            *sent = Sent { owner: names[usize::from(sent.owner)], log: sent.log.renamed(names) };
        }
        if let Some(consent) = &mut state.consent {
            consent.taker = names[usize::from(consent.taker)];
        }
        state.liveness.knows_over = moved(state.liveness.knows_over, names);
        state.decided = state.decided.renamed(names);
        state
    }
}

fn moved<T: Copy>(from: [T; NODES], names: [u8; NODES]) -> [T; NODES] {
    let mut to = from;
    for (&value, &name) in from.iter().zip(&names) {
        to[usize::from(name)] = value;
    }
    to
}

pub(crate) fn index(ballot: Ballot) -> usize {
    usize::from(ballot) - 1
}

pub(crate) fn name(node: usize) -> u8 {
    u8::try_from(node).expect("there are three nodes")
}

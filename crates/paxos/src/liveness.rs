//! Role of a node in the system group. The node proposes records which state that it is alive, or that other nodes are
//! dead.
//!
//! One record renews the leases of all paxos groups of which a node is master, even if they are idle. When a process
//! starts, it takes the next liveness epoch of its node. Two processes of a node never have the same epoch. A record
//! renews the lease of the epoch once the record is decided. The lease counts from the proposal of the record, by the
//! node's own clock. Another node waits until the lease is certainly over, and then proposes an `Expire` record, which
//! ends the epoch. The `Expire` record is a compare-and-swap: it has no effect if the node has renewed its epoch in the
//! meantime. Other nodes may take over the paxos groups of the dead node only after the system group has decided the
//! `Expire` record.
//!
//! docs/decisions/0154-renew-leases-by-one-liveness-record.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{Instant, NodeId, Slot};
use crate::options::Options;
use crate::simulation::{Deviation, Mutant};
use crate::system::{self, Record, System};

#[derive(Debug)]
pub(crate) struct Liveness {
    me: NodeId,
    /// Random number of this process. Other processes of this node have other numbers.
    incarnation: u64,
    system: System,
    proposed: Option<Instant>,
    /// Last renewal of each node that is alive, and the instant at which this node learned of the renewal.
    renewals: BTreeMap<NodeId, ((u64, Slot), Instant)>,
    /// Instant since which this node has been the master of the system group; `None` if this node is not the master.
    master_since: Option<Instant>,
}

/// State of the liveness epochs, which the node passes to its paxos groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LivenessUpdate {
    /// Liveness epoch of this node and the end of the epoch's lease. The epoch is 0 if the process has no lease.
    pub(crate) lease: (u64, Instant),
    /// Last expired liveness epoch of each node. All earlier epochs are also over.
    pub(crate) expired: Vec<(NodeId, u64)>,
    pub(crate) nodes: Vec<NodeId>,
}

impl Liveness {
    pub(crate) fn new(me: NodeId, incarnation: u64) -> Self {
        Liveness {
            me,
            incarnation,
            system: System::default(),
            proposed: None,
            renewals: BTreeMap::new(),
            master_since: None,
        }
    }

    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    /// # Panics
    /// Panics if this build cannot read an entry. In this case, a newer build or an unrelated program proposed the
    /// entry. If this node skipped the entry, the states of the nodes would differ.
    pub(crate) fn apply(&mut self, entries: &[Bytes], now: Instant, deviation: Deviation) {
        for entry in entries {
            let mut record = Record::decode(entry).unwrap_or_else(|error| {
                panic!("the system group decided a record that this build cannot read: {error}")
            });
            if let Record::TokenTake(take) = &mut record
                && deviation.is(Mutant::TwoMoveTokens)
            {
                take.precondition = (self.system.fence(), self.system.token().map_or(Slot(0), |token| token.last));
            }
            self.system.apply(self.system.applied().next(), &record);
        }
        self.look(now);
    }

    pub(crate) fn snapshot(&self) -> Bytes {
        self.system.snapshot().into()
    }

    /// # Errors
    /// Returns an error if the bytes are not a snapshot of the system group.
    pub(crate) fn restore(&mut self, bytes: &[u8], now: Instant) -> Result<(), system::DecodeError> {
        self.system = System::restore(bytes)?;
        self.look(now);
        Ok(())
    }

    /// Stores each new renewal with the instant `now`. This node counts the lease of another node from the instant at
    /// which this node learned of the last renewal.
    fn look(&mut self, now: Instant) {
        for (id, node) in self.system.nodes() {
            let Some(alive) = node.alive else {
                self.renewals.remove(id);
                continue;
            };
            let renewal = (node.liveness, alive);
            if self.renewals.get(id).is_none_or(|(known, _)| *known != renewal) {
                self.renewals.insert(*id, (renewal, now));
            }
        }
    }

    pub(crate) fn update(&self, options: &Options) -> LivenessUpdate {
        let mine = self.system.node(self.me).filter(|node| self.is_mine(node, options));
        let lease = mine.map_or((0, Instant::default()), |node| (node.liveness, node.stamp + options.lease));
        let over =
            |node: &system::Node| if node.alive.is_some() { node.liveness.saturating_sub(1) } else { node.liveness };
        LivenessUpdate {
            lease,
            expired: self.system.nodes().iter().map(|(id, node)| (*id, over(node))).collect(),
            nodes: self.system.nodes().keys().copied().collect(),
        }
    }

    /// Returns the records that this node must propose to the system group. If the renewal of this node's epoch is due,
    /// one record states that this node is alive. If this node is the master of the system group, further records state
    /// that other nodes are dead.
    pub(crate) fn tick(&mut self, is_master: bool, now: Instant, options: &Options) -> Vec<Record> {
        let mut records: Vec<Record> = self.own(now, options).into_iter().collect();
        self.master_since = is_master.then(|| self.master_since.unwrap_or(now));
        let wait = expires_after(options);
        if self.judges_from(options).is_some_and(|from| now >= from) {
            for (node, ((liveness, last), learned)) in &mut self.renewals {
                if now.since(*learned) >= wait {
                    records.push(Record::Expire { node: *node, liveness: *liveness, last: *last });
                    // The node proposes the record again after `resend` if the record is not decided by then.
                    *learned = now - wait + options.resend;
                }
            }
        }
        records
    }

    /// Returns the instant at which [`Liveness::tick`] is due.
    pub(crate) fn next_tick(&self, is_master: bool, options: &Options) -> Option<Instant> {
        if is_master != self.master_since.is_some() {
            return Some(Instant::default());
        }
        let first = self.renewals.values().map(|(_, learned)| *learned + expires_after(options)).min();
        let judges = self.judges_from(options).and_then(|from| Some(from.max(first?)));
        [self.renews_at(options), judges].into_iter().flatten().min()
    }

    /// Returns the instant from which this node, as master of the system group, may propose that other nodes are dead.
    /// While the system group had no master, no node could renew its epoch. Nodes that are alive renew their epochs
    /// before the returned instant.
    fn judges_from(&self, options: &Options) -> Option<Instant> {
        self.master_since.map(|since| since + 2 * options.resend)
    }

    /// Returns true if this process took the liveness epoch of the node and the epoch is not over.
    fn is_mine(&self, node: &system::Node, options: &Options) -> bool {
        let is_its = node.incarnation == self.incarnation || options.deviation.is(Mutant::LivesOn);
        is_its && node.alive.is_some()
    }

    /// Returns the instant at which the next renewal is due. Returns `None` if the node is not registered in the system
    /// group, because it then has no epoch.
    fn renews_at(&self, options: &Options) -> Option<Instant> {
        let known = self.system.node(self.me)?;
        let is_decided = self.proposed.is_none_or(|proposed| known.stamp >= proposed);
        let pause = if self.is_mine(known, options) && is_decided { options.lease / 4 } else { options.resend };
        Some(self.proposed.map_or(Instant::default(), |proposed| proposed + pause))
    }

    fn own(&mut self, now: Instant, options: &Options) -> Option<Record> {
        if now < self.renews_at(options)? {
            return None;
        }
        let known = self.system.node(self.me)?;
        let is_mine = self.is_mine(known, options);
        self.proposed = Some(now);
        let (node, stamp) = (self.me, now);
        Some(if is_mine {
            Record::Alive { node, liveness: known.liveness, last: known.alive?, stamp }
        } else {
            Record::Join { node, liveness: known.liveness + 1, incarnation: self.incarnation, stamp }
        })
    }
}

/// Returns the time after which this node may propose that another node is dead. The time counts from the instant at
/// which this node learned of the other node's last renewal.
fn expires_after(options: &Options) -> Duration {
    let is_hasty = options.deviation.is(Mutant::ExpiresEarly);
    options.stretched(if is_hasty { options.lease / 3 } else { options.lease })
}

//! Role of a node in the system group: the node proposes that it is alive, and that other nodes are not.
//!
//! One record renews the leases of all paxos groups of which a node is master, idle or not. A process takes up a
//! liveness epoch of its node when it starts, and two processes never share an epoch. The lease of the epoch counts
//! from before the renewing record was proposed, by the node's own clock, and only once the record is decided. Another
//! node proposes that the epoch is over after it has waited for as long as the lease may run. That record is a
//! compare-and-swap, so it has no effect if the epoch was renewed in between. Only then may other nodes follow as
//! master of the paxos groups of the dead node.
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
    /// Random number of this process, which no other process of this node shares.
    incarnation: u64,
    system: System,
    proposed: Option<Instant>,
    /// Last renewal of each node that is alive, and the instant when this node learned it.
    renewals: BTreeMap<NodeId, ((u64, Slot), Instant)>,
    /// Instant since which this node is the master of the system group.
    master_since: Option<Instant>,
}

/// Update for the paxos groups of this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LivenessUpdate {
    /// Liveness epoch of this node and the end of its lease. The epoch is 0 without a lease.
    pub(crate) lease: (u64, Instant),
    /// Last expired liveness epoch of each node. All earlier epochs are over too.
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
    /// Panics if an entry is not a record of this build, so that a newer build or an unrelated program proposed it. To
    /// skip it would make the state differ from the state of the other nodes.
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
    /// Returns an error if the bytes are not a snapshot.
    pub(crate) fn restore(&mut self, bytes: &[u8], now: Instant) -> Result<(), system::DecodeError> {
        self.system = System::restore(bytes)?;
        self.look(now);
        Ok(())
    }

    /// Notes new renewals. This node may learn a renewal late, so it counts from now on.
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

    /// Returns the records to propose to the system group: that this node is alive and, on the master, that other nodes
    /// are not.
    pub(crate) fn tick(&mut self, is_master: bool, now: Instant, options: &Options) -> Vec<Record> {
        let mut records: Vec<Record> = self.own(now, options).into_iter().collect();
        self.master_since = is_master.then(|| self.master_since.unwrap_or(now));
        let wait = expires_after(options);
        if self.judges_from(options).is_some_and(|from| now >= from) {
            for (node, ((liveness, last), learned)) in &mut self.renewals {
                if now.since(*learned) >= wait {
                    records.push(Record::Expire { node: *node, liveness: *liveness, last: *last });
                    // If the record is not decided, propose it again after `resend`.
                    *learned = now - wait + options.resend;
                }
            }
        }
        records
    }

    /// Returns when [`Liveness::tick`] is due.
    pub(crate) fn next_tick(&self, is_master: bool, options: &Options) -> Option<Instant> {
        if is_master != self.master_since.is_some() {
            return Some(Instant::default());
        }
        let first = self.renewals.values().map(|(_, learned)| *learned + expires_after(options)).min();
        let judges = self.judges_from(options).and_then(|from| Some(from.max(first?)));
        [self.renews_at(options), judges].into_iter().flatten().min()
    }

    /// Returns the instant from which this node proposes that other nodes are dead. While there was no master, no node
    /// could renew; nodes that are alive renew before this instant.
    fn judges_from(&self, options: &Options) -> Option<Instant> {
        self.master_since.map(|since| since + 2 * options.resend)
    }

    /// Returns whether this process took up the liveness epoch of the node and the epoch is not over.
    fn is_mine(&self, node: &system::Node, options: &Options) -> bool {
        let is_its = node.incarnation == self.incarnation || options.deviation.is(Mutant::LivesOn);
        is_its && node.alive.is_some()
    }

    /// Returns when the next renewal is due. A node that is not registered in the system group renews nothing.
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

/// Returns the time after which a node may be declared dead, counted from when its last renewal was learned.
fn expires_after(options: &Options) -> Duration {
    let is_hasty = options.deviation.is(Mutant::ExpiresEarly);
    options.stretched(if is_hasty { options.lease / 3 } else { options.lease })
}

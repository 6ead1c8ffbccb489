//! A node's place in the system group: that it is alive, and who is not.
//!
//! One record renews the leases of all paxos groups of which a node is master, idle or not. A node's liveness epoch is taken up
//! by a process when it starts, and is never another process's; its lease counts from before the record that renewed it was
//! proposed, by the node's own clock, and only once that is decided. It is decided to be over by who has waited for as long as
//! it may run, and by the record's compare-and-swap not renewed since; only then may others follow where its node was master.

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
    /// Of this process, and no other of this node.
    incarnation: u64,
    system: System,
    asked: Option<Instant>,
    /// Of each node that is alive: its last renewal, and when this node learned it.
    seen: BTreeMap<NodeId, ((u64, Slot), Instant)>,
    /// Since when this node is the system group's master.
    master_since: Option<Instant>,
}

/// What is to be told to the paxos groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct News {
    /// This node's liveness epoch and the end of its lease; 0 without one.
    pub(crate) lease: (u64, Instant),
    /// Of each node, all up to this are over.
    pub(crate) expired: Vec<(NodeId, u64)>,
    pub(crate) nodes: Vec<NodeId>,
}

impl Liveness {
    pub(crate) fn new(me: NodeId, incarnation: u64) -> Self {
        Liveness { me, incarnation, system: System::default(), asked: None, seen: BTreeMap::new(), master_since: None }
    }

    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    /// # Panics
    /// If an entry is none of this build's records, so a newer build or a stranger proposes to the system group: to pass over it
    /// would make another state than others have.
    pub(crate) fn apply(&mut self, entries: &[Bytes], now: Instant, deviation: Deviation) {
        for entry in entries {
            let mut record = Record::decode(entry)
                .unwrap_or_else(|error| panic!("the system group decided what this build cannot read: {error}"));
            if let Record::TokenTake(take) = &mut record
                && deviation.is(Mutant::TwoMoveTokens)
            {
                take.seen = (self.system.fence(), self.system.token().map_or(Slot(0), |token| token.last));
            }
            self.system.apply(self.system.applied().next(), &record);
        }
        self.look(now);
    }

    pub(crate) fn snapshot(&self) -> Bytes {
        self.system.snapshot().into()
    }

    /// # Errors
    /// If these are not the bytes of a snapshot.
    pub(crate) fn restore(&mut self, bytes: &[u8], now: Instant) -> Result<(), system::DecodeError> {
        self.system = System::restore(bytes)?;
        self.look(now);
        Ok(())
    }

    /// What it sees now it may have missed for as long as it likes: it counts from here.
    fn look(&mut self, now: Instant) {
        for (id, node) in self.system.nodes() {
            let Some(alive) = node.alive else {
                self.seen.remove(id);
                continue;
            };
            let renewal = (node.liveness, alive);
            if self.seen.get(id).is_none_or(|(known, _)| *known != renewal) {
                self.seen.insert(*id, (renewal, now));
            }
        }
    }

    pub(crate) fn news(&self, options: &Options) -> News {
        let mine = self.system.node(self.me).filter(|node| self.is_mine(node, options));
        let lease = mine.map_or((0, Instant::default()), |node| (node.liveness, node.stamp + options.lease));
        let over =
            |node: &system::Node| if node.alive.is_some() { node.liveness.saturating_sub(1) } else { node.liveness };
        News {
            lease,
            expired: self.system.nodes().iter().map(|(id, node)| (*id, over(node))).collect(),
            nodes: self.system.nodes().keys().copied().collect(),
        }
    }

    /// What to propose to the system group: that this node is alive, and, on its master, who is not.
    pub(crate) fn tick(&mut self, is_master: bool, now: Instant, options: &Options) -> Vec<Record> {
        let mut records: Vec<Record> = self.own(now, options).into_iter().collect();
        self.master_since = is_master.then(|| self.master_since.unwrap_or(now));
        let wait = expires_after(options);
        if self.judges_from(options).is_some_and(|from| now >= from) {
            for (node, ((liveness, last), seen)) in &mut self.seen {
                if now.since(*seen) >= wait {
                    records.push(Record::Expire { node: *node, liveness: *liveness, last: *last });
                    // Again after a while, if that comes to nothing.
                    *seen = now - wait + options.resend;
                }
            }
        }
        records
    }

    /// When [`Liveness::tick`] does something.
    pub(crate) fn next_tick(&self, is_master: bool, options: &Options) -> Option<Instant> {
        if is_master != self.master_since.is_some() {
            return Some(Instant::default());
        }
        let first = self.seen.values().map(|(_, seen)| *seen + expires_after(options)).min();
        let judges = self.judges_from(options).and_then(|from| Some(from.max(first?)));
        [self.renews_at(options), judges].into_iter().flatten().min()
    }

    /// While there was no master nobody could renew: who lives does so before this.
    fn judges_from(&self, options: &Options) -> Option<Instant> {
        self.master_since.map(|since| since + 2 * options.resend)
    }

    /// Whether the node's liveness epoch is one that this process took up, and is not over.
    fn is_mine(&self, node: &system::Node, options: &Options) -> bool {
        let is_its = node.incarnation == self.incarnation || options.deviation.is(Mutant::LivesOn);
        is_its && node.alive.is_some()
    }

    /// A node that nobody has made known renews nothing.
    fn renews_at(&self, options: &Options) -> Option<Instant> {
        let known = self.system.node(self.me)?;
        let is_decided = self.asked.is_none_or(|asked| known.stamp >= asked);
        let pause = if self.is_mine(known, options) && is_decided { options.lease / 4 } else { options.resend };
        Some(self.asked.map_or(Instant::default(), |asked| asked + pause))
    }

    fn own(&mut self, now: Instant, options: &Options) -> Option<Record> {
        if now < self.renews_at(options)? {
            return None;
        }
        let known = self.system.node(self.me)?;
        let is_mine = self.is_mine(known, options);
        self.asked = Some(now);
        let (node, stamp) = (self.me, now);
        Some(if is_mine {
            Record::Alive { node, liveness: known.liveness, last: known.alive?, stamp }
        } else {
            Record::Join { node, liveness: known.liveness + 1, incarnation: self.incarnation, stamp }
        })
    }
}

/// After its last renewal was learned, a node may be decided to be gone.
fn expires_after(options: &Options) -> Duration {
    let is_hasty = options.deviation.is(Mutant::ExpiresEarly);
    options.stretched(if is_hasty { options.lease / 3 } else { options.lease })
}

//! State that a log defines for its paxos group: the mastership and the members.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::{BeMaster, Claim, Entry, Shorten, Value};
use crate::ids::{NodeId, Slot, Term};
use crate::simulation::{Deviation, Mutant};

/// State of a paxos group after a slot of its log. The state is equal on every node that has applied the log up to this
/// slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupState {
    pub mastership: Mastership,
    /// Members in ascending order, without duplicates.
    pub members: Arc<[NodeId]>,
}

/// Present or last mastership, and the values that determine its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mastership {
    /// Term of the mastership. The epoch of the term increases with each new master, and also when a master renews its
    /// own mastership.
    pub term: Term,
    pub node: Option<NodeId>,
    /// Liveness epoch of the master; 0 if the lease does not depend on a liveness epoch. Each renewal of this epoch
    /// also renews the lease, even if the paxos group is idle.
    pub liveness: u64,
    /// Last slot that renewed the lease.
    pub lease_slot: Slot,
    /// Early end of the lease; `None` if the master has not shortened the lease. No slot renews a shortened lease.
    pub shortened: Option<Shortened>,
}

/// Early end of a lease. The master serves for `remaining` after its proposal of the early end. Then the node `to` may
/// take over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortened {
    pub to: NodeId,
    pub remaining: Duration,
}

impl GroupState {
    #[must_use]
    pub fn new(founders: &[NodeId]) -> Self {
        let mut members = founders.to_vec();
        members.sort_unstable();
        members.dedup();
        GroupState { mastership: Mastership::NONE, members: members.into() }
    }

    /// Returns the number of members that form a quorum.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    /// Applies an entry. Returns true if the entry renewed the lease or began a mastership.
    pub(crate) fn apply(&mut self, slot: Slot, entry: &Entry, deviation: Deviation) -> bool {
        let mastership = &mut self.mastership;
        if let Value::BeMaster(be_master) = &entry.value
            && self.members.is_empty()
        {
            self.members = be_master.members.clone();
        }
        match &entry.value {
            Value::BeMaster(be_master) if mastership.allows(be_master, deviation) => {
                *mastership = Mastership {
                    term: Term { epoch: mastership.term.epoch.next(), ballot: entry.ballot },
                    node: Some(be_master.node),
                    liveness: be_master.liveness,
                    lease_slot: slot,
                    shortened: None,
                };
                return true;
            }
            Value::Members(members) => self.members = members.clone(),
            Value::BeMaster(_) | Value::Noop | Value::Data(_) | Value::Shorten(_) => {}
        }
        let is_the_masters = mastership.node.is_some() && mastership.term.ballot == entry.ballot;
        if !is_the_masters || mastership.shortened.is_some() {
            return false;
        }
        if let Value::Shorten(Shorten { term, to, remaining }) = entry.value
            && term == mastership.term
        {
            // A mastership with a shortened lease has no liveness epoch. Therefore the lease ends even if the master is
            // alive.
            (mastership.shortened, mastership.liveness) = (Some(Shortened { to, remaining }), 0);
        }
        mastership.lease_slot = slot;
        true
    }
}

impl Mastership {
    /// Value of the mastership before the first master of a paxos group.
    pub const NONE: Mastership =
        Mastership { term: Term::NONE, node: None, liveness: 0, lease_slot: Slot(0), shortened: None };

    fn allows(&self, be_master: &BeMaster, deviation: Deviation) -> bool {
        if deviation.is(Mutant::SkipsCompareAndSwap) || !deviation.log_defends() {
            return true;
        }
        match be_master.claim {
            Claim::Waited { term, .. } if deviation.is(Mutant::ComparesMasterRecordOnly) => term == self.term,
            Claim::Waited { term, lease_slot } => (term, lease_slot) == (self.term, self.lease_slot),
            Claim::Own { term } => term == self.term && self.node == Some(be_master.node),
            Claim::Consent { term } => term == self.term,
        }
    }
}

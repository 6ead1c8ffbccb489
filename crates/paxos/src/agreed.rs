//! What a log says about its paxos group: who is master, and who are its members.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::{BeMaster, Claim, Entry, Shorten, Value};
use crate::ids::{NodeId, Slot, Tenure};
use crate::simulation::{Deviation, Mutant};

/// The same at every node that has read the log up to the same slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    pub mastership: Mastership,
    /// In order, without doubles.
    pub members: Arc<[NodeId]>,
}

/// Who is master, or was last, and what its lease rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mastership {
    /// Its epoch rises with each master, and when one is master anew.
    pub tenure: Tenure,
    pub node: Option<NodeId>,
    /// The liveness epoch of the node that renews this lease while the paxos group is idle; 0: none.
    pub liveness: u64,
    /// The last slot that renewed the lease.
    pub lease_slot: Slot,
    /// No slot renews any more.
    pub shortened: Option<Shortened>,
}

/// The master leaves to `to`, `remaining` after it wrote so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortened {
    pub to: NodeId,
    pub remaining: Duration,
}

impl Agreed {
    #[must_use]
    pub fn new(founders: &[NodeId]) -> Self {
        let mut members = founders.to_vec();
        members.sort_unstable();
        members.dedup();
        Agreed { mastership: Mastership::NONE, members: members.into() }
    }

    /// How many make a quorum.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    /// Whether the lease was renewed, or is another's now.
    pub(crate) fn apply(&mut self, slot: Slot, entry: &Entry, deviation: Deviation) -> bool {
        let mastership = &mut self.mastership;
        if let Value::BeMaster(wish) = &entry.value
            && self.members.is_empty()
        {
            self.members = wish.members.clone();
        }
        match &entry.value {
            Value::BeMaster(wish) if mastership.allows(wish, deviation) => {
                *mastership = Mastership {
                    tenure: Tenure { epoch: mastership.tenure.epoch.next(), ballot: entry.ballot },
                    node: Some(wish.node),
                    liveness: wish.liveness,
                    lease_slot: slot,
                    shortened: None,
                };
                return true;
            }
            Value::Members(members) => self.members = members.clone(),
            Value::BeMaster(_) | Value::Noop | Value::Data(_) | Value::Shorten(_) => {}
        }
        let is_the_masters = mastership.node.is_some() && mastership.tenure.ballot == entry.ballot;
        if !is_the_masters || mastership.shortened.is_some() {
            return false;
        }
        if let Value::Shorten(Shorten { tenure, to, remaining }) = entry.value
            && tenure == mastership.tenure
        {
            // What is shortened ends, whatever the liveness of its node.
            (mastership.shortened, mastership.liveness) = (Some(Shortened { to, remaining }), 0);
        }
        mastership.lease_slot = slot;
        true
    }
}

impl Mastership {
    /// Nobody is master yet.
    pub const NONE: Mastership =
        Mastership { tenure: Tenure::NONE, node: None, liveness: 0, lease_slot: Slot(0), shortened: None };

    fn allows(&self, wish: &BeMaster, deviation: Deviation) -> bool {
        if deviation.is(Mutant::SkipsCompareAndSwap) || !deviation.log_defends() {
            return true;
        }
        match wish.claim {
            Claim::Waited { tenure, .. } if deviation.is(Mutant::ComparesMasterRecordOnly) => tenure == self.tenure,
            Claim::Waited { tenure, lease_slot } => (tenure, lease_slot) == (self.tenure, self.lease_slot),
            Claim::Own { tenure } => tenure == self.tenure && self.node == Some(wish.node),
            Claim::Consent { tenure } => tenure == self.tenure,
        }
    }
}

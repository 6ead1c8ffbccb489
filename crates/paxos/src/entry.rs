//! What a log is made of.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{Ballot, NodeId, Slot, Tenure};

/// A place in a log and the ballot of the entry there. Logs that agree on one position agree on all before it.
///
/// Of two positions at the ends of logs, the one with the greater ballot is ahead, and of two with one ballot the later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    pub ballot: Ballot,
    pub slot: Slot,
}

impl Position {
    /// Before the first slot.
    pub const START: Position = Position { ballot: Ballot::NONE, slot: Slot(0) };

    /// Whether it may be in the log of who has promised `most`.
    pub(crate) fn is_sound(self, most: Ballot) -> bool {
        self.slot.is_sound() && self.ballot <= most && (self.slot == Slot(0)) == (self.ballot == Ballot::NONE)
    }
}

/// What is in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Of who proposed it first; it keeps it whoever decides it.
    pub ballot: Ballot,
    pub value: Value,
}

/// What a slot decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Says nothing, and renews the lease of the master that wrote it.
    Noop,
    /// Of the application, in order.
    Data(Arc<[Bytes]>),
    BeMaster(BeMaster),
    Shorten(Shorten),
    /// All members from here on, in order; they differ by one from those before.
    Members(Arc<[NodeId]>),
}

/// `node` becomes master, if what it claims is so where this lies in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeMaster {
    pub node: NodeId,
    /// Its liveness epoch in the system group, which renews this lease while the paxos group is idle; 0: none.
    pub liveness: u64,
    pub claim: Claim,
    /// All members here, in order: who reads the log from its beginning and was told of no founders has them from this.
    pub members: Arc<[NodeId]>,
}

/// Why somebody may be master; a compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It waited until the lease of this mastership, whose last slot this is, was over. To compare without the slot would
    /// not do: every slot renews.
    Waited { tenure: Tenure, lease_slot: Slot },
    /// It is the master of this itself.
    Own { tenure: Tenure },
    /// The master stopped, and left it to this node, or to whoever is first.
    Consent { tenure: Tenure },
}

/// The master serves for `remaining` from before it proposed this, and no longer; then `to` may take over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shorten {
    pub tenure: Tenure,
    pub to: NodeId,
    pub remaining: Duration,
}

impl Value {
    /// About how many bytes it takes, for limits.
    #[must_use]
    pub fn size(&self) -> usize {
        const FIXED: usize = 32;
        match self {
            Value::Data(batch) => FIXED + batch.iter().map(|entry| entry.len() + 4).sum::<usize>(),
            Value::Members(members) | Value::BeMaster(BeMaster { members, .. }) => FIXED + 4 * members.len(),
            Value::Noop | Value::Shorten(_) => FIXED,
        }
    }
}

//! Entries of a log and their values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{Ballot, NodeId, Slot, Term};

/// Slot in a log, and the ballot of its entry. Two logs with a common position are equal up to that position.
///
/// Between the last positions of two logs, the position with the greater ballot is ahead. If the ballots are equal, the
/// position with the greater slot is ahead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    pub ballot: Ballot,
    pub slot: Slot,
}

impl Position {
    /// Position before the first slot.
    pub const START: Position = Position { ballot: Ballot::NONE, slot: Slot(0) };

    /// Returns whether the position may be in the log of a node that promised `most`.
    pub(crate) fn is_sound(self, most: Ballot) -> bool {
        self.slot.is_sound() && self.ballot <= most && (self.slot == Slot(0)) == (self.ballot == Ballot::NONE)
    }
}

/// Content of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Ballot of the first proposer. The entry keeps this ballot if a later leader decides the entry.
    pub ballot: Ballot,
    pub value: Value,
}

/// Value that a slot decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Carries no content, and renews the lease of the master that proposed it.
    Noop,
    /// Carries entries of the application, in order.
    Data(Arc<[Bytes]>),
    BeMaster(BeMaster),
    Shorten(Shorten),
    /// Sets all members from this slot on, in ascending order. They differ by one member from the members before.
    Members(Arc<[NodeId]>),
}

/// Value that makes `node` the master if its claim holds at this place in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeMaster {
    pub node: NodeId,
    /// Liveness epoch of the node in the system group, which renews the lease while the paxos group is idle. 0 means
    /// none.
    pub liveness: u64,
    pub claim: Claim,
    /// All members at this slot, in ascending order. A node that reads the log from the beginning, and was given no
    /// founders, takes the members from this field.
    pub members: Arc<[NodeId]>,
}

/// Reason why a node may become master. The log checks it as a compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The node waited until the lease of this mastership was over. `lease_slot` is the last slot that renewed the
    /// lease. The claim includes the slot because every slot of the master renews the lease.
    Waited { term: Term, lease_slot: Slot },
    /// The node itself is the master of this mastership.
    Own { term: Term },
    /// The master stopped, and handed the mastership over to this node or to the first member that takes it.
    Consent { term: Term },
}

/// Value that shortens the lease. The master serves for `remaining`, counted from just before it proposed this value.
/// Then `to` may take over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shorten {
    pub term: Term,
    pub to: NodeId,
    pub remaining: Duration,
}

impl Value {
    /// Returns the approximate number of bytes that the value takes, for limits.
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

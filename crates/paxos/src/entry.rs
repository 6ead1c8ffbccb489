//! Entries of a log and their values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{Ballot, NodeId, Slot, Term};

/// Position in a log: a slot, and the ballot of the slot's entry. Two logs that both contain a position are equal up to
/// that position.
///
/// The last positions of two logs determine which log is ahead. The log with the greater ballot is ahead. If the
/// ballots are equal, the log with the greater slot is ahead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    pub ballot: Ballot,
    pub slot: Slot,
}

impl Position {
    /// Position before the first slot.
    pub const START: Position = Position { ballot: Ballot::NONE, slot: Slot(0) };

    /// Returns true if the position may be in the log of a node whose greatest promised ballot is `most`.
    pub(crate) fn is_sound(self, most: Ballot) -> bool {
        self.slot.is_sound() && self.ballot <= most && (self.slot == Slot(0)) == (self.ballot == Ballot::NONE)
    }
}

/// Content of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Ballot under which a leader first proposed the entry. The entry retains this ballot if a later leader decides
    /// the entry.
    pub ballot: Ballot,
    pub value: Value,
}

/// Value that a slot decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Value without content. Like every value, it renews the lease of the master that proposed it.
    Noop,
    /// Contains entries of the application, in order.
    Data(Arc<[Bytes]>),
    BeMaster(BeMaster),
    Shorten(Shorten),
    /// Sets the list of members from this slot on. The list is in ascending order, and differs from the earlier list by
    /// one member.
    Members(Arc<[NodeId]>),
}

/// Value that makes `node` the master if the claim holds at this slot of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeMaster {
    pub node: NodeId,
    /// Liveness epoch of the node in the system group; 0 if the node has none. While the paxos group is idle, a renewal
    /// of this epoch also renews the master's lease.
    pub liveness: u64,
    pub claim: Claim,
    /// All members at this slot, in ascending order. A node that did not receive the first members at its start reads
    /// the members from this field.
    pub members: Arc<[NodeId]>,
}

/// Reason why a node may become master. Each node that applies the `BeMaster` entry compares the claim with the present
/// mastership, as in a compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Claim that the node waited until the lease of the mastership with the term `term` was over. `lease_slot` is the
    /// last slot that renewed this lease. A later slot of the master renews the lease, and makes the claim void.
    Waited { term: Term, lease_slot: Slot },
    /// Claim that the node is already the master, in the term `term`.
    Own { term: Term },
    /// Claim that the master stopped serving, and handed the mastership over to this node or to the first member that
    /// takes over.
    Consent { term: Term },
}

/// Value that shortens the lease. The master serves for the time `remaining`, which begins just before the master
/// proposes this value. After this time, the node `to` may take over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shorten {
    pub term: Term,
    pub to: NodeId,
    pub remaining: Duration,
}

impl Value {
    /// Returns the approximate number of bytes that the value occupies, for comparison with limits.
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

//! Identifiers, counters and instants. Each is a newtype, so that two of them cannot be swapped.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Member of paxos groups. A node that lost its disk returns under another id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// Replicated log. The log [`GroupId::SYSTEM`] records the state of the nodes and of all other paxos groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

impl GroupId {
    pub const SYSTEM: GroupId = GroupId(0);
}

/// Place in a log. The first slot is 1, and 0 stands before the first slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u64);

/// Exclusive bound on the numbers in messages and snapshots. A number below it can be incremented without overflow.
pub(crate) const BEYOND_COUNT: u64 = 1 << 62;

impl Slot {
    pub(crate) fn is_sound(self) -> bool {
        self.0 < BEYOND_COUNT
    }

    #[must_use]
    pub fn next(self) -> Slot {
        Slot(self.0 + 1)
    }

    /// # Panics
    /// Panics if this is slot 0.
    #[must_use]
    pub fn before(self) -> Slot {
        Slot(self.0.checked_sub(1).expect("slot 0 has no predecessor"))
    }
}

/// Right to propose. Acceptors obey the greatest ballot that they know. Two nodes never share a ballot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    pub round: u64,
    pub node: NodeId,
}

impl Ballot {
    /// Ballot below every ballot that a node proposes under.
    pub const NONE: Ballot = Ballot { round: 0, node: NodeId(0) };

    pub(crate) fn is_sound(self) -> bool {
        self.round < BEYOND_COUNT
    }
}

/// Fencing number of a mastership. It is greater than the numbers of all earlier masterships in the same paxos group. 0
/// stands before the first mastership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Identifier of one mastership. Epochs are counted along a log, so two undecided logs may contain different
/// masterships with the same epoch. The ballot distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Term {
    pub epoch: Epoch,
    /// Ballot under which the master won the mastership, and under which it proposes.
    pub ballot: Ballot,
}

impl Term {
    /// Term before the first mastership.
    pub const NONE: Term = Term { epoch: Epoch(0), ballot: Ballot::NONE };

    /// Returns whether `other` was won or renewed later than this mastership. The two may be in different logs. Epochs
    /// alone are comparable only within one log.
    pub(crate) fn is_before(self, other: Term) -> bool {
        (self.ballot, self.epoch) < (other.ballot, other.epoch)
    }

    /// Returns whether this mastership is over if `other` is over.
    pub(crate) fn is_over_with(self, other: Term) -> bool {
        self == other || self.is_before(other)
    }

    pub(crate) fn is_sound(self) -> bool {
        self.epoch.0 < BEYOND_COUNT && self.ballot.is_sound()
    }
}

/// Microseconds of one node's monotonic clock. Instants of different nodes are not comparable. The clock advances while
/// the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the time that passed since `earlier`, or zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(micros(duration)))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.round, self.node.0)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.epoch, self.ballot)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

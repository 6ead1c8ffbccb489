//! Identifiers, counters and instants. Each has its own type, so that the compiler rejects code that confuses two of
//! them.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Id of a node, which can be a member of many paxos groups. A node that lost its disk returns with another id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// Id of a paxos group. The paxos group [`GroupId::SYSTEM`] records the state of the nodes and of all other paxos
/// groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

impl GroupId {
    pub const SYSTEM: GroupId = GroupId(0);
}

/// Number of a place in a log. The first slot is 1, and 0 is the position before the first slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u64);

/// Exclusive upper bound of slots, epochs and rounds of ballots in messages and snapshots. A number below this bound
/// can be incremented without an overflow.
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

/// Ballot with which a node proposes entries. An acceptor rejects proposals with a lower ballot than the greatest
/// ballot that it has promised. Two nodes never have the same ballot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    pub round: u64,
    pub node: NodeId,
}

impl Ballot {
    /// Ballot that is lower than every ballot of a node.
    pub const NONE: Ballot = Ballot { round: 0, node: NodeId(0) };

    pub(crate) fn is_sound(self) -> bool {
        self.round < BEYOND_COUNT
    }
}

/// Fencing number of a mastership. It is greater than the numbers of all earlier masterships in the same paxos group.
/// Before the first mastership, the epoch is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Identifier of a mastership. Undecided entries of two logs may contain different masterships with the same epoch. The
/// ballots of these masterships differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Term {
    pub epoch: Epoch,
    /// Ballot with which the master won the mastership, and with which it proposes entries.
    pub ballot: Ballot,
}

impl Term {
    /// Term before the first mastership.
    pub const NONE: Term = Term { epoch: Epoch(0), ballot: Ballot::NONE };

    /// Returns true if `other` is a later mastership than this mastership. The two masterships may be in different
    /// logs. Within one log, a comparison of the epochs is sufficient.
    pub(crate) fn is_before(self, other: Term) -> bool {
        (self.ballot, self.epoch) < (other.ballot, other.epoch)
    }

    /// Returns true if the end of the mastership `other` implies the end of this mastership.
    pub(crate) fn is_over_with(self, other: Term) -> bool {
        self == other || self.is_before(other)
    }

    pub(crate) fn is_sound(self) -> bool {
        self.epoch.0 < BEYOND_COUNT && self.ballot.is_sound()
    }
}

/// Instant in microseconds, by a node's monotonic clock. Instants of different nodes are not comparable. The clock must
/// advance while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later than this instant.
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

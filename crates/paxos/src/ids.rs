//! Names, numbers and instants; none can be taken for another.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A member of paxos groups. A node that lost its disk comes back under another name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// A replicated log. [`GroupId::SYSTEM`] is the one that keeps what the nodes agree on about all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

impl GroupId {
    pub const SYSTEM: GroupId = GroupId(0);
}

/// A place in a log; the first is 1, and 0 is before all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u64);

/// Nobody counts so far; what is below can be counted on from without a thought of its end.
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
    /// Before the first slot there is nothing.
    #[must_use]
    pub fn before(self) -> Slot {
        Slot(self.0.checked_sub(1).expect("no slot is before slot 0"))
    }
}

/// Who may propose: the greater one is obeyed. Two nodes never share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    pub round: u64,
    pub node: NodeId,
}

impl Ballot {
    /// Below every ballot that somebody proposes under.
    pub const NONE: Ballot = Ballot { round: 0, node: NodeId(0) };

    pub(crate) fn is_sound(self) -> bool {
        self.round < BEYOND_COUNT
    }
}

/// The number of a mastership, which fences: each is greater than all before it in its paxos group. 0 is before all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Names one mastership. Epochs count along a log, so that logs which are not decided may have different ones of one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tenure {
    pub epoch: Epoch,
    /// Under which its master won it, and proposes.
    pub ballot: Ballot,
}

impl Tenure {
    /// Before any.
    pub const NONE: Tenure = Tenure { epoch: Epoch(0), ballot: Ballot::NONE };

    /// Of two masterships in any logs: whether the other was won, or renewed, later. Epochs tell that within one log only.
    pub(crate) fn is_before(self, other: Tenure) -> bool {
        (self.ballot, self.epoch) < (other.ballot, other.epoch)
    }

    /// Whether it is over once that one is.
    pub(crate) fn is_over_with(self, other: Tenure) -> bool {
        self == other || self.is_before(other)
    }

    pub(crate) fn is_sound(self) -> bool {
        self.epoch.0 < BEYOND_COUNT && self.ballot.is_sound()
    }
}

/// Microseconds by one node's own monotonic clock, which says nothing to another node. It goes on while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// How long ago `earlier` was; zero if it is yet to come.
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

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.epoch, self.ballot)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

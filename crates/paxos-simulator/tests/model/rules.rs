//! Rules of the protocol, which tests can disable, and the bounds of an exploration.

/// Parts of the present mastership that a node compares with the claim of a `BeMaster` entry. Each variant includes the
/// comparisons of the variants before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Compare {
    Nothing,
    Epoch,
    LeaseSlot,
    /// Also compares the ballot under which the mastership began, because the logs of two nodes may contain different
    /// masterships with the same epoch.
    Ballot,
}

/// Instant from which a master counts its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseFrom {
    Proposed,
    Decided,
}

/// Leader that may consent to a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consenter {
    /// Only a leader whose `BeMaster` entry is decided and began the present mastership.
    Decided,
    /// Any leader, even if its `BeMaster` entry is undecided and may still become void.
    Proposed,
}

/// Log that determines how long a candidate waits, and which claim it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimBy {
    /// The candidate's own log, before phase 1.
    Candidate,
    /// The candidate's own log before phase 1, or its log with the entries that it pulled in phase 1. The candidate
    /// chooses the second log only if the rules allow a claim based on it.
    CandidateAndLeader,
    /// The log with the entries that the candidate pulled in phase 1, although the candidate waited only for the end of
    /// the lease in its earlier log.
    Unwaited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Acceptors' line of defence: a node that accepted an entry of a master promises no ballot of another node until
    /// the lease is over.
    pub(crate) acceptors_wait: bool,
    /// First half of the log's line of defence: a node campaigns only after the lease is over according to its own log.
    pub(crate) candidates_wait: bool,
    /// Second half of the log's line of defence: a node that applies a claim compares it with the present mastership.
    pub(crate) compare: Compare,
    pub(crate) claim_by: ClaimBy,
    pub(crate) lease_from: LeaseFrom,
    pub(crate) consenter: Consenter,
    /// A takeover before the end of the lease needs the master's consent.
    pub(crate) takeover_needs_consent: bool,
    /// A master that consented to a takeover does not serve as master again in the same epoch.
    pub(crate) consent_binds: bool,
    /// A leader that pulled entries of another mastership takes the time since the last renewal from the promise of the
    /// node that sent the entries, and not from its own log.
    pub(crate) pulled_waits: bool,
    /// If renewals of a master's liveness also renew its lease, another node may replace the master only after the
    /// system group has decided that this liveness has expired.
    pub(crate) liveness_blocks: bool,
    /// The liveness of a node expires only after the end of each lease that the node renewed by this liveness.
    pub(crate) expiry_waits: bool,
    /// Renewals of a master's liveness also renew its lease only if the master's last `BeMaster` entry, decided or not,
    /// names this liveness.
    pub(crate) uncommitted_lives: bool,
    /// After a restart, a node waits for the end of a whole lease, as if it had just accepted an entry of the master.
    pub(crate) restart_waits: bool,
    /// After a restart, a node that was master does not act as master until it becomes master again.
    pub(crate) restart_ends_mastership: bool,
    /// A leader counts the copies of an entry only if the entry has the leader's own ballot. Once a quorum has such an
    /// entry, this entry and all earlier entries are decided.
    pub(crate) own_ballot_decides: bool,
}

impl Rules {
    /// Rules of the implementation, which has both lines of defence. Each of them is sufficient alone.
    pub(crate) const BOTH: Rules = Rules {
        acceptors_wait: true,
        candidates_wait: true,
        compare: Compare::Ballot,
        claim_by: ClaimBy::Candidate,
        lease_from: LeaseFrom::Proposed,
        consenter: Consenter::Decided,
        takeover_needs_consent: true,
        consent_binds: true,
        pulled_waits: true,
        liveness_blocks: true,
        expiry_waits: true,
        uncommitted_lives: true,
        restart_waits: true,
        restart_ends_mastership: true,
        own_ballot_decides: true,
    };
    pub(crate) const ACCEPTORS: Rules = Rules { candidates_wait: false, compare: Compare::Nothing, ..Rules::BOTH };
    pub(crate) const LOG: Rules = Rules { acceptors_wait: false, ..Rules::BOTH };
    pub(crate) const NEITHER: Rules = Rules { acceptors_wait: false, ..Rules::ACCEPTORS };
}

/// State in which an exploration starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All logs are empty, and no node has been master yet.
    Empty,
    /// Node 0 has just become master under ballot 1, and all three nodes have its `BeMaster` entry.
    Mastered,
    /// All nodes have the `BeMaster` entry of the start state `Mastered`, but no node is leader or master. In slot 2,
    /// node 0 has an entry of ballot 1, and node 1 has an entry of ballot 2. No other node has one of these entries.
    Forked,
}

/// Bounds that make the number of states finite. Time has no bound: the model contains no instants, but only durations,
/// which it counts at most until the lease is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) start: Start,
    /// Maximum number of ballots, including the ballots at the start.
    pub(crate) ballots: u8,
    pub(crate) slots: usize,
    /// Maximum number of data entries in a log.
    pub(crate) data: usize,
    /// Maximum number of consents: 0 or 1.
    pub(crate) consents: u8,
    pub(crate) crashes: u8,
    /// True if node 0 has a liveness epoch in the system group. The node has only one epoch, and does not crash.
    pub(crate) lives: bool,
    /// Maximum number of times that a clock runs ahead of the other clocks by a tick.
    pub(crate) skews: u8,
    /// Number of ticks for which nodes wait before they replace a master.
    pub(crate) wait: u8,
    /// True if a leader's entries may reach other nodes before its own disk, or may never reach its own disk.
    pub(crate) slow_disk: bool,
    /// True if the exploration treats two states as equal when they differ only in the names of nodes. This reduces the
    /// number of states, but makes traces hard to read.
    pub(crate) symmetric: bool,
}

/// Number of ticks of a lease. With a lease of one tick, no slot could renew a lease before its end.
pub(crate) const LEASE: u8 = 2;

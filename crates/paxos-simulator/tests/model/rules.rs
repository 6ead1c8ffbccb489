//! Rules of the protocol, which tests can disable, and the bounds of an exploration.

/// Parts of the mastership with which the log compares the claim of a `BeMaster` entry. Each variant includes the
/// comparisons of the variants before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Compare {
    Nothing,
    Epoch,
    LeaseSlot,
    /// Also compares the ballot under which the mastership began, because two branches of a log may contain the same
    /// epoch.
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
    /// Only the leader whose decided `BeMaster` entry began the epoch.
    Decided,
    /// Also a leader whose `BeMaster` entry may still become void.
    Proposed,
}

/// Log that determines how long a candidate waits, and which claim it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimBy {
    /// The candidate's own log, before phase 1.
    Candidate,
    /// The candidate's own log before phase 1, or the log after phase 1 if the rules allow a claim by that log.
    CandidateAndLeader,
    /// The log after phase 1, although the candidate waited only according to its own log.
    Unwaited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Acceptors' line of defence: a node that accepted an entry of a master promises no ballot of another node until
    /// the lease is over.
    pub(crate) acceptors_wait: bool,
    /// First half of the log's line of defence: a node campaigns only after the lease is over according to its own log.
    pub(crate) candidates_wait: bool,
    /// Second half of the log's line of defence: the log compares each claim with the present mastership.
    pub(crate) compare: Compare,
    pub(crate) claim_by: ClaimBy,
    pub(crate) lease_from: LeaseFrom,
    pub(crate) consenter: Consenter,
    /// A takeover before the end of the lease needs the master's consent.
    pub(crate) takeover_needs_consent: bool,
    /// A master that consented to a takeover does not serve again in the same epoch.
    pub(crate) consent_binds: bool,
    /// A leader that pulls entries of another mastership takes the time since the last renewal from the promise, and
    /// not from its own log.
    pub(crate) pulled_waits: bool,
    /// A node may replace a master that serves by its liveness only once the system group has decided that the liveness
    /// is over.
    pub(crate) liveness_blocks: bool,
    /// The liveness of a node expires only after the end of each lease that the node renewed by this liveness.
    pub(crate) expiry_waits: bool,
    /// A master serves by its liveness only if its last `BeMaster` entry names the liveness, even if this entry is
    /// undecided.
    pub(crate) uncommitted_lives: bool,
    /// After a restart, a node waits for the end of a whole lease, as if it had just accepted an entry of the master.
    pub(crate) restart_waits: bool,
    /// A restarted master serves only after it becomes master again.
    pub(crate) restart_ends_mastership: bool,
    /// To decide entries, a leader counts copies only of entries of its own ballot. A decided entry of this ballot also
    /// decides all earlier entries.
    pub(crate) own_ballot_decides: bool,
}

impl Rules {
    /// Rules of the implementation. Each of the two lines of defence is sufficient alone.
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
    /// All logs are empty, and there was no master.
    Empty,
    /// Node 0 has just become master under ballot 1, and all three nodes have its `BeMaster` entry.
    Mastered,
    /// All nodes have the `BeMaster` entry of the start state `Mastered`, but no node serves. Node 0 under ballot 1 and
    /// node 1 under ballot 2 each have an entry in slot 2 that no other node has. Neither node leads.
    Forked,
}

/// Bounds that make the number of states finite. Time has no bound: the model contains no instants, but only durations
/// that end with the lease.
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
    /// True if the exploration treats states as equal that differ only in the names of nodes. This reduces the number
    /// of states, but makes traces hard to read.
    pub(crate) symmetric: bool,
}

/// Number of ticks of a lease. With a lease of one tick, no slot could renew a lease before its end.
pub(crate) const LEASE: u8 = 2;

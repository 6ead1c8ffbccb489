//! Rules of the protocol as switches, and the bounds of configurations.

/// Parts of the mastership with which the claim of a `BeMaster` entry is compared. Each variant includes the
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
    /// The leader whose decided `BeMaster` entry began the epoch.
    Decided,
    /// Also a leader whose `BeMaster` entry may still become void.
    Proposed,
}

/// Log by which a candidate waits and makes its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimBy {
    /// The candidate's own log, before phase 1.
    Candidate,
    /// Also the log after phase 1, if the same rule allows the claim.
    CandidateAndLeader,
    /// The log after phase 1, although the candidate waited only by its own log.
    Unwaited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The acceptors' line: a node that accepted an entry of a master promises no other node until the lease is over.
    pub(crate) acceptors_wait: bool,
    /// The log's line, first half: a node campaigns only after the lease is over by its own log.
    pub(crate) candidates_wait: bool,
    /// The log's line, second half: the log compares claims.
    pub(crate) compare: Compare,
    pub(crate) claim_by: ClaimBy,
    pub(crate) lease_from: LeaseFrom,
    pub(crate) consenter: Consenter,
    /// A takeover before the lease is over needs the master's consent.
    pub(crate) takeover_needs_consent: bool,
    /// A master that consented no longer serves in that epoch.
    pub(crate) consent_binds: bool,
    /// The age of pulled entries is the age that the promise states, not the time since the leader's own last entry.
    pub(crate) pulled_waits: bool,
    /// A master with liveness may be replaced only once its liveness is decided to be over.
    pub(crate) liveness_blocks: bool,
    /// The liveness of a node expires only after its time.
    pub(crate) expiry_waits: bool,
    /// A master serves by its liveness only if its last `BeMaster` entry names the liveness, decided or not.
    pub(crate) uncommitted_lives: bool,
    /// After a restart, a node waits as if it had just accepted an entry.
    pub(crate) restart_waits: bool,
    /// A restarted master serves only after it becomes master again.
    pub(crate) restart_ends_mastership: bool,
    /// Only an entry of the leader's own ballot is decided by the number of its copies.
    pub(crate) own_ballot_decides: bool,
}

impl Rules {
    /// Rules of the implementation. Each line of defence suffices alone.
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

/// Start of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All logs are empty, and there was no master.
    Empty,
    /// Node 0 has just become master under ballot 1, and all three nodes have its `BeMaster` entry.
    Mastered,
    /// All nodes have the entry of `Mastered`, and a long time has passed. Then node 0 under ballot 1 and node 1 under
    /// ballot 2 each left an entry in slot 2 that no other node has, and both no longer lead.
    Forked,
}

/// Bounds that make the number of states finite. Time has no bound: clocks are durations that end with the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) start: Start,
    /// Number of all ballots, including those at the start.
    pub(crate) ballots: u8,
    pub(crate) slots: usize,
    /// Maximum number of data entries in a log.
    pub(crate) data: usize,
    /// Number of consents, none or one.
    pub(crate) consents: u8,
    pub(crate) crashes: u8,
    /// True if node 0 has a liveness epoch in the system group. It has one epoch in a history, and does not crash.
    pub(crate) lives: bool,
    /// Number of times that a clock runs ahead by a tick.
    pub(crate) skews: u8,
    /// Number of ticks for which other nodes wait.
    pub(crate) wait: u8,
    /// A leader's entries may reach other nodes before its own disk, and may never reach its own disk.
    pub(crate) slow_disk: bool,
    /// Treats states as equal if they differ only in the names of nodes. This reduces the number of states, but makes
    /// traces hard to read.
    pub(crate) symmetric: bool,
}

/// Number of ticks of a lease. With one tick, no slot could renew a running lease.
pub(crate) const LEASE: u8 = 2;

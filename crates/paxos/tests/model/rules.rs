//! The rules as switches, and how much of the world a configuration covers.

/// How much of the mastership a BeMaster's claim is compared with. Each compares what those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Compare {
    Nothing,
    Epoch,
    LeaseSlot,
    /// And the ballot under which it began: two branches of a log may both have an epoch of one number.
    Ballot,
}

/// When the instant is taken from which a master counts its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseFrom {
    Proposed,
    Decided,
}

/// Who may promise to serve no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consenter {
    /// The leader by whose decided BeMaster the epoch began.
    Decided,
    /// Also a leader whose BeMaster may still come to nothing.
    Proposed,
}

/// By which log a candidate's claim is made, and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimBy {
    /// By its own, before phase 1.
    Candidate,
    /// Once more by the one that phase 1 left, where the same rule allows it.
    CandidateAndLeader,
    /// By the one that phase 1 left, though only the candidate's own was waited for.
    Unwaited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The acceptors' line: whoever accepted from a master promises nobody else until its lease is over.
    pub(crate) acceptors_wait: bool,
    /// The log's line, first half: a node campaigns only when the lease is over by its own log.
    pub(crate) candidates_wait: bool,
    /// The log's line, second half.
    pub(crate) compare: Compare,
    pub(crate) claim_by: ClaimBy,
    pub(crate) lease_from: LeaseFrom,
    pub(crate) consenter: Consenter,
    /// A takeover before the lease is over needs the master's consent.
    pub(crate) steal_needs_consent: bool,
    /// Whoever has consented serves no more in that epoch.
    pub(crate) consent_binds: bool,
    /// What is pulled counts as proposed when its giver says, not when the leader last heard of its own.
    pub(crate) pulled_waits: bool,
    /// Who is master by its liveness is followed only once that is decided to be over.
    pub(crate) living_hold: bool,
    /// It is decided to be over only when it is.
    pub(crate) expiry_waits: bool,
    /// A master serves by its liveness only if all that it wrote since says so, decided or not.
    pub(crate) tip_lives: bool,
    /// After a restart a node waits as if it had just accepted.
    pub(crate) restart_waits: bool,
    /// A restarted master is none until it wins again.
    pub(crate) restart_ends_mastership: bool,
    /// Only an entry of the leader's own ballot is decided by being counted.
    pub(crate) own_ballot_decides: bool,
}

impl Rules {
    /// As built. Either line of defence suffices alone.
    pub(crate) const BOTH: Rules = Rules {
        acceptors_wait: true,
        candidates_wait: true,
        compare: Compare::Ballot,
        claim_by: ClaimBy::Candidate,
        lease_from: LeaseFrom::Proposed,
        consenter: Consenter::Decided,
        steal_needs_consent: true,
        consent_binds: true,
        pulled_waits: true,
        living_hold: true,
        expiry_waits: true,
        tip_lives: true,
        restart_waits: true,
        restart_ends_mastership: true,
        own_ballot_decides: true,
    };
    pub(crate) const ACCEPTORS: Rules = Rules { candidates_wait: false, compare: Compare::Nothing, ..Rules::BOTH };
    pub(crate) const LOG: Rules = Rules { acceptors_wait: false, ..Rules::BOTH };
    pub(crate) const NEITHER: Rules = Rules { acceptors_wait: false, ..Rules::ACCEPTORS };
}

/// From where a configuration starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Empty logs: nobody ever was master.
    Empty,
    /// Node 0 has just become master under ballot 1, and all three nodes have its BeMaster.
    Mastered,
    /// The same long ago; then node 0 under ballot 1 and node 1 under ballot 2 each left an entry in slot 2 that nobody
    /// else has, and lead no more.
    Forked,
}

/// What is bounded, so that there is an end to the states. Time is not: clocks are kept as spans that end with the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) start: Start,
    /// How many ballots there are in all, those at the start included.
    pub(crate) ballots: u8,
    pub(crate) slots: usize,
    /// How many data entries a log may hold.
    pub(crate) data: usize,
    /// How many consents are given: none or one.
    pub(crate) consents: u8,
    pub(crate) crashes: u8,
    /// Whether node 0 has a liveness epoch in the system group. It has one in a history, and does not crash.
    pub(crate) lives: bool,
    /// How often a clock runs a tick ahead of the true one.
    pub(crate) skews: u8,
    /// How long the others wait, in ticks.
    pub(crate) wait: u8,
    /// A leader's entries may reach others before its own disk, and never reach that.
    pub(crate) slow_disk: bool,
    /// Nodes that differ in nothing but their names are taken for one: fewer states, but stories that are hard to read.
    pub(crate) symmetric: bool,
}

/// Ticks of a lease. One would not do: a slot could not renew a lease that still runs.
pub(crate) const LEASE: u8 = 2;

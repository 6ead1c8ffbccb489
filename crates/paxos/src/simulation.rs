//! Deliberate bugs, and lines of defence that can be taken away, for the simulator. In every other build there are none.

#![cfg_attr(
    not(feature = "mutants"),
    expect(unreachable_pub, dead_code, reason = "only the simulator's build can set them")
)]

/// Which line of defence keeps two masters apart. Each suffices alone, and the simulator tries each alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Defence {
    #[default]
    Both,
    /// Acceptors promise nobody else while a lease may run; candidates ask at any time, and nothing is compared.
    Acceptors,
    /// Candidates wait, and the log compares; acceptors promise at any time.
    Log,
}

/// A bug that the simulator must catch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// An acceptor's promise is not made durable.
    ForgetsPromise,
    /// A candidate leads by a ballot that its own disk may not have.
    LeadsBeforeSync,
    /// A vote counts before it is durable.
    VotesBeforeSync,
    /// A follower votes for entries whose predecessors it does not have.
    VotesWithGap,
    /// A leader puts new entries behind what it sent in an earlier session.
    MergesIntoStaleAccept,
    /// Whoever writes that it is master is.
    SkipsCompareAndSwap,
    /// A candidate's compare-and-swap looks at the epoch, and not at the slots that renewed it.
    ComparesMasterRecordOnly,
    /// A lease counts from when the leader learned that it was decided.
    LeaseFromDecision,
    /// Who was master when it stopped serves when it starts.
    RestartedServes,
    /// A node that is to take over does so without being let.
    StealsWithoutConsent,
    /// A master that left its epoch to another goes on serving.
    ServesAfterConsent,
    /// A node that starts takes all leases to be over.
    ForgetsWaitAtRestart,
    /// Copies of an entry of an earlier ballot decide it.
    CountsOldBallot,
    /// An accept cuts whatever follows it.
    TruncatesBelowDecided,
    /// The log is cut behind entries that no snapshot has.
    TrimsPastDeadMember,
    /// A follower takes its whole log to be the leader's.
    DecidesUnmatched,
    /// A second change of members begins before the first is decided.
    ChangesMembersTwice,
    /// The master's cap from a shortened lease is counted from its decision.
    ShortensFromDecision,
    /// A candidate takes its own log, and not the one that is ahead.
    IgnoresLogAhead,
    /// What is decided is told once, whether it was heard or not.
    TellsOnce,
    /// A master whose paxos group is idle is taken to be gone, though its node is alive.
    TakesFromTheLiving,
    /// A process takes the lease of the one before it for its own.
    LivesOn,
    /// A token of moves is given while there is one.
    TwoMoveTokens,
    /// Another's token is taken over without waiting for what its holder may have begun.
    TakesTokenAtOnce,
    /// Orders count from when they come, and not from when they were asked for.
    OrdersFromArrival,
    /// A master says when its lease ends though that is after the end of its orders.
    LeavesAfterOrders,
    /// A node whose lease may still run is decided to be gone.
    ExpiresEarly,
    /// What comes after a failed sync is taken to be durable once a later one succeeds.
    OutlivesFailedSync,
}

#[cfg(feature = "mutants")]
impl Mutant {
    pub const ALL: [Mutant; 28] = [
        Mutant::ForgetsPromise,
        Mutant::LeadsBeforeSync,
        Mutant::VotesBeforeSync,
        Mutant::VotesWithGap,
        Mutant::MergesIntoStaleAccept,
        Mutant::SkipsCompareAndSwap,
        Mutant::ComparesMasterRecordOnly,
        Mutant::LeaseFromDecision,
        Mutant::RestartedServes,
        Mutant::StealsWithoutConsent,
        Mutant::ServesAfterConsent,
        Mutant::ForgetsWaitAtRestart,
        Mutant::CountsOldBallot,
        Mutant::TruncatesBelowDecided,
        Mutant::TrimsPastDeadMember,
        Mutant::DecidesUnmatched,
        Mutant::ChangesMembersTwice,
        Mutant::ShortensFromDecision,
        Mutant::IgnoresLogAhead,
        Mutant::TellsOnce,
        Mutant::TakesFromTheLiving,
        Mutant::LivesOn,
        Mutant::TwoMoveTokens,
        Mutant::TakesTokenAtOnce,
        Mutant::OrdersFromArrival,
        Mutant::LeavesAfterOrders,
        Mutant::ExpiresEarly,
        Mutant::OutlivesFailedSync,
    ];
}

/// What of the rules does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deviation {
    #[cfg(feature = "mutants")]
    pub defence: Defence,
    #[cfg(feature = "mutants")]
    pub mutant: Option<Mutant>,
}

impl Deviation {
    #[must_use]
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        return {
            let _ = mutant;
            false
        };
    }

    fn defence(self) -> Defence {
        #[cfg(feature = "mutants")]
        return self.defence;
        #[cfg(not(feature = "mutants"))]
        return Defence::Both;
    }

    pub(crate) fn acceptors_defend(self) -> bool {
        self.defence() != Defence::Log
    }

    pub(crate) fn log_defends(self) -> bool {
        self.defence() != Defence::Acceptors
    }
}

//! Deliberate bugs, and switches that disable lines of defence, for the simulator. All other builds have none of them.

#![cfg_attr(
    not(feature = "mutants"),
    expect(unreachable_pub, dead_code, reason = "only the simulator's build can set them")
)]

/// Line of defence that keeps two masters apart. Each line suffices alone, and the simulator tests each alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Defence {
    #[default]
    Both,
    /// Acceptors promise no other candidate while a lease may run. Candidates campaign at any time, and the log
    /// compares no claims.
    Acceptors,
    /// Candidates wait, and the log compares their claims. Acceptors promise at any time.
    Log,
}

/// Deliberate bug that the simulator must catch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// An acceptor does not make its promise durable.
    ForgetsPromise,
    /// A candidate leads under a ballot that may not be durable on its own disk.
    LeadsBeforeSync,
    /// A vote counts before it is durable.
    VotesBeforeSync,
    /// A follower votes for entries although it lacks their predecessors.
    VotesWithGap,
    /// A leader sends new entries as the successors of entries that it sent in an earlier session.
    MergesIntoStaleAccept,
    /// The log accepts every `BeMaster` entry without comparing its claim.
    SkipsCompareAndSwap,
    /// The log compares the epoch of a claim, but not the last slot that renewed the lease.
    ComparesMasterRecordOnly,
    /// A lease counts from when the leader learned that its slot was decided.
    LeaseFromDecision,
    /// A node that was master when it stopped serves when it starts again.
    RestartedServes,
    /// A node takes over without the consent of the master.
    StealsWithoutConsent,
    /// A master that handed over its mastership continues to serve.
    ServesAfterConsent,
    /// A node that starts treats all leases as over.
    ForgetsWaitAtRestart,
    /// An entry of an earlier ballot is decided by the number of its copies.
    CountsOldBallot,
    /// An accept cuts all entries that follow its first position.
    TruncatesBelowDecided,
    /// A snapshot trims entries that it does not contain.
    TrimsPastDeadMember,
    /// A follower treats its whole log as equal to the leader's.
    DecidesUnmatched,
    /// A second membership change begins before the first is decided.
    ChangesMembersTwice,
    /// The end of a shortened lease counts from the decision of its record.
    ShortensFromDecision,
    /// A candidate uses its own log although another log is ahead.
    IgnoresLogAhead,
    /// A leader sends the last decided slot only once, even if the message is lost.
    TellsOnce,
    /// A node takes over from a master whose paxos group is idle although the master's node is alive.
    TakesFromTheLiving,
    /// A process uses the lease of an earlier process of its node.
    LivesOn,
    /// The move token is granted while another process holds it.
    TwoMoveTokens,
    /// A mover takes over a token without waiting for the steps that its holder may have begun.
    TakesTokenAtOnce,
    /// Orders count from their arrival, not from the report to which they respond.
    OrdersFromArrival,
    /// A master shortens its lease to an end that is after the end of its orders.
    LeavesAfterOrders,
    /// A node is declared dead while its lease may still run.
    ExpiresEarly,
    /// Records appended after a failed sync are treated as durable once a later sync succeeds.
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

/// Deviation from the rules: a disabled line of defence, or a deliberate bug.
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

//! Deliberate bugs, and switches that disable safeguards. Only builds for the simulator can enable them.

#![cfg_attr(
    not(feature = "mutants"),
    expect(unreachable_pub, dead_code, reason = "only the simulator's build enables deliberate bugs")
)]

/// Safeguards that are enabled. Each safeguard alone is sufficient to ensure that a paxos group never has two masters
/// at the same time. The simulator therefore also tests each safeguard alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Defence {
    #[default]
    Both,
    /// An acceptor promises to obey no ballot of a node other than the master until the master's lease is certainly
    /// over. A candidate may start a candidacy at any time. A node that applies a `BeMaster` entry does not check the
    /// entry's claim.
    Acceptors,
    /// A candidate waits until the master's lease is over. When a node applies a `BeMaster` entry of the log, it
    /// compares the entry's claim with the mastership in its own state. An acceptor makes promises at any time.
    Log,
}

/// Deliberate bug that the simulator must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// An acceptor does not make its promise durable.
    ForgetsPromise,
    /// A candidate leads with a ballot whose promise might not be durable on its own disk.
    LeadsBeforeSync,
    /// A member votes for entries before they are durable on its own disk.
    VotesBeforeSync,
    /// A follower votes for entries although it lacks the entries before them.
    VotesWithGap,
    /// A leader sends entries with the position at the end of its previous message, although the entries may belong
    /// after another position.
    MergesIntoStaleAccept,
    /// A node applies every `BeMaster` entry of the log and does not check the entry's claim.
    SkipsCompareAndSwap,
    /// A node that applies a `BeMaster` entry compares the term of the entry's claim, but not the last slot that
    /// renewed the lease.
    ComparesMasterRecordOnly,
    /// A lease counts from the decision of the slot that renews it, not from the proposal of this slot.
    LeaseFromDecision,
    /// A node that was master when it stopped serves as soon as it starts again.
    RestartedServes,
    /// A node takes over without the consent of the master.
    StealsWithoutConsent,
    /// A master that handed over its mastership continues to serve.
    ServesAfterConsent,
    /// A node that starts treats all leases as over.
    ForgetsWaitAtRestart,
    /// A leader treats an entry of an earlier ballot as decided if a quorum has the entry.
    CountsOldBallot,
    /// A follower that receives an accept message cuts all entries after the position in the message, even if they are
    /// equal to the new entries.
    TruncatesBelowDecided,
    /// A node trims entries that its snapshot does not contain.
    TrimsPastDeadMember,
    /// A follower treats its whole log as equal to the leader's log.
    DecidesUnmatched,
    /// A leader proposes a second change of members before the first change is decided.
    ChangesMembersTwice,
    /// The remaining time of a shortened lease counts from the decision of the `Shorten` entry, not from its proposal.
    ShortensFromDecision,
    /// A candidate uses its own log although the log of another member is ahead.
    IgnoresLogAhead,
    /// A leader sends the last decided slot only once, even if the message is lost.
    TellsOnce,
    /// A node takes over from a master whose paxos group is idle, although the master's node is alive.
    TakesFromTheLiving,
    /// A process uses the lease of an earlier process of its node.
    LivesOn,
    /// A process takes the move token while another process holds it.
    TwoMoveTokens,
    /// A mover takes over a token at once, and does not wait until the steps of the holder are over.
    TakesTokenAtOnce,
    /// The time limit of orders counts from the arrival of the orders, not from the report to which they respond.
    OrdersFromArrival,
    /// A master shortens its lease although the lease then ends after the end of the master's orders.
    LeavesAfterOrders,
    /// A node proposes that another node is dead although the lease of the other node might not be over.
    ExpiresEarly,
    /// A node continues after a failed sync, and treats its records as durable once a later sync succeeds.
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

/// Deviation from the rules of this crate: a disabled safeguard, a deliberate bug, or both.
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

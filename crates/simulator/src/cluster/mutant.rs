//! Deliberate bugs of clusters. The checkers must detect each bug. A bug changes the messages between a member and the
//! other members, the store or the coordination engine.

use crate::single_node;

/// A plausible bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// An owner hands over a shard without its list of attempts in flight.
    HandsOverNothing,
    /// The store accepts a write with any term, even with an old term.
    ForgetsTerms,
    /// A creator reads `closed` before its due row is durable, instead of afterwards.
    ReadsClosedBeforeItsRow,
    /// A member renews its lease without reading the cancellation records.
    RenewsWithoutCancellations,
    /// The coordination engine returns the time of the member's own clock if this clock is ahead, so the member does not
    /// detect that its clock is wrong.
    ConfirmsFastClocks,
    /// A member responds "cancelled" when the cancellation record is durable, without a request to the owner.
    CancelsWithoutOwner,
    /// A member deletes the entries of the inbox when it reads them, before their effect is durable.
    SettlesBeforeCreating,
    /// A member carries out the newest entry of the inbox first.
    ReversesTheInbox,
    /// After the store has returned to an earlier state, it assigns the lost terms again.
    ReusesLostTerms,
    /// After the store has returned to an earlier state, the owners continue with their positions in memory.
    KeepsOwnersAfterLoss,
    /// An owner marks no missed run as a run that an earlier owner may have started.
    MarksNoMissedRun,
    /// A member's transport to the bus ignores the deadline of an attempt, so that it sends records after the lease.
    SendsAfterTheDeadline,
    /// A producer of the bus sends records after the timeout of their attempts.
    SendsAfterTheTimeout,
}

impl Mutant {
    /// Returns the same bug of the single-node scenario. Returns `None` if that scenario does not have the bug.
    pub(super) fn single_node(self) -> Option<single_node::Mutant> {
        match self {
            Mutant::ReadsClosedBeforeItsRow => Some(single_node::Mutant::ReadsClosedBeforeItsRow),
            Mutant::MarksNoMissedRun => Some(single_node::Mutant::MarksNoMissedRun),
            Mutant::SendsAfterTheDeadline => Some(single_node::Mutant::SendsAfterTheDeadline),
            Mutant::SendsAfterTheTimeout => Some(single_node::Mutant::SendsAfterTheTimeout),
            Mutant::HandsOverNothing
            | Mutant::ForgetsTerms
            | Mutant::RenewsWithoutCancellations
            | Mutant::ConfirmsFastClocks
            | Mutant::CancelsWithoutOwner
            | Mutant::SettlesBeforeCreating
            | Mutant::ReversesTheInbox
            | Mutant::ReusesLostTerms
            | Mutant::KeepsOwnersAfterLoss => None,
        }
    }
}

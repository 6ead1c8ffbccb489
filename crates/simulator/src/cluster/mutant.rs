//! Deliberate bugs of clusters, to see that the checkers notice. Each is a line in the way of one member to the others,
//! to the store or to the coordination engine.

use crate::spine;

/// A bug that somebody could have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// An owner that lets go does not say what it has in flight.
    HandsOverNothing,
    /// The store takes writes of any term.
    ForgetsTerms,
    /// A creator looks at `closed` before its row is durable, not after.
    ReadsClosedBeforeItsRow,
    /// A lease is renewed without a look at the cancel marks.
    RenewsWithoutMarks,
    /// "Cancelled" is answered as soon as the mark is durable, without the owner.
    CancelsWithoutAsking,
}

impl Mutant {
    /// The same bug, where it is one of a process alone, too.
    pub(super) fn of_spine(self) -> Option<spine::Mutant> {
        match self {
            Mutant::ReadsClosedBeforeItsRow => Some(spine::Mutant::ReadsClosedBeforeItsRow),
            Mutant::HandsOverNothing
            | Mutant::ForgetsTerms
            | Mutant::RenewsWithoutMarks
            | Mutant::CancelsWithoutAsking => None,
        }
    }
}

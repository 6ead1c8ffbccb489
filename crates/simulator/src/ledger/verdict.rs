//! The promises themselves, one function each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use domain::{Occurrence, Revision, RunState, Timestamp};

use super::{Ask, Book, Callback, Cancel, Interruptions, Seen};

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    #[error("lost: {occurrence:?} was acknowledged and has no final outcome, after {callbacks} callbacks")]
    Lost { occurrence: Occurrence, callbacks: usize },
    #[error("unresolved: a callback of {0:?} was made, nothing interrupted it, and it has no final outcome")]
    Unresolved(Occurrence),
    #[error("two outcomes: {occurrence:?} is {own:?}, and among the missed ones from {first} to {last}")]
    TwoOutcomes { occurrence: Occurrence, own: RunState, first: Timestamp, last: Timestamp },
    #[error("changed: the outcome of {occurrence:?} was {before:?} and is {after:?}")]
    OutcomeChanged { occurrence: Occurrence, before: RunState, after: RunState },
    #[error("early: {occurrence:?} began when {member}'s clock showed {clock}")]
    Early { occurrence: Occurrence, member: String, clock: Timestamp },
    #[error("after the cancel: {occurrence:?} began at {began_at:?}, its cancel was answered at {answered_at:?}")]
    AfterCancel { occurrence: Occurrence, began_at: Duration, answered_at: Duration },
    #[error("in flight at the cancel: {occurrence:?} began at {began_at:?}, \"cancelled\" was said at {answered_at:?}")]
    InFlightAtCancel { occurrence: Occurrence, began_at: Duration, answered_at: Duration },
    #[error("old revision: {occurrence:?} began at {began_at:?}, its change was answered at {answered_at:?}")]
    OldRevision { occurrence: Occurrence, began_at: Duration, answered_at: Duration },
    #[error(
        "double: {occurrence:?}, attempt {attempt}, began at {began_at:?}, after attempt {earlier} at {earlier_at:?}, \
         and nothing interrupted that"
    )]
    Double { occurrence: Occurrence, attempt: u16, began_at: Duration, earlier: u16, earlier_at: Duration },
    #[error("after the outcome: {occurrence:?} began at {began_at:?}, its outcome was there at {seen_at:?}")]
    AfterOutcome { occurrence: Occurrence, began_at: Duration, seen_at: Duration },
    #[error("missed and called: {0:?} is recorded as missed, and a callback of it was made")]
    MissedAndCalled(Occurrence),
    #[error("success from nowhere: {0:?} is recorded as succeeded, and no receiver accepted it")]
    SucceededUnaccepted(Occurrence),
    #[error("cancelled unasked: {0:?} is recorded as cancelled, and nobody cancelled or changed it")]
    CancelledUnasked(Occurrence),
    #[error("unexpected: {0:?} is not an occurrence of its schedule")]
    Unexpected(Occurrence),
    #[error("unasked: callbacks of {schedules} schedules that nobody was told of, but {creates} creates broke off")]
    Unasked { schedules: usize, creates: usize },
}

/// What came of a run of the world.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Occurrences that had to have an outcome.
    pub expected: usize,
    pub callbacks: usize,
    /// Callbacks that came again because their attempt was in flight at an interruption: allowed.
    pub doubles: usize,
    /// Expected instants that are recorded as missed.
    pub missed: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 20;
        let Verdict { violations, expected, callbacks, doubles, missed } = self;
        write!(f, "{} violations; ", violations.len())?;
        write!(f, "{expected} occurrences expected, {callbacks} callbacks, {doubles} doubles, {missed} missed")?;
        for violation in violations.iter().take(SHOWN_MAX) {
            write!(f, "\n  {violation}")?;
        }
        if violations.len() > SHOWN_MAX {
            write!(f, "\n  and {} more", violations.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}

/// A stretch of instants of one schedule that are recorded as missed.
struct MissedRange {
    first: Occurrence,
    last: Timestamp,
}

impl MissedRange {
    fn covers(&self, occurrence: &Occurrence) -> bool {
        let whose = |occurrence: &Occurrence| (occurrence.incarnation, occurrence.revision, occurrence.replay);
        whose(&self.first) == whose(occurrence)
            && (self.first.nominal..=self.last).contains(&occurrence.nominal)
            && self.first != *occurrence
    }
}

impl Book {
    pub(super) fn unresolved(&self) -> Vec<Occurrence> {
        Case::new(self, &|_| Vec::new()).unresolved().collect()
    }

    pub(super) fn judge(&self, interruptions: Interruptions<'_>) -> Verdict {
        let case = Case::new(self, interruptions);
        let mut verdict = Verdict {
            violations: Vec::new(),
            expected: case.expected.len(),
            callbacks: self.callbacks.len(),
            doubles: 0,
            missed: case.expected.iter().filter(|occurrence| case.was_missed(occurrence)).count(),
        };
        let found = &mut verdict.violations;
        case.judge_losses(found);
        case.judge_outcomes(found);
        case.judge_asked(found);
        self.callbacks.iter().for_each(|callback| case.judge_start(callback, found));
        for (occurrence, callbacks) in &case.callbacks {
            case.judge_resolution(occurrence, callbacks, found);
            verdict.doubles += case.judge_doubles(callbacks, found);
        }
        verdict
    }

    /// Every occurrence that must have exactly one outcome.
    fn expected(&self) -> BTreeSet<Occurrence> {
        let mut expected = BTreeSet::new();
        for (incarnation, ask) in self.schedules.iter().filter(|(_, ask)| ask.cancelled.is_none() && !ask.doubtful) {
            for (revision, asked) in ask.revisions.iter().filter(|(_, asked)| asked.superseded_at.is_none()) {
                let (incarnation, revision) = (*incarnation, *revision);
                let at = |nominal: &Timestamp| Occurrence { incarnation, nominal: *nominal, revision, replay: 0 };
                expected.extend(asked.expected.nominals.iter().map(at));
            }
        }
        expected.extend(self.redriven.keys().copied());
        expected
    }

    fn missed(&self) -> Vec<MissedRange> {
        let range = |(first, seen): (&Occurrence, &Seen)| match seen.state {
            RunState::Missed { last, .. } => Some(MissedRange { first: *first, last }),
            RunState::Retrying | RunState::Succeeded | RunState::Failed | RunState::Cancelled => None,
        };
        self.outcomes.iter().filter_map(range).collect()
    }
}

/// The book, with what several promises look at.
struct Case<'a> {
    book: &'a Book,
    interruptions: Interruptions<'a>,
    expected: BTreeSet<Occurrence>,
    missed: Vec<MissedRange>,
    callbacks: BTreeMap<Occurrence, Vec<&'a Callback>>,
}

impl<'a> Case<'a> {
    fn new(book: &'a Book, interruptions: Interruptions<'a>) -> Self {
        let mut callbacks: BTreeMap<Occurrence, Vec<&Callback>> = BTreeMap::new();
        for callback in &book.callbacks {
            callbacks.entry(callback.occurrence).or_default().push(callback);
        }
        Case { book, interruptions, expected: book.expected(), missed: book.missed(), callbacks }
    }

    /// Every acknowledged occurrence has an outcome.
    fn judge_losses(&self, found: &mut Vec<Violation>) {
        for occurrence in self.unresolved() {
            let callbacks = self.callbacks.get(&occurrence).map_or(0, Vec::len);
            found.push(Violation::Lost { occurrence, callbacks });
        }
    }

    /// One outcome each, which stays, and which something that happened explains.
    fn judge_outcomes(&self, found: &mut Vec<Violation>) {
        for (occurrence, before, after) in &self.book.outcomes_changed {
            let (occurrence, before, after) = (*occurrence, *before, *after);
            found.push(Violation::OutcomeChanged { occurrence, before, after });
        }
        for (occurrence, seen) in &self.book.outcomes {
            if let Some(range) = self.missed.iter().find(|range| range.covers(occurrence)) {
                let (occurrence, own, first, last) = (*occurrence, seen.state, range.first.nominal, range.last);
                found.push(Violation::TwoOutcomes { occurrence, own, first, last });
            }
            let accepted =
                || self.callbacks.get(occurrence).is_some_and(|all| all.iter().any(|one| one.was_accepted()));
            if seen.state == RunState::Succeeded && !accepted() {
                found.push(Violation::SucceededUnaccepted(*occurrence));
            }
            let asked = || self.ask(occurrence).is_none_or(|ask| ask.may_stop(occurrence));
            if seen.state == RunState::Cancelled && !asked() {
                found.push(Violation::CancelledUnasked(*occurrence));
            }
        }
    }

    /// Nothing is called that nobody asked for.
    fn judge_asked(&self, found: &mut Vec<Violation>) {
        let mut strangers = BTreeSet::new();
        for occurrence in self.callbacks.keys() {
            match self.ask(occurrence) {
                None => {
                    strangers.insert(occurrence.incarnation);
                }
                Some(ask) if ask.doubtful || ask.has(occurrence) || self.book.redriven.contains_key(occurrence) => {}
                Some(_) => found.push(Violation::Unexpected(*occurrence)),
            }
        }
        let creates = self.book.creates_unanswered;
        if strangers.len() > creates {
            found.push(Violation::Unasked { schedules: strangers.len(), creates });
        }
    }

    /// A callback may begin: it is due, and neither stopped nor over.
    fn judge_start(&self, callback: &Callback, found: &mut Vec<Violation>) {
        let Callback { occurrence, began_at, clock, .. } = callback;
        let (occurrence, began_at, clock) = (*occurrence, *began_at, *clock);
        if clock < occurrence.nominal {
            found.push(Violation::Early { occurrence, member: callback.member.clone(), clock });
        }
        let seen_at = self.book.outcomes.get(&occurrence).and_then(|seen| seen.first_seen_final_at);
        if let Some(seen_at) = seen_at.filter(|seen_at| *seen_at < began_at) {
            found.push(Violation::AfterOutcome { occurrence, began_at, seen_at });
        }
        let Some(ask) = self.ask(&occurrence) else { return };
        let superseded_at = ask.revisions.get(&occurrence.revision).and_then(|asked| asked.superseded_at);
        // What a person has run again goes by the schedule as it is, whatever it was planned under.
        let superseded_at = superseded_at.filter(|_| occurrence.replay == 0);
        if let Some(answered_at) = superseded_at.filter(|answered_at| *answered_at < began_at) {
            found.push(Violation::OldRevision { occurrence, began_at, answered_at });
        }
        if let Some(cancel) = ask.cancelled {
            self.judge_cancel(callback, cancel, found);
        }
    }

    /// After the answer to a cancel nothing starts, and after "cancelled" nothing is in flight either.
    fn judge_cancel(&self, callback: &Callback, cancel: Cancel, found: &mut Vec<Violation>) {
        let Callback { occurrence, began_at, end, .. } = callback;
        let (occurrence, began_at, answered_at) = (*occurrence, *began_at, cancel.answered_at);
        // A run that is redriven after the cancel was asked for by name.
        let redriven_since = self.book.redriven.get(&occurrence).is_some_and(|at| *at >= answered_at);
        if began_at > answered_at {
            if !redriven_since {
                found.push(Violation::AfterCancel { occurrence, began_at, answered_at });
            }
            return;
        }
        let in_flight = end.is_none_or(|end| end.at > answered_at) && began_at < answered_at;
        if in_flight && !cancel.too_late && !self.is_interrupted(callback, answered_at) {
            found.push(Violation::InFlightAtCancel { occurrence, began_at, answered_at });
        }
    }

    /// What was called, and not interrupted, has an outcome, and not that of being missed.
    fn judge_resolution(&self, occurrence: &Occurrence, callbacks: &[&Callback], found: &mut Vec<Violation>) {
        if callbacks.iter().all(|callback| self.is_interrupted(callback, self.durable_at(callback))) {
            return;
        }
        if self.was_missed(occurrence) {
            found.push(Violation::MissedAndCalled(*occurrence));
            return;
        }
        // An expected one is reported as lost, and what is beyond the ledger's horizon may still be on its way.
        let judged = self.ask(occurrence).is_some_and(|ask| !ask.is_beyond(occurrence));
        if judged && !self.expected.contains(occurrence) && !self.is_final(occurrence) {
            found.push(Violation::Unresolved(*occurrence));
        }
    }

    /// Counts the doubles that an interruption excuses, and finds those that none does.
    fn judge_doubles(&self, callbacks: &[&Callback], found: &mut Vec<Violation>) -> usize {
        let mut doubles = 0;
        for (number, callback) in callbacks.iter().enumerate() {
            let Some(earlier) = callbacks[..number].iter().rev().find(|earlier| !earlier.allows(callback)) else {
                continue;
            };
            if self.is_interrupted(earlier, self.durable_at(earlier).min(callback.began_at)) {
                doubles += 1;
                continue;
            }
            found.push(Violation::Double {
                occurrence: callback.occurrence,
                attempt: callback.attempt,
                began_at: callback.began_at,
                earlier: earlier.attempt,
                earlier_at: earlier.began_at,
            });
        }
        doubles
    }

    fn unresolved(&self) -> impl Iterator<Item = Occurrence> {
        let resolved = |occurrence: &Occurrence| self.is_final(occurrence) || self.is_in_missed(occurrence);
        self.expected.iter().copied().filter(move |occurrence| !resolved(occurrence))
    }

    fn ask(&self, occurrence: &Occurrence) -> Option<&'a Ask> {
        self.book.schedules.get(&occurrence.incarnation)
    }

    fn is_final(&self, occurrence: &Occurrence) -> bool {
        self.book.outcomes.get(occurrence).is_some_and(|seen| seen.state.is_final())
    }

    fn is_in_missed(&self, occurrence: &Occurrence) -> bool {
        self.missed.iter().any(|range| range.covers(occurrence))
    }

    fn was_missed(&self, occurrence: &Occurrence) -> bool {
        let own = self.book.outcomes.get(occurrence).map(|seen| seen.state);
        matches!(own, Some(RunState::Missed { .. })) || self.is_in_missed(occurrence)
    }

    /// When the callback's outcome is surely on the disk, if nothing came in between.
    fn durable_at(&self, callback: &Callback) -> Duration {
        callback.end.map_or(Duration::MAX, |end| end.at.saturating_add(self.book.outcome_lag))
    }

    /// Its member was paused or down, or there is another excuse, at some time from its beginning to `until`.
    fn is_interrupted(&self, callback: &Callback, until: Duration) -> bool {
        let overlaps = |one: &RangeInclusive<Duration>| *one.start() <= until && *one.end() >= callback.began_at;
        let excuses = self.book.excuses.get(&callback.occurrence.incarnation);
        (self.interruptions)(&callback.member).iter().any(overlaps)
            || excuses.is_some_and(|excuses| excuses.iter().any(overlaps))
    }
}

impl Ask {
    fn has(&self, occurrence: &Occurrence) -> bool {
        occurrence.replay == 0
            && self.revisions.get(&occurrence.revision).is_some_and(|asked| {
                asked.expected.nominals.contains(&occurrence.nominal)
                    || occurrence.nominal > asked.expected.complete_until
            })
    }

    /// The verdict says nothing about it: it may still be on its way.
    fn is_beyond(&self, occurrence: &Occurrence) -> bool {
        let asked = self.revisions.get(&occurrence.revision);
        // Of a revision that nobody was told of, nothing is expected.
        asked.is_none_or(|asked| occurrence.nominal > asked.expected.complete_until)
    }

    /// A cancel or change may have stopped this occurrence.
    fn may_stop(&self, occurrence: &Occurrence) -> bool {
        let later = Revision(occurrence.revision.0.saturating_add(1));
        self.doubtful || self.cancelled.is_some() || self.revisions.range(later..).next().is_some()
    }
}

impl Callback {
    fn was_accepted(&self) -> bool {
        // One whose member went down in between may have been accepted all the same; the receiver says so.
        self.end.is_some_and(|end| end.accepted)
    }

    /// This callback failed, and `next` is the attempt after it.
    fn allows(&self, next: &Callback) -> bool {
        self.attempt < next.attempt && self.end.is_some_and(|end| !end.accepted && end.at <= next.began_at)
    }
}

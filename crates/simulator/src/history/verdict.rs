//! Checks of the scheduler's promises to clients. A separate function checks each promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use domain::{Incarnation, Occurrence, Revision, RunState, Timestamp};

use super::{
    AcknowledgedRevision, AcknowledgedSchedule, Callback, Cancel, Entries, HEALTH_PERIOD, Interruptions,
    ObservedOutcome,
};

/// Longest time by which a marked run may be due after its earlier owner stopped.
const MARKED_AHEAD_MAX: Duration = Duration::from_secs(5);
/// Longest time for which a due callback may wait while all members report that they are well. On the slowest simulated
/// store, a member needs up to 9 s to take its shards again, and it may have to repeat this.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    #[error("lost: {occurrence:?} was acknowledged, but has no final outcome after {callbacks} callbacks")]
    Lost { occurrence: Occurrence, callbacks: usize },
    #[error("unresolved: {0:?} had a callback that was not interrupted, but has no final outcome")]
    Unresolved(Occurrence),
    #[error(
        "two outcomes: {occurrence:?} has the outcome {own:?}, and is also one of the missed instants from {first} \
         to {last}"
    )]
    TwoOutcomes { occurrence: Occurrence, own: RunState, first: Timestamp, last: Timestamp },
    #[error("changed: the final outcome of {occurrence:?} changed from {before:?} to {after:?}")]
    OutcomeChanged { occurrence: Occurrence, before: RunState, after: RunState },
    #[error("early: {occurrence:?} started before its instant, at {clock} by the clock of the member {member}")]
    Early { occurrence: Occurrence, member: String, clock: Timestamp },
    #[error(
        "after the cancel: {occurrence:?} started at {began_at:?}, after its cancel was acknowledged at \
         {acknowledged_at:?}"
    )]
    AfterCancel { occurrence: Occurrence, began_at: Duration, acknowledged_at: Duration },
    #[error(
        "in flight at the cancel: the attempt of {occurrence:?} that started at {began_at:?} had not ended when its \
         cancel was acknowledged at {acknowledged_at:?}"
    )]
    InFlightAtCancel { occurrence: Occurrence, began_at: Duration, acknowledged_at: Duration },
    #[error(
        "old revision: {occurrence:?} started at {began_at:?}, after a later revision was acknowledged at \
         {acknowledged_at:?}"
    )]
    OldRevision { occurrence: Occurrence, began_at: Duration, acknowledged_at: Duration },
    #[error(
        "duplicate: attempt {attempt} of {occurrence:?} started at {began_at:?}, after attempt {earlier}, which \
         started at {earlier_at:?} and was not interrupted"
    )]
    Duplicate { occurrence: Occurrence, attempt: u16, began_at: Duration, earlier: u16, earlier_at: Duration },
    #[error(
        "after the outcome: {occurrence:?} started at {began_at:?}, after its final outcome was observed at \
         {observed_at:?}"
    )]
    AfterOutcome { occurrence: Occurrence, began_at: Duration, observed_at: Duration },
    #[error(
        "late record: the bus stored a record of attempt {attempt} of {occurrence:?} at {stored_at:?}, but the attempt \
         could send records only from {began_at:?} to {ended_at:?}"
    )]
    LateRecord { occurrence: Occurrence, attempt: u16, began_at: Duration, ended_at: Duration, stored_at: Duration },
    #[error("missed and called: {0:?} is recorded as missed, but had a callback that was not interrupted")]
    MissedAndCalled(Occurrence),
    #[error("missed without a mark: {0:?} had a callback, but its record as missed says that no attempt started")]
    MissedUnmarked(Occurrence),
    #[error(
        "marked without a start: {occurrence:?} is recorded as missed after a possible attempt, but an owner that took \
         the shard at {taken_at} recorded it, and no earlier owner can have started it"
    )]
    MarkedUnstarted { occurrence: Occurrence, taken_at: Timestamp },
    #[error("silent: {occurrence:?} waited for {silent:?} while all running members reported that they were well")]
    Silent { occurrence: Occurrence, silent: Duration },
    #[error("miscounted: the record of {occurrence:?} counts {count} missed instants up to {last}, not {expected}")]
    Miscounted { occurrence: Occurrence, last: Timestamp, count: u64, expected: usize },
    #[error("unaccepted success: {0:?} is recorded as succeeded, but no receiver accepted its callback")]
    SucceededUnaccepted(Occurrence),
    #[error(
        "unrequested cancellation: {0:?} is recorded as cancelled, but no client requested a cancellation or a change"
    )]
    CancelledUnrequested(Occurrence),
    #[error("unexpected: {0:?} is not an occurrence of its schedule")]
    Unexpected(Occurrence),
    #[error(
        "unrequested: {schedules} schedules without an acknowledged create had callbacks, but only {creates} create \
         requests got no response"
    )]
    Unrequested { schedules: usize, creates: usize },
}

/// Result of a run of the simulated world.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Number of occurrences that had to have an outcome.
    pub expected: usize,
    pub callbacks: usize,
    /// Number of permitted duplicates: repeated callbacks of attempts that were in flight at an interruption.
    pub duplicates: usize,
    /// Number of expected instants that the store records as missed.
    pub missed: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 20;
        let Verdict { violations, expected, callbacks, duplicates, missed } = self;
        write!(f, "{} violations; ", violations.len())?;
        write!(
            f,
            "{expected} occurrences expected, {callbacks} callbacks, {duplicates} permitted duplicates, {missed} \
             missed instants"
        )?;
        for violation in violations.iter().take(SHOWN_MAX) {
            write!(f, "\n  {violation}")?;
        }
        if violations.len() > SHOWN_MAX {
            write!(f, "\n  and {} more", violations.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}

/// Range of instants of one schedule that the store records as missed.
struct MissedRange {
    first: Occurrence,
    last: Timestamp,
}

impl MissedRange {
    fn covers(&self, occurrence: &Occurrence) -> bool {
        let series_of = |occurrence: &Occurrence| (occurrence.incarnation, occurrence.revision, occurrence.replay);
        series_of(&self.first) == series_of(occurrence)
            && (self.first.nominal..=self.last).contains(&occurrence.nominal)
            && self.first != *occurrence
    }
}

impl Entries {
    /// Returns the callbacks that members have made.
    pub(super) fn made(&self) -> impl Iterator<Item = &Callback> {
        self.callbacks.iter().filter(|callback| !callback.is_withdrawn)
    }

    pub(super) fn unresolved(&self) -> Vec<Occurrence> {
        Case::new(self, &|_| Vec::new()).unresolved().collect()
    }

    /// `epoch` is the time at the start of the simulation.
    pub(super) fn judge(&self, interruptions: Interruptions<'_>, epoch: Timestamp) -> Verdict {
        let case = Case::new(self, interruptions);
        let mut verdict = Verdict {
            violations: Vec::new(),
            expected: case.expected.len(),
            callbacks: self.made().count(),
            duplicates: 0,
            missed: case.expected.iter().filter(|occurrence| case.was_missed(occurrence)).count(),
        };
        let found = &mut verdict.violations;
        case.judge_losses(found);
        case.judge_outcomes(found);
        case.judge_requested(found);
        case.judge_marks(found);
        case.judge_counts(found);
        case.judge_silence(epoch, found);
        self.made().for_each(|callback| case.judge_start(callback, found));
        self.callbacks.iter().for_each(|callback| case.judge_records(callback, found));
        for (occurrence, callbacks) in &case.callbacks {
            case.judge_resolution(occurrence, callbacks, found);
            verdict.duplicates += case.judge_duplicates(callbacks, found);
        }
        verdict
    }

    /// Returns the occurrences that must have exactly one outcome.
    fn expected(&self) -> BTreeSet<Occurrence> {
        let mut expected = BTreeSet::new();
        let is_certain = |(_, it): &(&Incarnation, &AcknowledgedSchedule)| it.cancelled.is_none() && !it.uncertain;
        for (incarnation, schedule) in self.schedules.iter().filter(is_certain) {
            for (revision, acknowledged) in schedule.revisions.iter().filter(|(_, it)| it.superseded_at.is_none()) {
                let (incarnation, revision) = (*incarnation, *revision);
                let at = |nominal: &Timestamp| Occurrence { incarnation, nominal: *nominal, revision, replay: 0 };
                expected.extend(acknowledged.expected.nominals.iter().map(at));
            }
        }
        // A fast clock may have fired a run long before its instant. A redriven run starts at this instant at the earliest.
        let is_later = |occurrence: &Occurrence| {
            let schedule = self.schedules.get(&occurrence.incarnation);
            let schedule = schedule.filter(|schedule| schedule.revisions.contains_key(&occurrence.revision));
            schedule.is_some_and(|schedule| schedule.is_beyond(occurrence))
        };
        expected.extend(self.redriven.keys().copied().filter(|occurrence| !is_later(occurrence)));
        expected
    }

    fn missed(&self) -> Vec<MissedRange> {
        let range = |(first, observed): (&Occurrence, &ObservedOutcome)| match observed.state {
            RunState::Missed { last, .. } => Some(MissedRange { first: *first, last }),
            RunState::Retrying | RunState::Succeeded | RunState::Failed | RunState::Cancelled => None,
        };
        self.outcomes.iter().filter_map(range).collect()
    }
}

/// Recorded entries of a history, with indexes that several checks use.
struct Case<'a> {
    entries: &'a Entries,
    interruptions: Interruptions<'a>,
    expected: BTreeSet<Occurrence>,
    missed: Vec<MissedRange>,
    callbacks: BTreeMap<Occurrence, Vec<&'a Callback>>,
}

impl<'a> Case<'a> {
    fn new(entries: &'a Entries, interruptions: Interruptions<'a>) -> Self {
        let mut callbacks: BTreeMap<Occurrence, Vec<&Callback>> = BTreeMap::new();
        for callback in entries.made() {
            callbacks.entry(callback.occurrence).or_default().push(callback);
        }
        Case { entries, interruptions, expected: entries.expected(), missed: entries.missed(), callbacks }
    }

    /// Checks that every acknowledged occurrence has an outcome.
    fn judge_losses(&self, found: &mut Vec<Violation>) {
        for occurrence in self.unresolved() {
            let callbacks = self.callbacks.get(&occurrence).map_or(0, Vec::len);
            found.push(Violation::Lost { occurrence, callbacks });
        }
    }

    /// Checks that each occurrence has only one outcome, and that final outcomes do not change. Also checks that each
    /// success has an accepted callback, and that each cancellation can be the result of a client's request.
    fn judge_outcomes(&self, found: &mut Vec<Violation>) {
        for (occurrence, before, after) in &self.entries.outcomes_changed {
            let (occurrence, before, after) = (*occurrence, *before, *after);
            found.push(Violation::OutcomeChanged { occurrence, before, after });
        }
        for (occurrence, observed) in &self.entries.outcomes {
            if let Some(range) = self.missed.iter().find(|range| range.covers(occurrence)) {
                let (occurrence, own, first, last) = (*occurrence, observed.state, range.first.nominal, range.last);
                found.push(Violation::TwoOutcomes { occurrence, own, first, last });
            }
            let accepted =
                || self.callbacks.get(occurrence).is_some_and(|all| all.iter().any(|one| one.was_accepted()));
            if observed.state == RunState::Succeeded && !accepted() {
                found.push(Violation::SucceededUnaccepted(*occurrence));
            }
            let may_be_cancelled = || self.schedule(occurrence).is_none_or(|schedule| schedule.may_stop(occurrence));
            if observed.state == RunState::Cancelled && !may_be_cancelled() {
                found.push(Violation::CancelledUnrequested(*occurrence));
            }
        }
    }

    /// Checks that every callback belongs to an occurrence that a client requested.
    fn judge_requested(&self, found: &mut Vec<Violation>) {
        let mut unknown = BTreeSet::new();
        for occurrence in self.callbacks.keys() {
            match self.schedule(occurrence) {
                None => {
                    unknown.insert(occurrence.incarnation);
                }
                Some(schedule)
                    if schedule.uncertain
                        || schedule.has(occurrence)
                        || schedule.is_of_earlier_try(occurrence)
                        || self.entries.redriven.contains_key(occurrence) => {}
                Some(_) => found.push(Violation::Unexpected(*occurrence)),
            }
        }
        let creates = self.entries.creates_without_response;
        if unknown.len() > creates {
            found.push(Violation::Unrequested { schedules: unknown.len(), creates });
        }
    }

    /// Checks that the callback may start. Its occurrence must be due and must have no final outcome. No acknowledged
    /// change or cancellation may have stopped the occurrence.
    fn judge_start(&self, callback: &Callback, found: &mut Vec<Violation>) {
        let Callback { occurrence, began_at, clock, .. } = callback;
        let (occurrence, began_at, clock) = (*occurrence, *began_at, *clock);
        if clock < occurrence.nominal {
            found.push(Violation::Early { occurrence, member: callback.member.clone(), clock });
        }
        let observed_at = self.entries.outcomes.get(&occurrence).and_then(|observed| observed.first_final_at);
        if let Some(observed_at) = observed_at.filter(|observed_at| *observed_at < began_at) {
            found.push(Violation::AfterOutcome { occurrence, began_at, observed_at });
        }
        let Some(schedule) = self.schedule(&occurrence) else { return };
        let superseded_at = schedule.revisions.get(&occurrence.revision).and_then(|revision| revision.superseded_at);
        // A redriven run uses the current revision of the schedule, so the revision of its occurrence does not matter.
        let superseded_at = superseded_at.filter(|_| occurrence.replay == 0);
        if let Some(acknowledged_at) = superseded_at.filter(|acknowledged_at| *acknowledged_at < began_at) {
            found.push(Violation::OldRevision { occurrence, began_at, acknowledged_at });
        }
        if let Some(cancel) = schedule.cancelled {
            self.judge_cancel(callback, cancel, found);
        }
    }

    /// Checks that no attempt starts after the response to a cancel, and that no attempt is in flight at the time of
    /// the response "cancelled".
    fn judge_cancel(&self, callback: &Callback, cancel: Cancel, found: &mut Vec<Violation>) {
        let Callback { occurrence, began_at, end, .. } = callback;
        let (occurrence, began_at, acknowledged_at) = (*occurrence, *began_at, cancel.acknowledged_at);
        // A run may start if a client redrove it after the cancel.
        let redriven_since = self.entries.redriven.get(&occurrence).is_some_and(|at| *at >= acknowledged_at);
        if began_at > acknowledged_at {
            if !redriven_since {
                found.push(Violation::AfterCancel { occurrence, began_at, acknowledged_at });
            }
            return;
        }
        let in_flight = end.is_none_or(|end| end.at > acknowledged_at) && began_at < acknowledged_at;
        if in_flight && !cancel.too_late && !self.is_interrupted(callback, acknowledged_at) {
            found.push(Violation::InFlightAtCancel { occurrence, began_at, acknowledged_at });
        }
    }

    /// Checks that the bus stored no record of a callback after the end of the attempt, and no record of a withdrawn
    /// callback. A pause of the member may delay a request to the bus, so the record of a paused member may be late.
    fn judge_records(&self, callback: &Callback, found: &mut Vec<Violation>) {
        let Callback { occurrence, attempt, began_at, end, is_withdrawn, .. } = callback;
        let ended_at = match end {
            Some(end) => end.at,
            None if *is_withdrawn => *began_at,
            None => return,
        };
        let is_late = |stored_at: &&Duration| *is_withdrawn || **stored_at > ended_at;
        for stored_at in callback.records.iter().flatten().filter(is_late) {
            let overlaps = |one: &RangeInclusive<Duration>| one.start() <= stored_at && one.end() >= began_at;
            if *is_withdrawn || !(self.interruptions)(&callback.member).iter().any(overlaps) {
                found.push(Violation::LateRecord {
                    occurrence: *occurrence,
                    attempt: *attempt,
                    began_at: *began_at,
                    ended_at,
                    stored_at: *stored_at,
                });
            }
        }
    }

    /// Checks that the record of a missed run counts the expected instants from its own instant to its last instant.
    fn judge_counts(&self, found: &mut Vec<Violation>) {
        for (occurrence, observed) in &self.entries.outcomes {
            let RunState::Missed { last, count, .. } = observed.state else { continue };
            let revision = self.schedule(occurrence).and_then(|schedule| schedule.revisions.get(&occurrence.revision));
            let Some(AcknowledgedRevision { expected, .. }) = revision else { continue };
            if last > expected.complete_until {
                continue;
            }
            let expected = expected.nominals.range(occurrence.nominal..=last).count();
            if count != expected as u64 {
                found.push(Violation::Miscounted { occurrence: *occurrence, last, count, expected });
            }
        }
    }

    /// Checks that no missed run has the mark `attempt_possible` if the run was due long after its owner took the shard, by
    /// the latest reading of a clock until then. Only an earlier owner can have started the run, and that owner stopped
    /// before.
    fn judge_marks(&self, found: &mut Vec<Violation>) {
        for (occurrence, taken_at) in &self.entries.marked {
            if occurrence.nominal > *taken_at + MARKED_AHEAD_MAX {
                found.push(Violation::MarkedUnstarted { occurrence: *occurrence, taken_at: *taken_at });
            }
        }
    }

    /// Checks that no first callback waits for long while all members report that they are well.
    fn judge_silence(&self, epoch: Timestamp, found: &mut Vec<Violation>) {
        for (occurrence, callbacks) in &self.callbacks {
            let revision = self.schedule(occurrence).and_then(|schedule| schedule.revisions.get(&occurrence.revision));
            let Some(revision) = revision.filter(|_| occurrence.replay == 0) else { continue };
            let due_at = occurrence.nominal.since(epoch).max(revision.acknowledged_at);
            let until = callbacks.iter().map(|callback| callback.began_at).min().unwrap_or_default();
            let well = &self.entries.well;
            let observed =
                well.partition_point(|at| *at < until).saturating_sub(well.partition_point(|at| *at < due_at));
            let silent = HEALTH_PERIOD.saturating_mul(u32::try_from(observed).unwrap_or(u32::MAX));
            if silent > SILENT_MAX {
                found.push(Violation::Silent { occurrence: *occurrence, silent });
            }
        }
    }

    /// Checks that the occurrence of an uninterrupted callback has an outcome, and that this outcome is not "missed". If
    /// all callbacks of the occurrence were interrupted, a record as missed must have the mark `attempt_possible`.
    fn judge_resolution(&self, occurrence: &Occurrence, callbacks: &[&Callback], found: &mut Vec<Violation>) {
        if callbacks.iter().all(|callback| self.is_interrupted(callback, self.durable_at(callback))) {
            let is_lost = callbacks.iter().any(|callback| self.is_lost(callback, self.durable_at(callback)));
            if self.was_missed(occurrence) && !self.is_marked(occurrence) && !is_lost {
                found.push(Violation::MissedUnmarked(*occurrence));
            }
            return;
        }
        if self.was_missed(occurrence) {
            found.push(Violation::MissedAndCalled(*occurrence));
            return;
        }
        // `judge_losses` reports an expected occurrence without an outcome, so this check ignores it. This check also
        // ignores an occurrence after the end of the expected instants, because it may still be in progress.
        let judged = self.schedule(occurrence).is_some_and(|schedule| !schedule.is_beyond(occurrence));
        if judged && !self.expected.contains(occurrence) && !self.is_final(occurrence) {
            found.push(Violation::Unresolved(*occurrence));
        }
    }

    /// Counts the permitted duplicates, and reports all other duplicates.
    fn judge_duplicates(&self, callbacks: &[&Callback], found: &mut Vec<Violation>) -> usize {
        let mut duplicates = 0;
        for (number, callback) in callbacks.iter().enumerate() {
            let Some(earlier) = callbacks[..number].iter().rev().find(|earlier| !earlier.allows(callback)) else {
                continue;
            };
            if self.is_interrupted(earlier, self.durable_at(earlier).min(callback.began_at)) {
                duplicates += 1;
                continue;
            }
            found.push(Violation::Duplicate {
                occurrence: callback.occurrence,
                attempt: callback.attempt,
                began_at: callback.began_at,
                earlier: earlier.attempt,
                earlier_at: earlier.began_at,
            });
        }
        duplicates
    }

    fn unresolved(&self) -> impl Iterator<Item = Occurrence> {
        let resolved = |occurrence: &Occurrence| self.is_final(occurrence) || self.is_in_missed(occurrence);
        self.expected.iter().copied().filter(move |occurrence| !resolved(occurrence))
    }

    fn schedule(&self, occurrence: &Occurrence) -> Option<&'a AcknowledgedSchedule> {
        self.entries.schedules.get(&occurrence.incarnation)
    }

    fn is_final(&self, occurrence: &Occurrence) -> bool {
        self.entries.outcomes.get(occurrence).is_some_and(|observed| observed.state.is_final())
    }

    fn is_in_missed(&self, occurrence: &Occurrence) -> bool {
        self.missed.iter().any(|range| range.covers(occurrence))
    }

    fn is_marked(&self, occurrence: &Occurrence) -> bool {
        let own = self.entries.outcomes.get(occurrence).map(|observed| observed.state);
        matches!(own, Some(RunState::Missed { attempt_possible: true, .. }))
    }

    fn was_missed(&self, occurrence: &Occurrence) -> bool {
        let own = self.entries.outcomes.get(occurrence).map(|observed| observed.state);
        matches!(own, Some(RunState::Missed { .. })) || self.is_in_missed(occurrence)
    }

    /// Returns the instant by which the callback's outcome must be durable if no interruption happens.
    fn durable_at(&self, callback: &Callback) -> Duration {
        callback.end.map_or(Duration::MAX, |end| end.at.saturating_add(self.entries.outcome_lag))
    }

    /// Returns true if, at some time from the callback's start to `until`, the callback's member was paused or down, or
    /// the scenario permitted duplicates.
    fn is_interrupted(&self, callback: &Callback, until: Duration) -> bool {
        let overlaps = |one: &RangeInclusive<Duration>| *one.start() <= until && *one.end() >= callback.began_at;
        let exemptions = self.entries.exemptions.get(&callback.occurrence.incarnation);
        (self.interruptions)(&callback.member).iter().any(overlaps)
            || exemptions.is_some_and(|exemptions| exemptions.iter().any(overlaps))
            || self.is_lost(callback, until)
    }

    /// Returns true if the store may have lost the outcome of the callback, which was to be durable at `until`.
    fn is_lost(&self, callback: &Callback, until: Duration) -> bool {
        self.entries.lost.iter().any(|lost| *lost.start() <= until && *lost.end() >= callback.began_at)
    }
}

impl AcknowledgedSchedule {
    fn has(&self, occurrence: &Occurrence) -> bool {
        occurrence.replay == 0
            && self.revisions.get(&occurrence.revision).is_some_and(|revision| {
                revision.expected.nominals.contains(&occurrence.nominal)
                    || occurrence.nominal > revision.expected.complete_until
            })
    }

    /// Returns true if an earlier try of the create may have written the occurrence's due row.
    fn is_of_earlier_try(&self, occurrence: &Occurrence) -> bool {
        let first = self.revisions.get(&Revision::default()).and_then(|revision| revision.expected.nominals.first());
        self.has_earlier_tries
            && (occurrence.replay, occurrence.revision) == (0, Revision::default())
            && first.is_none_or(|first| occurrence.nominal < *first)
    }

    /// Returns true if the verdict does not cover the occurrence, because it may still be in progress.
    fn is_beyond(&self, occurrence: &Occurrence) -> bool {
        let revision = self.revisions.get(&occurrence.revision);
        // A revision that no client knows has no expected occurrences.
        revision.is_none_or(|revision| occurrence.nominal > revision.expected.complete_until)
    }

    /// Returns true if a cancel or a change may have stopped this occurrence.
    fn may_stop(&self, occurrence: &Occurrence) -> bool {
        let later = Revision(occurrence.revision.0.saturating_add(1));
        self.uncertain || self.cancelled.is_some() || self.revisions.range(later..).next().is_some()
    }
}

impl Callback {
    fn was_accepted(&self) -> bool {
        // A receiver may accept a callback even after the callback's member has gone down. The receiver then reports
        // the end of the callback to the history. A topic accepts a callback when the bus stores its record.
        match &self.records {
            Some(records) => !records.is_empty(),
            None => self.end.is_some_and(|end| end.accepted),
        }
    }

    /// Returns true if this callback failed and `next` is a later attempt.
    fn allows(&self, next: &Callback) -> bool {
        self.attempt < next.attempt && self.end.is_some_and(|end| !end.accepted && end.at <= next.began_at)
    }
}

//! Audit of a stretch of one schedule: the differences between the occurrences that its timings require and the records
//! that the store has.
//!
//! [`differences`] is a pure function of [`Facts`]. It enumerates the occurrences that the schedule has started, and
//! compares them with the runs and the due rows. [`missing_due_row`] checks the next occurrence of a schedule.
//!
//! Invariants: the function returns no difference that the product can cause by itself. If the facts leave open whether
//! a record is missing, it is not. In particular, an occurrence of a revision that has ended needs no outcome, because
//! a change or a cancellation makes a due row void. One call returns at most [`DIFFERENCES_MAX`] differences.
//!
//! docs/decisions/0245-compare-outcomes-with-timings.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::occurrence::Run;
use crate::{DueKey, Occurrence, PastTiming, Revision, RunState, Schedule, Status, Timestamp, When};

/// Maximum number of differences that one call returns.
pub const DIFFERENCES_MAX: usize = 1_000;

/// Step of the UTC offsets that time zones use, and the largest change of an offset that the audit allows for.
const ZONE_STEP: Duration = Duration::from_secs(900);
const ZONE_STEPS_MAX: u32 = 12;
/// Longest time by which the clock of the member that changed a schedule may be behind the clock of its creator.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(60);

/// Facts about one schedule.
///
/// The caller reads the facts in the order in which an owner cannot remove a fact before another fact replaces it: the
/// poller's `done`, the schedule with its past timings, the due rows after `done`, and last the runs.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub schedule: &'a Schedule,
    /// Past timings that the store still has, in any order.
    pub past: &'a [PastTiming],
    /// All runs of the schedule whose nominal instants are in the stretch, and the newest runs before the stretch, in
    /// the order of [`Occurrence`].
    pub runs: &'a [Run],
    /// Due rows of the schedule after `done`. If a row is missing here, the differences may contain its occurrence.
    pub due: &'a [DueKey],
    /// Start of the stretch, inclusive. The store has every record of an occurrence from this instant on.
    pub from: Timestamp,
    /// End of the stretch, inclusive: an instant at or before the poller's `done`.
    pub until: Timestamp,
}

/// Difference between the timings of a schedule and the records in the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Difference {
    pub occurrence: Occurrence,
    pub kind: DifferenceKind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DifferenceKind {
    /// The occurrence has started, but it has neither a record nor a due row.
    MissingOutcome,
    /// The schedule waits for the occurrence, but no due row after `done` lets it fire.
    MissingDueRow,
    /// The run of the occurrence waits for a retry, but it has no due row.
    MissingRetry,
    /// The store has a run of an instant at which the revision has no occurrence.
    NoSuchOccurrence,
    /// The store has a run of a revision that the schedule has not reached.
    NoSuchRevision,
    /// The store has a run of an occurrence after the next occurrence of the schedule.
    NotStarted,
    /// The store has a run of a redrive, but the run before it is not a dead letter.
    NotRedriven,
    /// A record of missed runs also covers the occurrence.
    Duplicate,
    /// The record of missed runs has another count than its range has occurrences.
    WrongCount,
}

impl DifferenceKind {
    pub const ALL: [DifferenceKind; 9] = [
        DifferenceKind::MissingOutcome,
        DifferenceKind::MissingDueRow,
        DifferenceKind::MissingRetry,
        DifferenceKind::NoSuchOccurrence,
        DifferenceKind::NoSuchRevision,
        DifferenceKind::NotStarted,
        DifferenceKind::NotRedriven,
        DifferenceKind::Duplicate,
        DifferenceKind::WrongCount,
    ];

    /// Returns the name of the kind in the API and in log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DifferenceKind::MissingOutcome => "missing_outcome",
            DifferenceKind::MissingDueRow => "missing_due_row",
            DifferenceKind::MissingRetry => "missing_retry",
            DifferenceKind::NoSuchOccurrence => "no_such_occurrence",
            DifferenceKind::NoSuchRevision => "no_such_revision",
            DifferenceKind::NotStarted => "not_started",
            DifferenceKind::NotRedriven => "not_redriven",
            DifferenceKind::Duplicate => "duplicate",
            DifferenceKind::WrongCount => "wrong_count",
        }
    }
}

/// Differences of a stretch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differences {
    /// Differences in the order of their occurrences.
    pub found: Vec<Difference>,
    /// True if there are more differences than `found` contains.
    pub is_cut: bool,
    /// True if other data of the time zone determined instants of the schedule. A [`DifferenceKind::MissingOutcome`] in
    /// another part of the same stretch then proves nothing.
    pub has_other_zone_data: bool,
}

/// Returns the differences of the stretch.
#[must_use]
pub fn differences(facts: &Facts<'_>) -> Differences {
    let mut found = Vec::new();
    let has_other_zone_data = has_other_zone_data(facts);
    if is_readable(&facts.schedule.spec.when) {
        unexpected(facts, &mut found);
        duplicates(facts, &mut found);
        if !has_other_zone_data {
            missing_outcomes(facts, &mut found);
        }
    }
    missing_retries(facts, &mut found);
    found.sort_unstable();
    found.dedup();
    let is_cut = found.len() > DIFFERENCES_MAX;
    found.truncate(DIFFERENCES_MAX);
    Differences { found, is_cut, has_other_zone_data }
}

/// Returns false for a cron expression that this program version cannot parse. Its instants are unknown.
fn is_readable(when: &When) -> bool {
    !matches!(when, When::Cron(cron) if cron.check().is_err())
}

impl<'a> Facts<'a> {
    fn is_in_stretch(&self, occurrence: &Occurrence) -> bool {
        self.from <= occurrence.nominal && occurrence.nominal <= self.until
    }

    /// Returns the runs whose nominal instants are in the stretch.
    fn runs_in_stretch(&self) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(|run| self.is_in_stretch(&run.occurrence))
    }

    /// Returns the timing of a revision, and its anchor. Returns `None` if the store does not have the timing.
    fn timing_of(&self, revision: Revision) -> Option<(&'a When, Timestamp)> {
        let Schedule { ref spec, updated_at, .. } = *self.schedule;
        if revision == self.schedule.revision {
            return Some((&spec.when, updated_at));
        }
        let past = self.past.iter().find(|past| past.edition.revision == revision)?;
        is_readable(&past.when).then_some((&past.when, past.from))
    }

    fn occurrence(&self, nominal: Timestamp) -> Occurrence {
        let Schedule { incarnation, revision, .. } = *self.schedule;
        Occurrence { incarnation, nominal, revision, replay: 0 }
    }

    fn has_due_row(&self, is_wanted: impl Fn(&DueKey) -> bool) -> bool {
        let incarnation = self.schedule.incarnation;
        self.due.iter().any(|key| key.occurrence.incarnation == incarnation && is_wanted(key))
    }

    /// Returns true if the timing has an occurrence at the instant, or may have had one under earlier data of its time
    /// zone. A new version of the program can contain new data.
    fn may_be_at(&self, when: &When, anchor: Timestamp, nominal: Timestamp) -> bool {
        if when.is_at(anchor, nominal) {
            return true;
        }
        let is_zoned = has_offset_changes(when);
        is_zoned
            && (1..=ZONE_STEPS_MAX).any(|steps| {
                let shift = ZONE_STEP * steps;
                when.is_at(anchor, nominal + shift) || when.is_at(anchor, nominal - shift)
            })
    }
}

/// Returns true if a run, or the instant for which the schedule waits, is at an instant at which the timing has no
/// occurrence under the present data of its time zone, but may have had one under other data.
fn has_other_zone_data(facts: &Facts<'_>) -> bool {
    let Schedule { next, updated_at, ref spec, .. } = *facts.schedule;
    let is_odd = |run: &Run| {
        let Occurrence { revision, nominal, .. } = run.occurrence;
        let timing = facts.timing_of(revision);
        timing.is_some_and(|(when, anchor)| !when.is_at(anchor, nominal) && facts.may_be_at(when, anchor, nominal))
    };
    has_offset_changes(&spec.when)
        && (facts.runs.iter().any(is_odd) || next.is_some_and(|next| !spec.when.is_at(updated_at, next)))
}

/// Returns true if the UTC offset of the timing's instants may change.
fn has_offset_changes(when: &When) -> bool {
    matches!(when, When::Cron(cron) if !["UTC", "Etc/UTC"].contains(&cron.zone()))
}

fn unexpected(facts: &Facts<'_>, found: &mut Vec<Difference>) {
    for run in facts.runs_in_stretch() {
        let kind = unexpected_kind(facts, run);
        found.extend(kind.map(|kind| Difference { occurrence: run.occurrence, kind }));
        let Occurrence { replay, .. } = run.occurrence;
        if let Some(replay) = replay.checked_sub(1) {
            let before = Occurrence { replay, ..run.occurrence };
            match facts.runs.iter().find(|run| run.occurrence == before).map(|run| run.state) {
                Some(RunState::Failed) => {}
                Some(_) => {
                    found.push(Difference { occurrence: run.occurrence, kind: DifferenceKind::NotRedriven });
                }
                None => found.push(Difference { occurrence: before, kind: DifferenceKind::MissingOutcome }),
            }
        }
    }
}

/// Returns the reason why the store cannot have this run.
fn unexpected_kind(facts: &Facts<'_>, run: &Run) -> Option<DifferenceKind> {
    let Schedule { revision, status, next, created_at, .. } = *facts.schedule;
    let of = run.occurrence;
    if of.revision > revision {
        return Some(DifferenceKind::NoSuchRevision);
    }
    // The store may have deleted the timing, or an earlier build may have changed the schedule without leaving it.
    let (when, anchor) = facts.timing_of(of.revision)?;
    let is_recurring = !matches!(when, When::At(_));
    // A user can change the schedule through a member whose clock is behind the clock of the creator.
    let is_before_creation = is_recurring && of.nominal + CLOCKS_DIFFER_MAX <= created_at;
    if !facts.may_be_at(when, anchor, of.nominal) || is_before_creation {
        return Some(DifferenceKind::NoSuchOccurrence);
    }
    if let RunState::Missed { last, count, .. } = run.state {
        if last < of.nominal || !is_recurring || !facts.may_be_at(when, anchor, last) {
            return Some(DifferenceKind::NoSuchOccurrence);
        }
        let counted = when.missed(anchor, of.nominal, last).map_or(1, |missed| missed.count + 1);
        if counted != count && !has_offset_changes(when) {
            return Some(DifferenceKind::WrongCount);
        }
    }
    let is_current = of.revision == revision && of.replay == 0 && status == Status::Active;
    (is_current && next.is_some_and(|next| of.nominal > next)).then_some(DifferenceKind::NotStarted)
}

fn duplicates(facts: &Facts<'_>, found: &mut Vec<Difference>) {
    // Ends of the ranges of missed runs, by revision.
    let mut covered: BTreeMap<Revision, Timestamp> = BTreeMap::new();
    for run in facts.runs.iter().filter(|run| run.occurrence.replay == 0) {
        let Occurrence { revision, nominal, .. } = run.occurrence;
        let is_covered = covered.get(&revision).is_some_and(|last| nominal <= *last);
        if is_covered && facts.is_in_stretch(&run.occurrence) && unexpected_kind(facts, run).is_none() {
            found.push(Difference { occurrence: run.occurrence, kind: DifferenceKind::Duplicate });
        }
        if let RunState::Missed { last, .. } = run.state {
            let known = covered.entry(revision).or_insert(last);
            *known = last.max(*known);
        }
    }
}

/// Finds the occurrences of the current revision that have started and left no trace. An owner moves `next` past an
/// occurrence when the occurrence starts. The due row then stays after `done` until the outcome is durable.
fn missing_outcomes(facts: &Facts<'_>, found: &mut Vec<Difference>) {
    let Schedule { status, next, updated_at, ref spec, .. } = *facts.schedule;
    let when = &spec.when;
    let until = match (status, next) {
        (Status::Active, Some(next)) => facts.until.min(next - Duration::from_millis(1)),
        (Status::Ended, _) if matches!(when, When::At(_)) => facts.until,
        // A cancellation makes the due rows void.
        (Status::Active, None) | (Status::Ended | Status::Cancelled, _) => return,
    };
    let is_one_shot = matches!(when, When::At(_));
    let before = facts.from - Duration::from_millis(1);
    let mut after = if is_one_shot { before } else { before.max(updated_at) };
    let mut runs = facts.runs.iter().peekable();
    let mut covered = Timestamp::MIN;
    while let Some(nominal) = when.next_after(updated_at, after).filter(|nominal| *nominal <= until) {
        // A change that keeps the timing can leave an occurrence of the new revision to a run of the old revision, if
        // the clock was ahead. A run of any revision therefore accounts for the instant.
        let mut has_run = false;
        while let Some(run) = runs.next_if(|run| run.occurrence.nominal <= nominal) {
            has_run |= run.occurrence.nominal == nominal && run.occurrence.replay == 0;
            if let RunState::Missed { last, .. } = run.state {
                covered = covered.max(last);
            }
        }
        after = nominal;
        if has_run {
            continue;
        }
        // A record of missed runs covers only the instants of recurring timings.
        if nominal <= covered && !is_one_shot {
            after = covered;
            continue;
        }
        let occurrence = facts.occurrence(nominal);
        // The due row of a retry does not suffice, because the run of a retry has a record.
        if !facts.has_due_row(|key| key.occurrence == occurrence && key.attempt == 1) {
            found.push(Difference { occurrence, kind: DifferenceKind::MissingOutcome });
        }
        if found.len() > DIFFERENCES_MAX {
            return;
        }
    }
}

/// Finds the runs that wait for a retry, although the longest wait is over and no due row requests the retry.
fn missing_retries(facts: &Facts<'_>, found: &mut Vec<Difference>) {
    let schedule = facts.schedule;
    // A change may have replaced the policy of an older revision, so that its longest wait is unknown.
    let of_revision = |run: &&Run| run.occurrence.revision == schedule.revision;
    for run in facts.runs_in_stretch().filter(of_revision).filter(|run| run.state == RunState::Retrying) {
        let Some(last) = run.attempts.last() else { continue };
        let wait_ends = last.started_at + last.duration + schedule.spec.retry.backoff_max;
        let is_requested = |key: &DueKey| key.occurrence == run.occurrence && key.attempt > last.number;
        if wait_ends <= facts.until && !facts.has_due_row(is_requested) {
            found.push(Difference { occurrence: run.occurrence, kind: DifferenceKind::MissingRetry });
        }
    }
}

/// Checks that an active schedule has a due row for its next occurrence. While an attempt of an earlier occurrence is
/// in flight, the due row of its first attempt suffices, because its owner writes the next row again. The due row of a
/// retry does not suffice: the next row is durable before the outcome of the first attempt. `due` has the same meaning
/// as in [`Facts`]. `next_has_run` is true if the occurrence at the schedule's `next` has a record.
#[must_use]
pub fn missing_due_row(schedule: &Schedule, due: &[DueKey], next_has_run: bool) -> Option<Difference> {
    let Schedule { incarnation, revision, status, next, ref spec, .. } = *schedule;
    let occurrence = Occurrence { incarnation, nominal: next?, revision, replay: 0 };
    let is_one_shot = matches!(spec.when, When::At(_));
    let continues = |key: &DueKey| {
        let of = key.occurrence;
        (of.incarnation, of.revision, of.replay) == (incarnation, revision, 0)
            && of.nominal <= occurrence.nominal
            && (key.attempt == 1 || is_one_shot)
    };
    // A one-shot schedule with an outcome is only not ended yet.
    let is_over = next_has_run && is_one_shot;
    let is_missing = status == Status::Active && !is_over && !due.iter().any(continues);
    is_missing.then_some(Difference { occurrence, kind: DifferenceKind::MissingDueRow })
}

#[cfg(test)]
mod tests;

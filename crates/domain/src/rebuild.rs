//! Derivation of due rows from a schedule and its runs. An engine uses it if the due rows themselves are damaged.
//!
//! The derivation may return a row that exists elsewhere, so the caller drops the rows that it can read. It never
//! returns a row whose attempt has an outcome. If the position of a row is unknown, the derivation selects the earliest
//! position that is certainly not too early.

use std::time::Duration;

use crate::decide::after_outcome;
use crate::occurrence::Run;
use crate::{DueKey, Occurrence, RunState, Schedule, Status, Timestamp};

/// Age up to which the store certainly has all runs of a schedule.
const YOUNG_MAX: Duration = Duration::from_secs(3_600);

/// Due rows that a schedule may have at the positions from `from` to `until`, both inclusive. The caller passes every
/// run of the schedule to [`Rebuild::add_run`] and then calls [`Rebuild::finish`].
#[derive(Debug)]
pub struct Rebuild<'a> {
    schedule: &'a Schedule,
    from: Timestamp,
    until: Timestamp,
    now: Timestamp,
    rows: Vec<DueKey>,
    /// Nominal instants before the schedule's `next` whose first runs have no record. These occurrences have started.
    unrecorded: Vec<Timestamp>,
    /// Nominal instant of the first occurrence after the last run. Before the first run, this is the first occurrence that
    /// certainly has no outcome if it has no run.
    expected: Option<Timestamp>,
    has_runs: bool,
    /// Run of the occurrence at the schedule's `next` instant.
    next: Option<Run>,
}

impl<'a> Rebuild<'a> {
    /// Every occurrence with a due row before `from` must have an outcome. `now` is the present instant. The caller passes
    /// the runs of the present revision in the order of their nominal instants.
    #[must_use]
    pub fn new(schedule: &'a Schedule, from: Timestamp, until: Timestamp, now: Timestamp) -> Self {
        // A store deletes old runs. An early occurrence without a run may therefore have an outcome, unless the schedule
        // is young.
        let is_young = schedule.updated_at >= from - YOUNG_MAX;
        let before = if is_young { schedule.updated_at } else { from - Duration::from_millis(1) };
        let expected = schedule.spec.when.next_after(schedule.updated_at, before);
        let (rows, unrecorded) = (Vec::new(), Vec::new());
        Rebuild { schedule, from, until, now, rows, unrecorded, expected, has_runs: false, next: None }
    }

    /// `is_redriven` is true if the run was a dead letter, a user redrove it, and the new run has no record.
    pub fn add_run(&mut self, run: &Run, is_redriven: bool) {
        let of = run.occurrence;
        match run.state {
            // The position of a row is never before its nominal instant.
            RunState::Retrying | RunState::Failed if of.nominal > self.until => {}
            RunState::Retrying => {
                let last = run.attempts.last();
                // If the clock was ahead during the attempt, the record of its end is in the future.
                let ended = last.map_or(self.from, |attempt| attempt.started_at + attempt.duration).min(self.now);
                let wait_ends = ended + self.schedule.spec.retry.backoff_max;
                let position = wait_ends.clamp(self.earliest().max(of.nominal), self.until);
                let attempt = last.map_or(1, |attempt| attempt.number.saturating_add(1));
                self.rows.push(DueKey { position, occurrence: of, attempt, target: self.schedule.spec.target.key() });
            }
            RunState::Failed if is_redriven => {
                if let Some(replay) = of.replay.checked_add(1) {
                    self.add(Occurrence { replay, ..of }, self.earliest().max(of.nominal));
                }
            }
            RunState::Missed { .. } | RunState::Succeeded | RunState::Failed | RunState::Cancelled => {}
        }
        if of.replay == 0 && of.revision == self.schedule.revision {
            self.expect_until(of.nominal);
            let last = if let RunState::Missed { last, .. } = run.state { last } else { of.nominal };
            let after = self.schedule.spec.when.next_after(self.schedule.updated_at, last);
            self.expected = if self.has_runs { after.max(self.expected) } else { after };
            self.has_runs = true;
            if self.schedule.next == Some(of.nominal) {
                self.next = Some(run.clone());
            }
        }
    }

    /// Records that the occurrences from `expected` to before `end` have no run.
    fn expect_until(&mut self, end: Timestamp) {
        let Schedule { updated_at, ref spec, next, .. } = *self.schedule;
        let end = next.map_or(end, |next| next.min(end));
        while let Some(nominal) = self.expected.filter(|nominal| *nominal < end && *nominal <= self.until) {
            self.unrecorded.push(nominal);
            self.expected = spec.when.next_after(updated_at, nominal);
        }
    }

    /// Returns the due rows.
    #[must_use]
    pub fn finish(mut self) -> Vec<DueKey> {
        if self.schedule.status == Status::Active
            && let Some(next) = self.schedule.next
        {
            self.expect_until(next);
            for nominal in std::mem::take(&mut self.unrecorded) {
                self.add(self.first_run(nominal), nominal.max(self.earliest()));
            }
            self.add_next(next);
        }
        self.rows
    }

    /// Returns the earliest position of a row. If the clock was ahead, the rows may lie in the future. They then get
    /// positions from the present instant on, as if an owner had set them back.
    fn earliest(&self) -> Timestamp {
        self.from.min(self.now)
    }

    fn add(&mut self, occurrence: Occurrence, position: Timestamp) {
        let target = self.schedule.spec.target.key();
        self.rows.push(DueKey { position, occurrence, attempt: 1, target });
    }

    fn first_run(&self, nominal: Timestamp) -> Occurrence {
        let Schedule { incarnation, revision, .. } = *self.schedule;
        Occurrence { incarnation, nominal, revision, replay: 0 }
    }

    fn add_next(&mut self, next: Timestamp) {
        match self.next.take() {
            None if next <= self.until => self.add(self.first_run(next), next.max(self.earliest())),
            Some(run) if run.state.is_final() => {
                let row = after_outcome(self.schedule, &run, self.schedule.spec.target.key(), self.earliest());
                self.rows.extend(row.filter(|row| row.position <= self.until));
            }
            None | Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;

//! Derivation of due rows from a schedule and its runs. An engine uses it if the due rows themselves are damaged.
//!
//! The derivation may return a row that exists elsewhere, so the caller drops the rows that it can read. It never
//! returns a row whose attempt has an outcome. If the position of a row is unknown, the derivation selects the earliest
//! position that is certainly not too early.

use std::collections::BTreeSet;

use crate::decide::after_outcome;
use crate::occurrence::Run;
use crate::{DueKey, Occurrence, RunState, Schedule, Status, Timestamp, When};

/// Due rows that a schedule may have at the positions from `from` to `until`, both inclusive. The caller passes every
/// run of the schedule to [`Rebuild::add_run`] and then calls [`Rebuild::finish`].
#[derive(Debug)]
pub struct Rebuild<'a> {
    schedule: &'a Schedule,
    from: Timestamp,
    until: Timestamp,
    now: Timestamp,
    rows: Vec<DueKey>,
    /// Nominal instants from `from` on whose first runs have a record.
    recorded: BTreeSet<Timestamp>,
    /// First and last nominal instants of missed occurrences that share one record.
    missed: Vec<(Timestamp, Timestamp)>,
    /// Occurrence after the last missed occurrences, if it has no record. Its row has a later position than its nominal
    /// instant.
    continued: Option<Timestamp>,
    /// Run of the occurrence at the schedule's `next` instant.
    next: Option<Run>,
}

impl<'a> Rebuild<'a> {
    /// Every occurrence with a due row before `from` must have an outcome. `now` is the present instant.
    #[must_use]
    pub fn new(schedule: &'a Schedule, from: Timestamp, until: Timestamp, now: Timestamp) -> Self {
        let (rows, recorded, missed) = (Vec::new(), BTreeSet::new(), Vec::new());
        Rebuild { schedule, from, until, now, rows, recorded, missed, continued: None, next: None }
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
            if self.continued == Some(of.nominal) {
                self.continued = None;
            }
            if let RunState::Missed { last, .. } = run.state {
                self.missed.push((of.nominal, last));
                self.continued = self.schedule.spec.when.next_after(self.schedule.updated_at, last);
            }
            if of.nominal >= self.from {
                self.recorded.insert(of.nominal);
            }
            if self.schedule.next == Some(of.nominal) {
                self.next = Some(run.clone());
            }
        }
        // Only the occurrences from `from` on matter, so the list stays short.
        self.missed.retain(|(_, last)| *last >= self.from);
    }

    /// Returns the due rows.
    #[must_use]
    pub fn finish(mut self) -> Vec<DueKey> {
        if self.schedule.status == Status::Active
            && let Some(next) = self.schedule.next
        {
            self.add_started(next);
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

    /// Adds the rows of the occurrences before `next` that have started and have no outcome.
    fn add_started(&mut self, next: Timestamp) {
        let Schedule { updated_at, ref spec, .. } = *self.schedule;
        if matches!(spec.when, When::At(_)) {
            return;
        }
        if let Some(nominal) = self.continued.filter(|nominal| *nominal < self.from.min(next)) {
            self.add(self.first_run(nominal), self.earliest());
        }
        let before = Timestamp::from_millis(self.from.as_millis().saturating_sub(1));
        let mut at = spec.when.next_after(updated_at, before.max(updated_at));
        while let Some(nominal) = at.filter(|at| *at < next && *at <= self.until) {
            let is_missed = self.missed.iter().any(|(first, last)| (*first..=*last).contains(&nominal));
            if !is_missed && !self.recorded.contains(&nominal) {
                self.add(self.first_run(nominal), nominal);
            }
            at = spec.when.next_after(updated_at, nominal);
        }
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

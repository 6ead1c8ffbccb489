//! Explanation of an occurrence that has a run.

use super::{Cause, Explanation, Facts, Verdict, delay, delays, end_of, moved, timing_of};
use crate::occurrence::Run;
use crate::outline::lateness;
use crate::{Attempt, AttemptResult, EGRESS_REJECTED, LATE_MIN, RunState, Status, TimingEnd, When};

/// Explains the instant `facts.at` by the run that represents the occurrence at this instant.
pub(super) fn explain(facts: &Facts<'_>, run: &Run) -> Explanation {
    let last = run.attempts.last();
    let attempts = last.map_or(0, |last| last.number);
    let explanation = match run.state {
        RunState::Succeeded => {
            let started_at = last.map_or(run.occurrence.nominal, |last| last.started_at);
            let fired = Explanation::new(Verdict::Fired, Cause::Fired { attempt: attempts, started_at });
            fired.because(late(facts, run)).because(failures(run))
        }
        RunState::Retrying if is_void(facts, run) => {
            let due = Cause::Due { since: last.map_or(facts.at, |last| last.started_at) };
            let change = match facts.is_in_flight {
                true => Explanation::new(Verdict::Pending, due).because([end(facts, run)]),
                false => Explanation::new(Verdict::DidNotFire, end(facts, run)),
            };
            change.because(failures(run))
        }
        RunState::Retrying => {
            let left = facts.schedule.spec.retry.attempts_max.saturating_sub(attempts);
            let retry = Cause::RetriesLeft { left, next_at: facts.retry_at };
            let unreachable = (!facts.is_owner_reachable).then_some(Cause::OwnerUnreachable);
            let waits = unreachable.into_iter().chain(delays(facts));
            Explanation::new(Verdict::Pending, retry).because(failures(run)).because(waits)
        }
        RunState::Failed => {
            let dead = Explanation::new(Verdict::Failed, Cause::DeadLetter { attempts });
            dead.because(failures(run)).because(late(facts, run))
        }
        RunState::Missed { last, count, attempt_possible } => {
            let timing = timing_of(facts, run.occurrence.revision);
            let replaced_by = timing.and_then(|(when, anchor)| when.next_after(anchor, last));
            Explanation::new(Verdict::DidNotFire, Cause::Missed { replaced_by, count, attempt_possible })
        }
        RunState::Cancelled => Explanation::new(Verdict::DidNotFire, end(facts, run)).because(failures(run)),
    };
    let replay = run.occurrence.replay;
    let redriven = (replay > 0).then_some(Cause::Redriven { replay });
    let moved = timing_of(facts, run.occurrence.revision).and_then(|(when, _)| moved(when, facts.at));
    explanation.because(redriven).because(moved)
}

/// Returns true if a change made the retries of a run void, although the run does not record it yet.
fn is_void(facts: &Facts<'_>, run: &Run) -> bool {
    let is_replaced = run.occurrence.replay == 0 && run.occurrence.revision != facts.schedule.revision;
    is_replaced || facts.schedule.status == Status::Cancelled
}

/// Returns the change that cancelled the run.
fn end(facts: &Facts<'_>, run: &Run) -> Cause {
    let revision = run.occurrence.revision;
    let cancellation = facts.past.iter().rfind(|past| past.end == TimingEnd::Cancelled);
    let change = facts.past.iter().find(|past| past.edition.revision == revision);
    // Only a cancellation cancels the run of a redriven dead letter.
    let past = if run.occurrence.replay > 0 { cancellation } else { change };
    match past {
        Some(past) => end_of(past),
        None if facts.schedule.status == Status::Cancelled
            && (run.occurrence.replay > 0 || facts.schedule.revision.0 <= revision.0 + 1) =>
        {
            Cause::Cancelled { at: None, by: None }
        }
        None => Cause::Replaced { revision, at: None, by: None },
    }
}

/// Returns the lateness of the run's first attempt and its causes. The result is empty if the attempt was on time.
fn late(facts: &Facts<'_>, run: &Run) -> Vec<Cause> {
    let Some(first) = run.attempts.first() else { return Vec::new() };
    let by = lateness(&run.occurrence, first.number, first.started_at);
    let Some(by) = by.filter(|by| *by >= LATE_MIN) else { return Vec::new() };
    let mut causes = vec![Cause::Late { by }];
    causes.extend(set_late(facts, run));
    causes.extend(caught_up(facts, run));
    causes.extend(first.delay.map(delay));
    causes
}

/// Returns the cause of an occurrence that was already due when a user set its timing.
fn set_late(facts: &Facts<'_>, run: &Run) -> Option<Cause> {
    let (when, from) = timing_of(facts, run.occurrence.revision)?;
    let is_late = matches!(when, When::At(_)) && from > run.occurrence.nominal;
    is_late.then_some(Cause::SetLate { at: from })
}

/// Returns the cause of an occurrence that fired as the latest of several overdue occurrences.
fn caught_up(facts: &Facts<'_>, run: &Run) -> Option<Cause> {
    let (when, anchor) = timing_of(facts, run.occurrence.revision)?;
    facts.runs.iter().find_map(|other| match other.state {
        RunState::Missed { last, count, .. } if other.occurrence.revision == run.occurrence.revision => {
            let is_before = when.next_after(anchor, last) == Some(run.occurrence.nominal);
            is_before.then_some(Cause::CaughtUp { missed: count })
        }
        _ => None,
    })
}

/// Returns the failures of the run's stored attempts, the latest first.
fn failures(run: &Run) -> impl Iterator<Item = Cause> {
    run.attempts.iter().rev().filter_map(failure)
}

fn failure(of: &Attempt) -> Option<Cause> {
    let attempt = of.number;
    match &of.result {
        AttemptResult::Answered(200..=299) | AttemptResult::Stored { .. } => None,
        AttemptResult::Answered(status) => Some(Cause::Answered { attempt, status: *status }),
        AttemptResult::TimedOut => Some(Cause::TimedOut { attempt }),
        AttemptResult::Panicked => Some(Cause::Panicked { attempt }),
        AttemptResult::Unreachable(reason) if reason.starts_with(EGRESS_REJECTED) => {
            Some(Cause::EgressRejected { attempt, reason: reason.clone() })
        }
        AttemptResult::Unreachable(reason) => Some(Cause::Unreachable { attempt, reason: reason.clone() }),
    }
}

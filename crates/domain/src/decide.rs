//! What follows from a schedule's state and an event, as values: the executor in `scheduler` carries it out.
//!
//! Nothing here asks for the time or for chance, and nothing is remembered. The shapes follow the changes of the store
//! port: what is durable before what is said there, and what must be written in which order is said here.
//!
//! Always true here: a recurring schedule's next due row is asked for when an occurrence starts, never by its outcome;
//! a retry keeps its occurrence and counts its attempt up; no position is earlier than `now`, and none is earlier than
//! its nominal instant.

use std::time::Duration;

use crate::occurrence::Run;
use crate::recurrence::CronError;
use crate::{AttemptResult, DueKey, Occurrence, RunState, Schedule, Status, TargetKey, Timestamp, When};

/// How long a schedule waits whose stored text is not understood, before it is looked at again.
pub const UNREADABLE_WAIT: Duration = Duration::from_secs(3_600);

/// The first due row of a schedule that was made, or changed, at its `updated_at`. `None` if nothing is due any more;
/// a one-shot is always due, however late.
#[must_use]
pub fn first(schedule: &Schedule, now: Timestamp) -> Option<DueKey> {
    let nominal = match &schedule.spec.when {
        When::At(at) => *at,
        when @ (When::Cron(_) | When::Every(_)) => when.next_after(schedule.updated_at, schedule.updated_at)?,
    };
    Some(planned(schedule, nominal, schedule.spec.target.key(), now))
}

/// The first due row of a schedule whose contents were changed and whose timing was not: of its `next`. `None` if it has none.
#[must_use]
pub fn kept(schedule: &Schedule, now: Timestamp) -> Option<DueKey> {
    Some(planned(schedule, schedule.next?, schedule.spec.target.key(), now))
}

/// What to do with a due row whose time has come.
#[derive(Clone, PartialEq, Debug)]
pub enum Start {
    /// Make the attempt. `advance`, a recurring schedule's next due row, is durable before the attempt's outcome is.
    Fire { advance: Option<DueKey> },
    /// Later occurrences of a recurring schedule are due, too. `missed` is this occurrence's outcome, and durable first:
    /// it says from where the schedule goes on (see [`after_outcome`]). Then comes `latest`, the due row of the last of
    /// them, which fires like any other.
    Skip { missed: Run, latest: DueKey },
    /// Nothing: the row is void.
    Drop(Void),
    /// The schedule was cancelled or changed, and the run has attempts already or was asked for again by a person:
    /// its outcome is [`RunState::Cancelled`].
    Cancel,
    /// The schedule's stored text is not understood, as after an exchange of the program for an older one. Write the
    /// row again, as `defer`, and tell the operator.
    Unreadable { error: CronError, defer: DueKey },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Void {
    /// The schedule was changed or cancelled since the row was written.
    Superseded,
    /// The one-shot has its outcome: the row was written twice.
    Ended,
}

/// # Panics
/// If `key` is of another schedule.
#[must_use]
pub fn at_start(schedule: &Schedule, key: &DueKey, now: Timestamp) -> Start {
    let occurrence = key.occurrence;
    assert_eq!(occurrence.incarnation, schedule.incarnation, "a due row starts its own schedule");
    let replayed = occurrence.replay > 0;
    if is_superseded(schedule, occurrence) {
        return if replayed || key.attempt > 1 { Start::Cancel } else { Start::Drop(Void::Superseded) };
    }
    if replayed || key.attempt > 1 {
        return Start::Fire { advance: None };
    }
    if !names(schedule, occurrence.nominal) {
        return Start::Drop(Void::Superseded);
    }
    if let Some(next) = schedule.next.filter(|next| occurrence.nominal < *next) {
        // It was started before, by an owner that ended before its outcome was durable, perhaps before the next row was.
        return Start::Fire { advance: Some(planned(schedule, next, key.target, now)) };
    }
    let anchor = schedule.updated_at;
    match &schedule.spec.when {
        When::At(_) if schedule.status == Status::Ended => Start::Drop(Void::Ended),
        When::At(_) => Start::Fire { advance: None },
        When::Cron(cron) if let Err(error) = cron.check() => {
            let position = key.position.max(now) + UNREADABLE_WAIT;
            Start::Unreadable { error, defer: DueKey { position, ..*key } }
        }
        when @ (When::Cron(_) | When::Every(_)) => match when.missed(anchor, occurrence.nominal, now) {
            Some(missed) => Start::Skip {
                latest: planned(schedule, missed.latest, key.target, now),
                missed: Run {
                    tenant: schedule.tenant,
                    occurrence,
                    state: RunState::Missed { last: missed.last, count: missed.count },
                    attempts: Vec::new(),
                },
            },
            None => {
                let next = when.next_after(anchor, occurrence.nominal);
                Start::Fire { advance: next.map(|nominal| planned(schedule, nominal, key.target, now)) }
            }
        },
    }
}

/// The row that a recurring schedule goes on with, when a row is found whose first attempt has an outcome already: an
/// owner may have ended before it was written.
#[must_use]
pub fn after_outcome(schedule: &Schedule, run: &Run, target: TargetKey, now: Timestamp) -> Option<DueKey> {
    let Occurrence { nominal, revision, replay, .. } = run.occurrence;
    let next = schedule.next?;
    if replay > 0 || revision != schedule.revision || matches!(schedule.spec.when, When::At(_)) {
        return None;
    }
    let next = match run.state {
        RunState::Missed { last, .. } if next == nominal => schedule.spec.when.next_after(schedule.updated_at, last)?,
        _ if next > nominal => next,
        _ => return None,
    };
    Some(planned(schedule, next, target, now))
}

/// What follows from an attempt, in the shape of the store's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub state: RunState,
    /// The retry; there is one if, and only if, `state` is [`RunState::Retrying`].
    pub then: Option<DueKey>,
    /// It was the schedule's last occurrence, and nothing more will happen to it.
    pub ends: bool,
}

/// `schedule` is what the attempt was made from; whether it was changed since is seen when the retry has its turn. Of one
/// that was superseded then already, what succeeds has succeeded, and what fails is not tried again.
/// `retry_after` is what the target asked for, counted from `now`; `random` draws the wait.
#[must_use]
pub fn after_attempt(
    schedule: &Schedule,
    key: &DueKey,
    result: &AttemptResult,
    retry_after: Option<Duration>,
    now: Timestamp,
    random: u64,
) -> Outcome {
    let superseded = is_superseded(schedule, key.occurrence);
    let wait = schedule.spec.retry.wait(key.attempt, random, retry_after);
    let state = match wait {
        _ if result.is_success() => RunState::Succeeded,
        _ if superseded => RunState::Cancelled,
        Some(wait) => {
            let retry = DueKey { position: key.position.max(now) + wait, attempt: key.attempt + 1, ..*key };
            return Outcome { state: RunState::Retrying, then: Some(retry), ends: false };
        }
        None => RunState::Failed,
    };
    let ends = !superseded && key.occurrence.replay == 0 && is_last(schedule, key.occurrence.nominal);
    Outcome { state, then: None, ends }
}

/// Recurring schedules end with the time that can be named, in the year 9999.
fn is_last(schedule: &Schedule, nominal: Timestamp) -> bool {
    let has_next = schedule.spec.when.next_after(schedule.updated_at, nominal).is_some();
    match &schedule.spec.when {
        When::At(_) => true,
        When::Every(_) => !has_next,
        // An expression that is not understood has no instants, but has not ended.
        When::Cron(cron) => !has_next && cron.check().is_ok(),
    }
}

/// The due row of a dead letter that a person has run again; `None` once an occurrence was run again 65,535 times.
#[must_use]
pub fn redrive(of: Occurrence, target: TargetKey, now: Timestamp) -> Option<DueKey> {
    let occurrence = Occurrence { replay: of.replay.checked_add(1)?, ..of };
    Some(DueKey { position: of.nominal.max(now), occurrence, attempt: 1, target })
}

/// The first attempt of the schedule's occurrence of the instant `nominal`.
fn planned(schedule: &Schedule, nominal: Timestamp, target: TargetKey, now: Timestamp) -> DueKey {
    let Schedule { incarnation, revision, .. } = *schedule;
    let occurrence = Occurrence { incarnation, nominal, revision, replay: 0 };
    DueKey { position: nominal.max(now), occurrence, attempt: 1, target }
}

/// Whether the schedule has an occurrence at `nominal`. A change that failed half-way can leave a row of a revision that
/// a later change took for other instants.
fn names(schedule: &Schedule, nominal: Timestamp) -> bool {
    let before = Timestamp::from_millis(nominal.as_millis() - 1);
    match &schedule.spec.when {
        When::At(at) => *at == nominal,
        When::Every(_) => schedule.spec.when.next_after(schedule.updated_at, before) == Some(nominal),
        // An expression that is not understood may name it.
        When::Cron(cron) => {
            cron.check().is_err() || schedule.spec.when.next_after(schedule.updated_at, before) == Some(nominal)
        }
    }
}

/// What was planned under an older revision is void. What a person has run again is not, unless all was cancelled.
fn is_superseded(schedule: &Schedule, occurrence: Occurrence) -> bool {
    let changed = occurrence.replay == 0 && occurrence.revision != schedule.revision;
    changed || schedule.status == Status::Cancelled
}

#[cfg(test)]
mod tests;

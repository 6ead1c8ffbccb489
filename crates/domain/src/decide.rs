//! Decisions that follow from a schedule's state and an event. A decision is a value, which the executor in the crate
//! `scheduler` carries out.
//!
//! This module uses no clock and no randomness, and has no state. A decision contains due rows and runs. The changes
//! that a caller passes to the store port also contain due rows and runs. The store port defines which write must be
//! durable before which response. This module defines the order of the writes.
//!
//! Invariants: a recurring schedule gets its next due row when an occurrence starts, and never because an attempt has
//! an outcome. A retry has the same occurrence and the next attempt number. The position of a due row is never earlier
//! than `now` or than its nominal instant.
//!
//! An owner may start an attempt of a recurring schedule before the next due row is durable. If the owner then fails,
//! the store contains no trace of the attempt, and the next owner may record the occurrence as missed. The function
//! [`may_start_untraced`] permits such a start only for instants near the poller's `closed`, so that the next owner can
//! recognize these occurrences. docs/decisions/0208-mark-missed-runs-that-may-have-started.md gives the reasons.

use std::time::Duration;

use crate::occurrence::Run;
use crate::recurrence::{CronError, Missed};
use crate::{AttemptResult, DueKey, Occurrence, RunState, Schedule, Status, TargetKey, Timestamp, When};

/// Returns the first due row of `schedule`, which a user created or changed at the instant `updated_at`. Returns `None`
/// if the schedule has no further occurrence. A one-shot schedule always has a due row, even if its instant is long
/// past.
#[must_use]
pub fn first(schedule: &Schedule, now: Timestamp) -> Option<DueKey> {
    let nominal = match &schedule.spec.when {
        When::At(at) => *at,
        when @ (When::Cron(_) | When::Every { .. }) => when.next_after(schedule.updated_at, schedule.updated_at)?,
    };
    Some(due_row(schedule, nominal, schedule.spec.target.key(), now))
}

/// Returns the due row for the schedule's `next` instant after a user changed the schedule, but not its timing. Returns
/// `None` if the schedule has no `next` instant.
#[must_use]
pub fn kept(schedule: &Schedule, now: Timestamp) -> Option<DueKey> {
    Some(due_row(schedule, schedule.next?, schedule.spec.target.key(), now))
}

/// Decision about a due row at its due instant.
#[derive(Clone, PartialEq, Debug)]
pub enum Start {
    /// The executor starts the attempt. `advance` is the next due row of a recurring schedule. This row must be durable
    /// before the outcome of the attempt.
    Fire { advance: Option<DueKey> },
    /// Later occurrences of the recurring schedule are due too. The executor first writes `missed`, the outcome of this
    /// occurrence. If the owner then fails, the next owner continues from this outcome (see [`after_outcome`]). After
    /// the outcome, the executor writes `latest`, the due row of the latest occurrence, which fires as usual.
    Skip { missed: Run, latest: DueKey },
    /// The schedule no longer has an occurrence at the instant of the due row, because the data of its time zone
    /// changed. The executor writes `next`, the schedule's next due row, instead of an outcome.
    Move { next: DueKey },
    /// The executor drops the due row, because the row is void.
    Drop(Void),
    /// The executor writes the outcome [`RunState::Cancelled`]. A user cancelled or changed the schedule, and the run
    /// already has attempts or is a redrive.
    Cancel,
    /// The program cannot parse the schedule's stored text, for example after a downgrade of the program. The executor
    /// logs `error`, and the owner defers the due row.
    Unreadable { error: CronError },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Void {
    /// The due row is older than the last change or the cancellation of the schedule.
    Superseded,
    /// The one-shot schedule already has its outcome, and this row is a duplicate.
    Ended,
}

/// Occurrences that fire if several occurrences of a recurring schedule are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CatchUp {
    /// Only the latest due occurrence fires. The earlier occurrences are missed.
    Latest,
    /// Every occurrence fires, one after another.
    Every,
}

/// Longest time by which the nominal instant of an occurrence may be after the poller's `closed` for an untraced start.
/// With a shorter time, more attempts wait for a write of the store. With a longer time, more missed runs have the mark
/// `attempt_possible` although no attempt started.
pub const UNTRACED_AFTER_CLOSED_MAX: Duration = Duration::from_secs(5);

/// Longest time by which new data of a time zone moves an occurrence to an earlier instant.
const ZONE_CHANGE_MAX: Duration = Duration::from_secs(3 * 3_600);

/// Returns true if an owner may start the attempt of a recurring schedule's occurrence at `nominal` before the
/// schedule's next due row is durable. `closed` is the durable position of the poller at the start of the attempt.
///
/// `closed` only moves ahead. If this function returns false for the `closed` that an owner reads when it takes a
/// shard, no earlier owner has started the attempt without a trace.
#[must_use]
pub fn may_start_untraced(nominal: Timestamp, closed: Timestamp) -> bool {
    nominal <= closed + UNTRACED_AFTER_CLOSED_MAX
}

/// Decides what the executor does with a due row at `now`. `closed_at_take` is the durable `closed` of the poller at
/// the time when the owner took the shard.
///
/// # Panics
/// Panics if `key` belongs to another schedule.
#[must_use]
pub fn at_start(
    schedule: &Schedule,
    key: &DueKey,
    catch_up: CatchUp,
    closed_at_take: Timestamp,
    now: Timestamp,
) -> Start {
    let occurrence = key.occurrence;
    assert_eq!(occurrence.incarnation, schedule.incarnation, "the due row belongs to this incarnation of the schedule");
    let replayed = occurrence.replay > 0;
    if is_superseded(schedule, occurrence) {
        return if replayed || key.attempt > 1 { Start::Cancel } else { Start::Drop(Void::Superseded) };
    }
    if replayed || key.attempt > 1 {
        return Start::Fire { advance: None };
    }
    if !has_occurrence_at(schedule, occurrence.nominal) {
        return without_occurrence(schedule, key, catch_up, now);
    }
    if let Some(next) = schedule.next.filter(|next| occurrence.nominal < *next) {
        // An earlier owner started this occurrence. The owner failed before the outcome was durable, and perhaps before
        // the next row was durable.
        return Start::Fire { advance: Some(due_row(schedule, next, key.target, now)) };
    }
    let anchor = schedule.updated_at;
    match &schedule.spec.when {
        When::At(_) if schedule.status == Status::Ended => Start::Drop(Void::Ended),
        When::At(_) => Start::Fire { advance: None },
        When::Cron(cron) if let Err(error) = cron.check() => Start::Unreadable { error },
        when @ (When::Cron(_) | When::Every { .. }) => match overdue(schedule, occurrence.nominal, catch_up, now) {
            Some(missed) => Start::Skip {
                latest: due_row(schedule, missed.latest, key.target, now),
                missed: Run {
                    tenant: schedule.tenant,
                    occurrence,
                    state: RunState::Missed {
                        last: missed.last,
                        count: missed.count,
                        attempt_possible: may_start_untraced(occurrence.nominal, closed_at_take),
                    },
                    attempts: Vec::new(),
                },
            },
            None => {
                let next = when.next_after(anchor, occurrence.nominal);
                Start::Fire { advance: next.map(|nominal| due_row(schedule, nominal, key.target, now)) }
            }
        },
    }
}

/// Decides about a due row at an instant at which the schedule has no occurrence. If the schedule waits for this
/// instant, earlier data of its time zone determined it, and no other due row continues the schedule. If the new data
/// moved the occurrence to an earlier instant, this instant passed while the schedule waited, so the occurrence fires
/// late, at the instant of the due row. A schedule with another occurrence soon, or with a later one that is due, waits
/// for this occurrence instead, because the late callback could be a second one.
///
/// If `next` is a later instant, the function cannot distinguish new data from a failed change. It then drops the due
/// row, even if an owner has started its attempt and the outcome is not durable.
fn without_occurrence(schedule: &Schedule, key: &DueKey, catch_up: CatchUp, now: Timestamp) -> Start {
    let nominal = key.occurrence.nominal;
    let (when, anchor) = (&schedule.spec.when, schedule.updated_at);
    let is_next = schedule.next == Some(nominal) && schedule.status == Status::Active;
    if !is_next || !matches!(when, When::Cron(_)) {
        return Start::Drop(Void::Superseded);
    }
    let following = when.next_after(anchor, nominal);
    let next = following.map(|nominal| due_row(schedule, nominal, key.target, now));
    let is_alone = following.is_none_or(|following| following >= nominal + ZONE_CHANGE_MAX)
        && overdue(schedule, nominal, catch_up, now).is_none();
    let since = anchor.max(nominal - ZONE_CHANGE_MAX);
    let is_moved_earlier = when.next_after(anchor, since).is_some_and(|moved| moved < nominal);
    match next {
        advance if is_moved_earlier && is_alone => Start::Fire { advance },
        Some(next) => Start::Move { next },
        None => Start::Drop(Void::Superseded),
    }
}

/// Returns the overdue occurrences of a recurring schedule if only the latest of them fires. Returns `None` if every
/// occurrence fires, or if no occurrence after `nominal` is due.
fn overdue(schedule: &Schedule, nominal: Timestamp, catch_up: CatchUp, now: Timestamp) -> Option<Missed> {
    match catch_up {
        CatchUp::Latest => schedule.spec.when.missed(schedule.updated_at, nominal, now),
        CatchUp::Every => None,
    }
}

/// Returns the due row with which a recurring schedule continues after `run`, which already has an outcome. The caller
/// always writes this row, because an earlier owner may have failed before it wrote the row.
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
    Some(due_row(schedule, next, target, now))
}

/// Outcome of an attempt, with the values that the store writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub state: RunState,
    /// Due row of the retry, present if and only if `state` is [`RunState::Retrying`].
    pub then: Option<DueKey>,
    /// True if this outcome ends the schedule, because no further occurrence follows.
    pub ends: bool,
}

/// Decides the outcome of an attempt. `schedule` is the schedule that the executor read for the attempt. If `schedule`
/// shows that the run is void, a successful attempt still has the outcome `Succeeded`, but a failed attempt cancels the
/// run. If a user changes the schedule later, [`at_start`] cancels the retry. `retry_after` is the wait from `now` that
/// the target requested. `random` selects the wait before the retry.
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

/// Returns true if no occurrence follows `nominal`. Recurring schedules end with the last representable instant, in the
/// year 9999.
fn is_last(schedule: &Schedule, nominal: Timestamp) -> bool {
    let has_next = schedule.spec.when.next_after(schedule.updated_at, nominal).is_some();
    match &schedule.spec.when {
        When::At(_) => true,
        When::Every { .. } => !has_next,
        // An unreadable expression yields no instants, but the schedule has not ended.
        When::Cron(cron) => !has_next && cron.check().is_ok(),
    }
}

/// Returns the due row of a redriven dead letter, or `None` if users have redriven the occurrence 65,535 times.
#[must_use]
pub fn redrive(dead_letter: Occurrence, target: TargetKey, now: Timestamp) -> Option<DueKey> {
    let occurrence = Occurrence { replay: dead_letter.replay.checked_add(1)?, ..dead_letter };
    Some(DueKey { position: dead_letter.nominal.max(now), occurrence, attempt: 1, target })
}

/// Returns the due row for the first attempt of the schedule's occurrence at `nominal`.
fn due_row(schedule: &Schedule, nominal: Timestamp, target: TargetKey, now: Timestamp) -> DueKey {
    let Schedule { incarnation, revision, .. } = *schedule;
    let occurrence = Occurrence { incarnation, nominal, revision, replay: 0 };
    DueKey { position: nominal.max(now), occurrence, attempt: 1, target }
}

/// Returns true if the schedule has an occurrence at `nominal`. A failed change of the schedule can leave a due row in
/// the store. A later change may then have the same revision as that row, but other instants.
fn has_occurrence_at(schedule: &Schedule, nominal: Timestamp) -> bool {
    let before = Timestamp::from_millis(nominal.as_millis() - 1);
    match &schedule.spec.when {
        When::At(at) => *at == nominal,
        When::Every { .. } => schedule.spec.when.next_after(schedule.updated_at, before) == Some(nominal),
        // An unreadable expression may match the instant, so the function returns true.
        When::Cron(cron) => {
            cron.check().is_err() || schedule.spec.when.next_after(schedule.updated_at, before) == Some(nominal)
        }
    }
}

/// Returns true if the occurrence is void: it belongs to an older revision, or a user cancelled the schedule. A redrive
/// is void only if a user cancelled the schedule.
fn is_superseded(schedule: &Schedule, occurrence: Occurrence) -> bool {
    let changed = occurrence.replay == 0 && occurrence.revision != schedule.revision;
    changed || schedule.status == Status::Cancelled
}

#[cfg(test)]
mod tests;

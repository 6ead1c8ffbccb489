//! Explanation of one instant of a schedule: the chain of causes why the schedule fired, did not fire or will not fire
//! at this instant.
//!
//! [`explain`] is a pure function of [`Facts`]. The caller reads the facts from the store and, for an occurrence that
//! waits, from the owner of the schedule.
//!
//! Invariants: the first cause alone answers the question. Each later cause gives the reason for an earlier cause. The
//! chain contains no cause that the facts do not prove. If history that the answer needs may be deleted, the verdict is
//! [`Verdict::Unknown`].
//!
//! docs/decisions/0241-explain-occurrences-from-past-timings.md gives the reasons for the design.

mod run;

use std::time::Duration;

use crate::occurrence::Run;
use crate::{
    ClockChange, Delay, LATE_MIN, PastTiming, Quota, Revision, RunState, Schedule, Status, Timestamp, TimingEnd, When,
};

/// Facts about a schedule and one instant.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Instant that the explanation is about.
    pub at: Timestamp,
    pub now: Timestamp,
    pub schedule: &'a Schedule,
    /// Past timings of the schedule, in the order of their revisions.
    pub past: &'a [PastTiming],
    /// All runs of the schedule whose nominal instant is `at`, and the newest missed runs before `at`, in the order of
    /// [`crate::Occurrence`].
    pub runs: &'a [Run],
    /// Instant before which the store may have deleted runs and past timings.
    pub history_from: Timestamp,
    /// Position of the due row of the run's retry, if the caller knows it.
    pub retry_at: Option<Timestamp>,
    /// Reason why the occurrence at `at` waits now. `None` if it does not wait, or if its owner knows no reason.
    pub delay: Option<Delay>,
    /// True if the owner makes an attempt of an occurrence at `at` now.
    pub is_in_flight: bool,
    pub is_owner_reachable: bool,
}

/// Time after which an occurrence that has started has a run. It is far longer than an attempt.
const STARTED_MAX: Duration = Duration::from_secs(86_400);

/// Explanation of one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    pub verdict: Verdict,
    /// Causes of the verdict. The list is not empty.
    pub causes: Vec<Cause>,
}

/// Answer to the question whether the schedule fires at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The instant is in the future, and the schedule has an occurrence at this instant.
    WillFire,
    /// The instant is in the future, and the schedule has no occurrence at this instant.
    WillNotFire,
    /// The occurrence is due and has no outcome yet.
    Pending,
    /// An attempt succeeded.
    Fired,
    /// All attempts failed.
    Failed,
    /// The instant is in the past, and no attempt of an occurrence at this instant has an outcome that counts.
    DidNotFire,
    /// The facts do not contain the answer.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The occurrence becomes due after this time.
    NotYetDue {
        due_in: Duration,
    },
    /// The attempt with this number succeeded. It started at `started_at`.
    Fired {
        attempt: u16,
        started_at: Timestamp,
    },
    /// The first attempt started this long after the nominal instant.
    Late {
        by: Duration,
    },
    /// The occurrence is due, and the record of its run does not exist yet. An attempt may be in flight.
    Due {
        since: Timestamp,
    },
    /// A later change of the schedule made the occurrence void. `revision` is the revision of the occurrence.
    Replaced {
        revision: Revision,
        at: Option<Timestamp>,
        by: Option<String>,
    },
    /// `by` is the id of the API key that cancelled the schedule.
    Cancelled {
        at: Option<Timestamp>,
        by: Option<String>,
    },
    /// The schedule has no occurrence after `last`.
    Ended {
        last: Option<Timestamp>,
    },
    /// A later occurrence was due too, so only the later occurrence fired. `count` occurrences were missed together.
    Missed {
        replaced_by: Option<Timestamp>,
        count: u64,
        attempt_possible: bool,
    },
    /// The target responded to the attempt with a status other than 2xx.
    Answered {
        attempt: u16,
        status: u16,
    },
    TimedOut {
        attempt: u16,
    },
    /// The attempt could not reach the target.
    Unreachable {
        attempt: u16,
        reason: String,
    },
    /// The tenant's policy rejected the address of the target.
    EgressRejected {
        attempt: u16,
        reason: String,
    },
    /// The executor failed during the attempt.
    Panicked {
        attempt: u16,
    },
    /// The run has `left` further attempts.
    RetriesLeft {
        left: u16,
        next_at: Option<Timestamp>,
    },
    /// The run used all its attempts.
    DeadLetter {
        attempts: u16,
    },
    /// A user redrove the dead letter. This is redrive number `replay`.
    Redriven {
        replay: u16,
    },
    /// The tenant's attempts have reached a quota since this instant.
    OverQuota {
        quota: Quota,
        since: Timestamp,
    },
    NoSlot,
    CircuitOpen {
        until: Option<Timestamp>,
    },
    /// Earlier occurrences were overdue. Only the latest overdue occurrence fired, after the missed ones.
    CaughtUp {
        missed: u64,
    },
    MemberDown {
        until: Timestamp,
    },
    /// A user created or changed the schedule after the nominal instant of its occurrence.
    SetLate {
        at: Timestamp,
    },
    /// The caller cannot reach the owner of the schedule, or the schedule has no owner.
    OwnerUnreachable,
    /// The program cannot read the stored schedule.
    RowUnreadable {
        reason: String,
    },
    /// The timing has no occurrence at the instant. `next` is its next occurrence.
    NoMatch {
        next: Option<Timestamp>,
    },
    /// A clock change of the time zone moves or suppresses the occurrence.
    ZoneMoved(ClockChange),
    /// The schedule did not exist at the instant.
    NotCreated {
        created_at: Timestamp,
    },
    /// The store may have deleted the history before `before`.
    HistoryDeleted {
        before: Timestamp,
    },
}

impl Explanation {
    fn new(verdict: Verdict, first: Cause) -> Self {
        Explanation { verdict, causes: vec![first] }
    }

    /// Explains why nothing is known about a schedule whose row the store cannot read.
    #[must_use]
    pub fn unreadable(reason: &str) -> Self {
        Explanation::new(Verdict::Unknown, Cause::RowUnreadable { reason: reason.to_owned() })
    }

    fn because(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes.extend(causes);
        self
    }
}

/// Explains the schedule's behaviour at the instant `facts.at`.
#[must_use]
pub fn explain(facts: &Facts<'_>) -> Explanation {
    // The run of the newest redrive and revision comes last.
    if let Some(run) = facts.runs.iter().filter(|run| run.occurrence.nominal == facts.at).max_by_key(|run| order(run)) {
        return run::explain(facts, run);
    }
    match missed_at(facts) {
        Some(run) => run::explain(facts, run),
        None => without_run(facts),
    }
}

fn order(run: &Run) -> (Revision, u16) {
    (run.occurrence.revision, run.occurrence.replay)
}

/// Returns the missed run that represents an occurrence at `facts.at`.
fn missed_at<'a>(facts: &Facts<'a>) -> Option<&'a Run> {
    let covers = |run: &&Run| match run.state {
        RunState::Missed { last, .. } => {
            let (when, anchor) = timing_of(facts, run.occurrence.revision)?;
            let is_within = run.occurrence.nominal <= facts.at && facts.at <= last;
            (is_within && when.is_at(anchor, facts.at)).then_some(())
        }
        _ => None,
    };
    facts.runs.iter().rfind(|run| covers(run).is_some())
}

/// Returns the timing of a revision, and its anchor.
fn timing_of<'a>(facts: &Facts<'a>, revision: Revision) -> Option<(&'a When, Timestamp)> {
    let schedule = facts.schedule;
    let past = facts.past.iter().find(|past| past.edition.revision == revision);
    let current = || (revision == schedule.revision).then_some((&schedule.spec.when, schedule.updated_at));
    past.map(|past| (&past.when, past.from)).or_else(current)
}

/// Explains an instant that has no run.
fn without_run(facts: &Facts<'_>) -> Explanation {
    let Facts { at, now, schedule, .. } = *facts;
    let no = if at > now { Verdict::WillNotFire } else { Verdict::DidNotFire };
    // A change that keeps the timing also keeps a `next` from before the change.
    if schedule.status == Status::Active && schedule.next == Some(at) {
        return current(facts, no);
    }
    let in_force = facts.past.iter().rfind(|past| past.is_in_force_at(at) && past.until.is_some());
    if let Some(past) = in_force {
        return within_past(facts, past, no);
    }
    let is_one_shot_at = matches!(schedule.spec.when, When::At(instant) if instant == at);
    if at < schedule.created_at && !is_one_shot_at {
        return Explanation::new(no, Cause::NotCreated { created_at: schedule.created_at });
    }
    // Each change leaves a row. The store may have deleted the row of this time, together with the runs.
    if at < schedule.updated_at && !is_one_shot_at {
        return Explanation::new(Verdict::Unknown, Cause::HistoryDeleted { before: schedule.updated_at });
    }
    match schedule.status {
        Status::Cancelled => cancelled(facts, no),
        Status::Active | Status::Ended => current(facts, no),
    }
}

/// Explains an instant at which the past timing `past` was in force.
fn within_past(facts: &Facts<'_>, past: &PastTiming, no: Verdict) -> Explanation {
    let at = facts.at;
    if !past.when.is_at(past.from, at) || at <= past.from && !matches!(past.when, When::At(_)) {
        return replaced_before(facts, no, &past.when, past.from);
    }
    if at < facts.history_from {
        return Explanation::new(Verdict::Unknown, Cause::HistoryDeleted { before: facts.history_from });
    }
    if facts.is_in_flight {
        return Explanation::new(Verdict::Pending, Cause::Due { since: at }).because([end_of(past)]);
    }
    // The occurrence was due, but the change came before its start.
    let unreachable = (!facts.is_owner_reachable).then_some(Cause::OwnerUnreachable);
    Explanation::new(no, end_of(past)).because(unreachable)
}

fn end_of(past: &PastTiming) -> Cause {
    let (at, by) = (past.until, past.by.clone());
    match past.end {
        TimingEnd::Replaced => Cause::Replaced { revision: past.edition.revision, at, by },
        TimingEnd::Cancelled => Cause::Cancelled { at, by },
    }
}

/// Explains an instant at which `when` was in force and has no occurrence. An earlier timing may have had an occurrence
/// at the instant, which a change made void.
fn replaced_before(facts: &Facts<'_>, no: Verdict, when: &When, anchor: Timestamp) -> Explanation {
    let at = facts.at;
    let next = when.next_after(anchor, at);
    let is_over = facts.schedule.status == Status::Ended && next.is_none();
    let last = if let When::At(instant) = when { Some(*instant) } else { None };
    let no_match = if is_over { Cause::Ended { last } } else { Cause::NoMatch { next } };
    let void = facts.past.iter().rfind(|past| {
        let is_over = past.until.is_some_and(|until| until <= at);
        is_over && past.end == TimingEnd::Replaced && past.when.is_at(past.from, at)
    });
    let causes = void.map(end_of).into_iter().chain([no_match]).chain(moved(when, at));
    Explanation { verdict: no, causes: causes.collect() }
}

fn moved(when: &When, at: Timestamp) -> Option<Cause> {
    match when {
        When::Cron(cron) => cron.clock_change_at(at).map(Cause::ZoneMoved),
        When::At(_) | When::Every { .. } => None,
    }
}

/// Explains an instant after the cancellation of the schedule, or at an unknown time relative to the cancellation.
fn cancelled(facts: &Facts<'_>, no: Verdict) -> Explanation {
    let Facts { at, schedule, .. } = *facts;
    let last = facts.past.iter().rfind(|past| past.end == TimingEnd::Cancelled);
    let cause = last.map_or(Cause::Cancelled { at: None, by: None }, end_of);
    let is_at = schedule.spec.when.is_at(schedule.updated_at, at);
    let is_deleted = is_at && at < facts.history_from && last.is_none_or(|last| last.until.is_none());
    if is_deleted {
        return Explanation::new(Verdict::Unknown, Cause::HistoryDeleted { before: facts.history_from });
    }
    let no_match = (!is_at).then_some(Cause::NoMatch { next: None });
    Explanation::new(no, cause).because(no_match).because(moved(&schedule.spec.when, at))
}

/// Explains an instant by the current timing.
fn current(facts: &Facts<'_>, no: Verdict) -> Explanation {
    let Facts { at, now, schedule, .. } = *facts;
    let (when, anchor) = (&schedule.spec.when, schedule.updated_at);
    if let When::Cron(cron) = when
        && let Err(error) = cron.check()
    {
        let verdict = if at > now { Verdict::Unknown } else { Verdict::Pending };
        return Explanation::new(verdict, Cause::RowUnreadable { reason: error.to_string() });
    }
    let is_one_shot = matches!(when, When::At(_));
    let is_at = when.is_at(anchor, at) && (is_one_shot || at > anchor) || schedule.next == Some(at);
    let is_ended = schedule.status == Status::Ended;
    if !is_at {
        return replaced_before(facts, no, when, anchor);
    }
    if at > now {
        let unreachable = (!facts.is_owner_reachable).then_some(Cause::OwnerUnreachable);
        let causes = unreachable.into_iter().chain(delays(facts)).chain(moved(when, at));
        return Explanation::new(Verdict::WillFire, Cause::NotYetDue { due_in: at.since(now) }).because(causes);
    }
    // Every occurrence before `next` has started, and every started occurrence gets a run.
    let has_started = is_ended || schedule.next.is_some_and(|next| at < next);
    let deleted_before = facts.history_from.max(now - STARTED_MAX);
    if has_started && at < deleted_before {
        return Explanation::new(Verdict::Unknown, Cause::HistoryDeleted { before: deleted_before });
    }
    let since = if is_one_shot { at.max(anchor) } else { at };
    let unreachable = (!facts.is_owner_reachable).then_some(Cause::OwnerUnreachable);
    let set_late = (is_one_shot && anchor > at + LATE_MIN).then_some(Cause::SetLate { at: anchor });
    let causes = unreachable.into_iter().chain(set_late).chain(delays(facts)).chain(moved(when, at));
    Explanation::new(Verdict::Pending, Cause::Due { since }).because(causes)
}

/// Returns the cause of the present delay.
fn delays(facts: &Facts<'_>) -> Option<Cause> {
    facts.delay.map(delay)
}

fn delay(delay: Delay) -> Cause {
    match delay {
        Delay::Quota { quota, since } => Cause::OverQuota { quota, since },
        Delay::Slot => Cause::NoSlot,
        Delay::Circuit { until } => Cause::CircuitOpen { until },
        Delay::MemberDown { until } => Cause::MemberDown { until },
    }
}

#[cfg(test)]
mod tests;

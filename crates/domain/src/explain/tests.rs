use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use crate::{
    Attempt, AttemptResult, Cron, HttpTarget, Incarnation, Occurrence, PollerId, RetryPolicy, ScheduleId,
    ScheduleVersion, Spec, Target, TenantId,
};

/// Instant at which a user created the schedule of a test: 2026-01-01T00:00:00Z.
const CREATED_AT: Timestamp = Timestamp::from_millis(1_767_225_600_000);
const REVISION: Revision = Revision(3);

fn after(secs: u64) -> Timestamp {
    CREATED_AT + Duration::from_secs(secs)
}

fn instant(text: &str) -> Timestamp {
    let parsed: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_millis(parsed.as_millisecond())
}

/// Case of a test: facts that the case owns.
#[derive(Clone)]
struct Case {
    at: Timestamp,
    now: Timestamp,
    schedule: Schedule,
    past: Vec<PastTiming>,
    runs: Vec<Run>,
    history_from: Timestamp,
    retry_at: Option<Timestamp>,
    delay: Option<Delay>,
    is_in_flight: bool,
    is_owner_reachable: bool,
}

impl Case {
    /// Returns a case about an active schedule without runs.
    fn new(when: When, at: Timestamp, now: Timestamp) -> Self {
        let incarnation = Incarnation::new(CREATED_AT, 7);
        let id = ScheduleId::from_incarnation(incarnation);
        let target = Target::Http(HttpTarget {
            url: "https://example.org/hook".to_owned(),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        });
        let (payload, labels, retry) = (Bytes::new(), BTreeMap::new(), RetryPolicy::default());
        let next = match &when {
            When::At(instant) => Some(*instant),
            when => when.next_after(CREATED_AT, now),
        };
        let schedule = Schedule {
            tenant: TenantId(1),
            poller: PollerId::of(TenantId(1), 0, 4, &id),
            id,
            incarnation,
            revision: REVISION,
            status: Status::Active,
            created_at: CREATED_AT,
            updated_at: CREATED_AT,
            next,
            spec: Spec { when, target, payload, labels, retry },
        };
        let (past, runs) = (Vec::new(), Vec::new());
        let history_from = CREATED_AT - Duration::from_secs(86_400);
        let (retry_at, delay, is_in_flight, is_owner_reachable) = (None, None, false, true);
        Case { at, now, schedule, past, runs, history_from, retry_at, delay, is_in_flight, is_owner_reachable }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Adds a run of the occurrence at `nominal`, and its attempts with these lags after `nominal` and these results.
    fn run(self, nominal: Timestamp, state: RunState, attempts: &[(u64, AttemptResult)]) -> Self {
        self.run_of(REVISION, nominal, state, attempts)
    }

    fn run_of(
        mut self,
        revision: Revision,
        nominal: Timestamp,
        state: RunState,
        attempts: &[(u64, AttemptResult)],
    ) -> Self {
        let attempts = (1_u16..).zip(attempts).map(|(number, (lag, result))| Attempt {
            number,
            started_at: nominal + Duration::from_millis(*lag),
            duration: Duration::from_millis(30),
            result: result.clone(),
            delay: None,
            excerpt: None,
        });
        let attempts = attempts.collect();
        let occurrence = Occurrence { incarnation: self.schedule.incarnation, nominal, revision, replay: 0 };
        self.runs.push(Run { tenant: TenantId(1), occurrence, state, attempts });
        self
    }

    /// Adds the timing `when` of the revision before the current one, which ended at `until`.
    fn past(mut self, when: When, until: Timestamp, end: TimingEnd, by: Option<&str>) -> Self {
        let edition = ScheduleVersion { incarnation: self.schedule.incarnation, revision: Revision(REVISION.0 - 1) };
        let (until, by) = (Some(until), by.map(str::to_owned));
        if end == TimingEnd::Replaced {
            self.schedule.updated_at = until.unwrap();
        } else {
            (self.schedule.status, self.schedule.next) = (Status::Cancelled, None);
        }
        self.past.push(PastTiming { edition, when, from: CREATED_AT, until, end, by });
        self
    }

    fn explain(&self) -> Explanation {
        explain(&Facts {
            at: self.at,
            now: self.now,
            schedule: &self.schedule,
            past: &self.past,
            runs: &self.runs,
            history_from: self.history_from,
            retry_at: self.retry_at,
            delay: self.delay,
            is_in_flight: self.is_in_flight,
            is_owner_reachable: self.is_owner_reachable,
        })
    }
}

fn once(at: u64) -> When {
    When::At(after(at))
}

fn every_minute() -> When {
    When::every(Duration::from_secs(60))
}

fn cron(expression: &str) -> When {
    When::Cron(Cron::parse(expression, "Europe/Berlin").unwrap())
}

fn success() -> AttemptResult {
    AttemptResult::Answered(204)
}

fn unreachable(reason: &str) -> AttemptResult {
    AttemptResult::Unreachable(reason.to_owned())
}

/// Case about the occurrence at 60 s, which has one late and successful attempt.
fn late(delay: Option<Delay>) -> Case {
    let case = Case::new(once(60), after(60), after(1_000));
    case.run(after(60), RunState::Succeeded, &[(9_000, success())]).with(|case| case.runs[0].attempts[0].delay = delay)
}

/// Case about the occurrence at 60 s, in which every attempt failed.
fn failed(results: &[(u64, AttemptResult)]) -> Case {
    Case::new(once(60), after(60), after(1_000)).run(after(60), RunState::Failed, results)
}

fn causes_of_late(cause: Cause) -> Vec<Cause> {
    let started_at = after(69);
    vec![Cause::Fired { attempt: 1, started_at }, Cause::Late { by: Duration::from_secs(9) }, cause]
}

fn check(cases: Vec<(&str, Case, Verdict, Vec<Cause>)>) {
    for (name, case, verdict, causes) in cases {
        assert_eq!(case.explain(), Explanation { verdict, causes }, "{name}");
    }
}

#[test]
fn occurrence_with_attempts_has_the_causes_of_its_run() {
    let quota = Delay::Quota { quota: Quota::CallbacksPerMinute, since: after(50) };
    let missed = RunState::Missed { last: after(240), count: 4, attempt_possible: false };
    let caught_up = Case::new(every_minute(), after(300), after(400)).run(after(60), missed, &[]);
    let caught_up = caught_up.run(after(300), RunState::Succeeded, &[(9_000, success())]);
    let dead = |attempts| Cause::DeadLetter { attempts };
    let refused = "egress_refused: 10.0.0.1 is a private address";
    check(vec![
        (
            "the second attempt succeeded",
            Case::new(once(60), after(60), after(1_000)).run(
                after(60),
                RunState::Succeeded,
                &[(5, AttemptResult::Answered(503)), (900, success())],
            ),
            Verdict::Fired,
            vec![
                Cause::Fired { attempt: 2, started_at: after(60) + Duration::from_millis(900) },
                Cause::Answered { attempt: 1, status: 503 },
            ],
        ),
        (
            "the attempt was on time",
            Case::new(once(60), after(60), after(1_000)).run(after(60), RunState::Succeeded, &[(99, success())]),
            Verdict::Fired,
            vec![Cause::Fired { attempt: 1, started_at: after(60) + Duration::from_millis(99) }],
        ),
        (
            "a quota delayed the attempt",
            late(Some(quota)),
            Verdict::Fired,
            causes_of_late(Cause::OverQuota { quota: Quota::CallbacksPerMinute, since: after(50) }),
        ),
        ("no slot was free", late(Some(Delay::Slot)), Verdict::Fired, causes_of_late(Cause::NoSlot)),
        (
            "the circuit was open",
            late(Some(Delay::Circuit { until: Some(after(69)) })),
            Verdict::Fired,
            causes_of_late(Cause::CircuitOpen { until: Some(after(69)) }),
        ),
        (
            "no member served the shard",
            late(Some(Delay::MemberDown { until: after(68) })),
            Verdict::Fired,
            causes_of_late(Cause::MemberDown { until: after(68) }),
        ),
        (
            "the occurrence was the latest of several overdue ones",
            caught_up.clone(),
            Verdict::Fired,
            vec![
                Cause::Fired { attempt: 1, started_at: after(309) },
                Cause::Late { by: Duration::from_secs(9) },
                Cause::CaughtUp { missed: 4 },
            ],
        ),
        (
            "a later occurrence was due too",
            caught_up.clone().with(|case| case.at = after(180)),
            Verdict::DidNotFire,
            vec![Cause::Missed { replaced_by: Some(after(300)), count: 4, attempt_possible: false }],
        ),
        (
            "an instant between missed occurrences has no occurrence",
            caught_up.with(|case| case.at = after(181)),
            Verdict::DidNotFire,
            vec![Cause::NoMatch { next: Some(after(240)) }],
        ),
        (
            "the schedule was created after its instant",
            late(None).with(|case| case.schedule.updated_at = after(65)),
            Verdict::Fired,
            causes_of_late(Cause::SetLate { at: after(65) }),
        ),
        (
            "the target answered 5xx",
            failed(&[(0, AttemptResult::Answered(502))]),
            Verdict::Failed,
            vec![dead(1), Cause::Answered { attempt: 1, status: 502 }],
        ),
        (
            "the attempt timed out",
            failed(&[(0, AttemptResult::TimedOut)]),
            Verdict::Failed,
            vec![dead(1), Cause::TimedOut { attempt: 1 }],
        ),
        (
            "the target could not be reached",
            failed(&[(0, unreachable("connection refused"))]),
            Verdict::Failed,
            vec![dead(1), Cause::Unreachable { attempt: 1, reason: "connection refused".to_owned() }],
        ),
        (
            "the egress policy rejected the address",
            failed(&[(0, unreachable(refused)), (10, AttemptResult::Panicked)]),
            Verdict::Failed,
            vec![
                dead(2),
                Cause::Panicked { attempt: 2 },
                Cause::EgressRejected { attempt: 1, reason: refused.to_owned() },
            ],
        ),
        (
            "the run has retries left",
            Case::new(once(60), after(60), after(61))
                .run(after(60), RunState::Retrying, &[(0, AttemptResult::TimedOut)])
                .with(|case| case.retry_at = Some(after(62))),
            Verdict::Pending,
            vec![Cause::RetriesLeft { left: 4, next_at: Some(after(62)) }, Cause::TimedOut { attempt: 1 }],
        ),
        (
            "the owner of a retry is unreachable",
            Case::new(once(60), after(60), after(61))
                .run(after(60), RunState::Retrying, &[(0, AttemptResult::TimedOut)])
                .with(|case| case.is_owner_reachable = false),
            Verdict::Pending,
            vec![
                Cause::RetriesLeft { left: 4, next_at: None },
                Cause::TimedOut { attempt: 1 },
                Cause::OwnerUnreachable,
            ],
        ),
        (
            "the redriven dead letter succeeded",
            failed(&[(0, AttemptResult::TimedOut)])
                .run(after(60), RunState::Succeeded, &[(500_000, success())])
                .with(|case| case.runs[1].occurrence.replay = 1),
            Verdict::Fired,
            vec![Cause::Fired { attempt: 1, started_at: after(560) }, Cause::Redriven { replay: 1 }],
        ),
        (
            "a cancellation made the retry void",
            Case::new(once(60), after(60), after(70))
                .past(once(60), after(65), TimingEnd::Cancelled, Some("k1"))
                .run_of(Revision(2), after(60), RunState::Retrying, &[(0, AttemptResult::TimedOut)])
                .with(|case| case.retry_at = Some(after(3_600))),
            Verdict::DidNotFire,
            vec![Cause::Cancelled { at: Some(after(65)), by: Some("k1".to_owned()) }, Cause::TimedOut { attempt: 1 }],
        ),
        (
            "an attempt of a void retry is in flight",
            Case::new(once(600), after(60), after(70))
                .past(once(60), after(65), TimingEnd::Replaced, None)
                .run_of(Revision(2), after(60), RunState::Retrying, &[(0, AttemptResult::TimedOut)])
                .with(|case| case.is_in_flight = true),
            Verdict::Pending,
            vec![
                Cause::Due { since: after(60) },
                Cause::Replaced { revision: Revision(2), at: Some(after(65)), by: None },
                Cause::TimedOut { attempt: 1 },
            ],
        ),
        (
            "a cancellation without a record ended a redrive",
            Case::new(once(60), after(60), after(1_000))
                .run_of(Revision(1), after(60), RunState::Cancelled, &[(0, AttemptResult::TimedOut)])
                .with(|case| (case.runs[0].occurrence.replay, case.schedule.status) = (1, Status::Cancelled)),
            Verdict::DidNotFire,
            vec![
                Cause::Cancelled { at: None, by: None },
                Cause::TimedOut { attempt: 1 },
                Cause::Redriven { replay: 1 },
            ],
        ),
        (
            "a change cancelled the retry",
            Case::new(once(600), after(60), after(1_000)).past(once(60), after(61), TimingEnd::Replaced, None).run_of(
                Revision(2),
                after(60),
                RunState::Cancelled,
                &[(0, AttemptResult::TimedOut)],
            ),
            Verdict::DidNotFire,
            vec![
                Cause::Replaced { revision: Revision(2), at: Some(after(61)), by: None },
                Cause::TimedOut { attempt: 1 },
            ],
        ),
    ]);
}

#[test]
fn occurrence_without_a_run_has_the_causes_of_its_schedule() {
    let cancelled_by = |at, by: &str| Cause::Cancelled { at: Some(at), by: Some(by.to_owned()) };
    let replaced = |at| Cause::Replaced { revision: Revision(2), at: Some(at), by: None };
    let quota = Delay::Quota { quota: Quota::HttpCallbacksPerSecond, since: after(55) };
    let due = Cause::Due { since: after(60) };
    check(vec![
        (
            "the instant is in the future",
            Case::new(once(60), after(60), after(20)),
            Verdict::WillFire,
            vec![Cause::NotYetDue { due_in: Duration::from_secs(40) }],
        ),
        ("the occurrence is due", Case::new(once(60), after(60), after(61)), Verdict::Pending, vec![due.clone()]),
        (
            "the tenant is over its quota",
            Case::new(once(60), after(60), after(70)).with(|case| case.delay = Some(quota)),
            Verdict::Pending,
            vec![due.clone(), Cause::OverQuota { quota: Quota::HttpCallbacksPerSecond, since: after(55) }],
        ),
        (
            "the owner is unreachable",
            Case::new(once(60), after(60), after(70)).with(|case| case.is_owner_reachable = false),
            Verdict::Pending,
            vec![due.clone(), Cause::OwnerUnreachable],
        ),
        (
            "a replaced occurrence is void",
            Case::new(once(600), after(60), after(1_000)).past(once(60), after(30), TimingEnd::Replaced, None),
            Verdict::DidNotFire,
            vec![replaced(after(30)), Cause::NoMatch { next: Some(after(600)) }],
        ),
        (
            "a replaced occurrence in the future is void",
            Case::new(once(600), after(60), after(40)).past(once(60), after(30), TimingEnd::Replaced, None),
            Verdict::WillNotFire,
            vec![replaced(after(30)), Cause::NoMatch { next: Some(after(600)) }],
        ),
        (
            "a change came before the start of a due occurrence",
            Case::new(once(600), after(60), after(1_000)).past(once(60), after(63), TimingEnd::Replaced, None),
            Verdict::DidNotFire,
            vec![replaced(after(63))],
        ),
        (
            "an attempt was in flight during the change",
            Case::new(once(600), after(60), after(70))
                .past(once(60), after(63), TimingEnd::Replaced, None)
                .with(|case| case.is_in_flight = true),
            Verdict::Pending,
            vec![due.clone(), replaced(after(63))],
        ),
        (
            "a change kept the timing of an overdue occurrence",
            Case::new(every_minute(), after(60), after(70))
                .past(every_minute(), after(65), TimingEnd::Replaced, None)
                .with(|case| case.schedule.next = Some(after(60))),
            Verdict::Pending,
            vec![due.clone()],
        ),
        (
            "a past timing is missing between two others",
            Case::new(every_minute(), after(360), after(1_000))
                .past(every_minute(), after(65), TimingEnd::Replaced, None)
                .with(|case| case.schedule.updated_at = after(600)),
            Verdict::Unknown,
            vec![Cause::HistoryDeleted { before: after(600) }],
        ),
        (
            "the past timing had no occurrence",
            Case::new(once(600), after(90), after(1_000)).past(every_minute(), after(100), TimingEnd::Replaced, None),
            Verdict::DidNotFire,
            vec![Cause::NoMatch { next: Some(after(120)) }],
        ),
        (
            "a key cancelled the schedule",
            Case::new(once(60), after(60), after(1_000)).past(once(60), after(30), TimingEnd::Cancelled, Some("k1")),
            Verdict::DidNotFire,
            vec![cancelled_by(after(30), "k1")],
        ),
        (
            "a key cancelled the schedule before the instant comes",
            Case::new(every_minute(), after(120), after(40)).past(
                every_minute(),
                after(30),
                TimingEnd::Cancelled,
                Some("k1"),
            ),
            Verdict::WillNotFire,
            vec![cancelled_by(after(30), "k1")],
        ),
        (
            "an earlier build cancelled the schedule",
            Case::new(once(60), after(60), after(90)).with(|case| case.schedule.status = Status::Cancelled),
            Verdict::DidNotFire,
            vec![Cause::Cancelled { at: None, by: None }],
        ),
        (
            "an earlier build cancelled the schedule, and its history is deleted",
            Case::new(every_minute(), after(60), after(9_000)).with(|case| {
                (case.schedule.status, case.history_from) = (Status::Cancelled, after(8_000));
            }),
            Verdict::Unknown,
            vec![Cause::HistoryDeleted { before: after(8_000) }],
        ),
        (
            "an occurrence that started long ago has no run",
            Case::new(every_minute(), after(60), after(90_000)),
            Verdict::Unknown,
            vec![Cause::HistoryDeleted { before: after(3_600) }],
        ),
        (
            "the schedule has ended",
            Case::new(once(60), after(90), after(1_000)).with(|case| case.schedule.status = Status::Ended),
            Verdict::DidNotFire,
            vec![Cause::Ended { last: Some(after(60)) }],
        ),
        (
            "the schedule did not exist yet",
            Case::new(every_minute(), CREATED_AT - Duration::from_secs(60), after(90)),
            Verdict::DidNotFire,
            vec![Cause::NotCreated { created_at: CREATED_AT }],
        ),
        (
            "the history is deleted",
            Case::new(every_minute(), after(60), after(9_000)).with(|case| case.history_from = after(8_000)),
            Verdict::Unknown,
            vec![Cause::HistoryDeleted { before: after(8_000) }],
        ),
        (
            "the past timing is deleted",
            Case::new(every_minute(), after(60), after(9_000)).with(|case| case.schedule.updated_at = after(8_000)),
            Verdict::Unknown,
            vec![Cause::HistoryDeleted { before: after(8_000) }],
        ),
    ]);
}

#[test]
fn cron_instant_has_the_causes_of_its_expression_and_zone() {
    let now = instant("2026-12-01T00:00:00Z");
    let half_past_two = || cron("30 2 * * *");
    let unreadable = || When::Cron(Cron::from_stored("every full moon", "Europe/Berlin"));
    let error = Cron::parse("every full moon", "Europe/Berlin").unwrap_err().to_string();
    let skipped = ClockChange::Skipped { fires_at: instant("2026-03-29T01:00:00Z") };
    let repeated = ClockChange::Repeated { fires_at: instant("2026-10-25T00:30:00Z") };
    check(vec![
        (
            "the expression does not match",
            Case::new(half_past_two(), instant("2026-02-01T02:30:00Z"), now),
            Verdict::DidNotFire,
            vec![Cause::NoMatch { next: Some(instant("2026-02-02T01:30:00Z")) }],
        ),
        (
            "the clock skipped the local time",
            Case::new(half_past_two(), instant("2026-03-29T01:30:00Z"), now),
            Verdict::DidNotFire,
            vec![Cause::NoMatch { next: Some(instant("2026-03-30T00:30:00Z")) }, Cause::ZoneMoved(skipped)],
        ),
        (
            "the zone moved the occurrence here",
            Case::new(half_past_two(), instant("2026-03-29T01:00:00Z"), instant("2026-03-29T00:00:00Z")),
            Verdict::WillFire,
            vec![Cause::NotYetDue { due_in: Duration::from_secs(3_600) }, Cause::ZoneMoved(skipped)],
        ),
        (
            "the clock repeated the local time",
            Case::new(half_past_two(), instant("2026-10-25T01:30:00Z"), now),
            Verdict::DidNotFire,
            vec![Cause::NoMatch { next: Some(instant("2026-10-26T01:30:00Z")) }, Cause::ZoneMoved(repeated)],
        ),
        (
            "the stored expression is unreadable",
            Case::new(unreadable(), after(60), after(90)),
            Verdict::Pending,
            vec![Cause::RowUnreadable { reason: error }],
        ),
    ]);
    let row = Explanation::unreadable("the row is damaged");
    assert_eq!(row.causes, [Cause::RowUnreadable { reason: "the row is damaged".to_owned() }]);
}

#[test]
fn clock_change_moves_only_instants_near_it() {
    let change =
        |expression: &str, at: &str| Cron::parse(expression, "Europe/Berlin").unwrap().clock_change_at(instant(at));
    for (expression, at) in [
        ("30 2 * * *", "2026-03-29T02:30:00Z"),
        ("30 2 * * *", "2026-03-29T00:30:00Z"),
        ("30 2 * * *", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "2026-10-25T02:30:00Z"),
        ("30 2 * * *", "2026-03-29T01:00:00.001Z"),
        ("0,30 2,3 * * *", "2026-03-29T01:00:00Z"),
        ("30 * * * *", "2026-03-29T01:30:00Z"),
        ("30 * * * *", "2026-10-25T01:30:00Z"),
    ] {
        assert_eq!(change(expression, at), None, "{expression} at {at}");
    }
}

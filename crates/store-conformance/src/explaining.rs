//! Table of all causes of an explanation. Each case writes its history to the store, and reads the facts back.

use std::sync::Arc;
use std::time::Duration;

use domain::explain::{Cause, Explanation, Facts, Verdict, explain};
use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, Author, ClockChange, Cron, Delay, DueKey, EGRESS_REJECTED, Quota, Revision, RunFilter,
    RunState, Schedule, Timestamp, When,
};
use store::{Change, DueBound, DueRead, Insert, Order, RunRead};

use crate::Subject;
use crate::fixture::{Fixture, Owner, TENANT, due_of, id, insert_in, minute};
use crate::past_timings::{past_of, put_of};

/// Instant at which a user set the timings of the cases.
const SET_AT: Timestamp = minute(0);
const HALF: Duration = Duration::from_secs(30);
/// 2034-03-26T01:00:00Z, at which clocks in Berlin skip one hour.
const SPRING: Timestamp = Timestamp::from_millis(2_026_947_600_000);

/// History of a schedule after its creation.
enum History {
    Nothing,
    /// A run of the occurrence at the instant, with the lags, results and delays of its attempts.
    Run(Timestamp, RunState, Vec<(u64, AttemptResult, Option<Delay>)>),
    /// Missed occurrences from minute 1 to minute 3, and the late run of minute 4.
    Missed,
    /// A change at half past minute 0.
    Replaced(When),
    /// A change at half past minute 1, and the cancelled run of minute 1.
    ReplacedRun(When),
    /// A cancellation at half past minute 2.
    Cancelled,
}

struct Case {
    name: &'static str,
    when: When,
    history: History,
    at: Timestamp,
    now: Timestamp,
    /// Delay that the owner reports. `Err` if the owner is unreachable.
    owner: Result<Option<Delay>, ()>,
    explanation: Explanation,
}

/// Returns the case of a schedule that is due at minute 1. The case explains minute 1 at minute 20.
fn case(name: &'static str, history: History, verdict: Verdict, causes: Vec<Cause>) -> Case {
    let explanation = Explanation { verdict, causes };
    Case { name, when: When::At(minute(1)), history, at: minute(1), now: minute(20), owner: Ok(None), explanation }
}

fn every() -> When {
    When::every(Duration::from_secs(60))
}

fn cron(expression: &str) -> When {
    When::Cron(Cron::from_stored(expression, "Europe/Berlin"))
}

fn fired(lag: u64, delay: Option<Delay>) -> History {
    History::Run(minute(1), RunState::Succeeded, vec![(lag, AttemptResult::Answered(204), delay)])
}

fn failed(results: Vec<AttemptResult>) -> History {
    History::Run(minute(1), RunState::Failed, results.into_iter().map(|result| (0, result, None)).collect())
}

/// Returns the causes of an attempt that started 9 s late because of `cause`.
fn late(cause: Option<Cause>) -> Vec<Cause> {
    let started_at = minute(1) + Duration::from_secs(9);
    let fired = Cause::Fired { attempt: 1, started_at };
    [fired, Cause::Late { by: Duration::from_secs(9) }].into_iter().chain(cause).collect()
}

fn cases_of_the_future_and_of_changes() -> Vec<Case> {
    let replaced =
        |by: Option<&str>, at| Cause::Replaced { revision: Revision(0), at: Some(at), by: by.map(str::to_owned) };
    let cancelled = || Cause::Cancelled { at: Some(minute(2) + HALF), by: Some("k1".to_owned()) };
    let unreadable = Cron::parse("every full moon", "Europe/Berlin").expect_err("the expression is invalid");
    let day = Duration::from_secs(86_400);
    let skipped = ClockChange::Skipped { fires_at: SPRING };
    let no_match = |next| Cause::NoMatch { next: Some(next) };
    vec![
        Case {
            now: SET_AT,
            ..case(
                "not yet due",
                History::Nothing,
                Verdict::WillFire,
                vec![Cause::NotYetDue { due_in: Duration::from_secs(60) }],
            )
        },
        case(
            "void because replaced, by a key",
            History::Replaced(When::At(minute(9))),
            Verdict::DidNotFire,
            vec![replaced(Some("k1"), SET_AT + HALF), no_match(minute(9))],
        ),
        case(
            "retry that is void because replaced",
            History::ReplacedRun(When::At(minute(9))),
            Verdict::DidNotFire,
            vec![replaced(Some("k1"), minute(1) + HALF), Cause::TimedOut { attempt: 1 }],
        ),
        Case {
            when: every(),
            at: minute(3),
            ..case("cancelled, by a key", History::Cancelled, Verdict::DidNotFire, vec![cancelled()])
        },
        Case {
            when: every(),
            at: minute(1) + HALF,
            ..case(
                "not in the timing before a cancellation",
                History::Cancelled,
                Verdict::DidNotFire,
                vec![no_match(minute(2))],
            )
        },
        Case {
            at: minute(2),
            ..case("ended", fired(0, None), Verdict::DidNotFire, vec![Cause::Ended { last: Some(minute(1)) }])
        },
        Case {
            owner: Ok(Some(Delay::Quota { quota: Quota::CallbacksPerMinute, since: SET_AT })),
            ..case(
                "over quota since",
                History::Nothing,
                Verdict::Pending,
                vec![
                    Cause::Due { since: minute(1) },
                    Cause::OverQuota { quota: Quota::CallbacksPerMinute, since: SET_AT },
                ],
            )
        },
        Case {
            owner: Err(()),
            ..case(
                "owner unreachable",
                History::Nothing,
                Verdict::Pending,
                vec![Cause::Due { since: minute(1) }, Cause::OwnerUnreachable],
            )
        },
        Case {
            when: cron("every full moon"),
            ..case(
                "unreadable timing",
                History::Nothing,
                Verdict::Pending,
                vec![Cause::RowUnreadable { reason: unreadable.to_string() }],
            )
        },
        Case {
            when: cron("30 2 * * *"),
            at: SPRING - day,
            now: SET_AT,
            ..case(
                "cron does not match, next match",
                History::Nothing,
                Verdict::WillNotFire,
                vec![no_match(SPRING - day + HALF * 60)],
            )
        },
        Case {
            when: cron("30 2 * * *"),
            at: SPRING,
            now: SPRING - HALF,
            ..case(
                "zone moved it here",
                History::Nothing,
                Verdict::WillFire,
                vec![Cause::NotYetDue { due_in: HALF }, Cause::ZoneMoved(skipped)],
            )
        },
        Case {
            when: cron("30 2 * * *"),
            at: SPRING + HALF * 60,
            now: SPRING - HALF,
            ..case(
                "zone moved it away",
                History::Nothing,
                Verdict::WillNotFire,
                vec![no_match(SPRING + day - HALF * 60), Cause::ZoneMoved(skipped)],
            )
        },
    ]
}

fn cases_of_runs() -> Vec<Case> {
    let answered = |attempt| Cause::Answered { attempt, status: 503 };
    let refused = format!("{EGRESS_REJECTED}: 10.0.0.1 is a private address");
    let unreachable = || "connection refused".to_owned();
    let dead = |attempts| Cause::DeadLetter { attempts };
    let quota = Quota::HttpCallbacksPerSecond;
    let attempts = vec![(5, AttemptResult::Answered(503), None), (7, AttemptResult::Answered(204), None)];
    let until = Some(minute(2));
    vec![
        case(
            "fired, at the second attempt",
            History::Run(minute(1), RunState::Succeeded, attempts),
            Verdict::Fired,
            vec![Cause::Fired { attempt: 2, started_at: minute(1) + Duration::from_millis(7) }, answered(1)],
        ),
        case("late without a reason", fired(9_000, None), Verdict::Fired, late(None)),
        case(
            "late because of a quota",
            fired(9_000, Some(Delay::Quota { quota, since: SET_AT })),
            Verdict::Fired,
            late(Some(Cause::OverQuota { quota, since: SET_AT })),
        ),
        case("late because of a slot", fired(9_000, Some(Delay::Slot)), Verdict::Fired, late(Some(Cause::NoSlot))),
        case(
            "late because of an open circuit",
            fired(9_000, Some(Delay::Circuit { until })),
            Verdict::Fired,
            late(Some(Cause::CircuitOpen { until })),
        ),
        case(
            "late because a member was down",
            fired(9_000, Some(Delay::MemberDown { until: minute(1) + HALF })),
            Verdict::Fired,
            late(Some(Cause::MemberDown { until: minute(1) + HALF })),
        ),
        Case {
            when: every(),
            at: minute(4),
            ..case(
                "late because it caught up",
                History::Missed,
                Verdict::Fired,
                vec![
                    Cause::Fired { attempt: 1, started_at: minute(4) + Duration::from_secs(9) },
                    Cause::Late { by: Duration::from_secs(9) },
                    Cause::CaughtUp { missed: 3 },
                ],
            )
        },
        Case {
            when: every(),
            at: minute(2),
            ..case(
                "missed, and replaced by a later instant",
                History::Missed,
                Verdict::DidNotFire,
                vec![Cause::Missed { replaced_by: Some(minute(4)), count: 3, attempt_possible: false }],
            )
        },
        case(
            "dead letter, because the target answered 5xx",
            failed(vec![AttemptResult::Answered(503), AttemptResult::Answered(503)]),
            Verdict::Failed,
            vec![dead(2), answered(2), answered(1)],
        ),
        case(
            "timed out",
            failed(vec![AttemptResult::TimedOut]),
            Verdict::Failed,
            vec![dead(1), Cause::TimedOut { attempt: 1 }],
        ),
        case(
            "could not be reached",
            failed(vec![AttemptResult::Unreachable(unreachable())]),
            Verdict::Failed,
            vec![dead(1), Cause::Unreachable { attempt: 1, reason: unreachable() }],
        ),
        case(
            "egress rejected",
            failed(vec![AttemptResult::Unreachable(refused.clone())]),
            Verdict::Failed,
            vec![dead(1), Cause::EgressRejected { attempt: 1, reason: refused }],
        ),
        case(
            "retries left",
            History::Run(minute(1), RunState::Retrying, vec![(0, AttemptResult::Answered(503), None)]),
            Verdict::Pending,
            vec![Cause::RetriesLeft { left: 2, next_at: Some(minute(2)) }, answered(1)],
        ),
    ]
}

fn run_with(
    schedule: &Schedule,
    nominal: Timestamp,
    state: RunState,
    attempts: &[(u64, AttemptResult, Option<Delay>)],
) -> Run {
    let attempts = (1_u16..).zip(attempts).map(|(number, (lag, result, delay))| Attempt {
        number,
        started_at: nominal + Duration::from_millis(*lag),
        duration: Duration::from_millis(12),
        result: result.clone(),
        delay: *delay,
        excerpt: None,
    });
    let (occurrence, attempts) = (due_of(schedule, nominal).occurrence, attempts.collect());
    Run { tenant: TENANT, occurrence, state, attempts }
}

async fn write_history(fixture: &Fixture, owner: Owner<'_>, schedule: &Schedule, history: &History) {
    let put = async |when: &When, at| {
        let put = put_of(fixture, schedule, when.clone(), at);
        owner.put(&Insert { by: Some("k1".to_owned()), ..put }).await;
    };
    match history {
        History::Nothing => {}
        History::Run(nominal, state, attempts) => {
            let run = run_with(schedule, *nominal, *state, attempts);
            let retry = DueKey { position: minute(2), attempt: 2, ..due_of(schedule, *nominal) };
            let then = (*state == RunState::Retrying).then_some(retry);
            owner.write(Change::Run { run, then, ends: then.is_none(), origin: None }).await;
        }
        History::Missed => {
            let state = RunState::Missed { last: minute(3), count: 3, attempt_possible: false };
            let late = [(9_000, AttemptResult::Answered(204), None)];
            let fired = run_with(schedule, minute(4), RunState::Succeeded, &late);
            for run in [run_with(schedule, minute(1), state, &[]), fired] {
                owner.write(Change::Run { run, then: None, ends: false, origin: None }).await;
            }
        }
        History::Replaced(when) => put(when, SET_AT + HALF).await,
        History::ReplacedRun(when) => {
            put(when, minute(1) + HALF).await;
            let attempts = [(0, AttemptResult::TimedOut, None)];
            let run = run_with(schedule, minute(1), RunState::Cancelled, &attempts);
            owner.write(Change::Run { run, then: None, ends: false, origin: None }).await;
        }
        History::Cancelled => {
            let author = Author { at: minute(2) + HALF, key: Some("k1".to_owned()) };
            owner.write(Change::CancelIf(schedule.edition(), Some(author))).await;
        }
    }
}

/// Returns the position of the retry of `run`.
async fn retry_of(fixture: &Fixture, schedule: &Schedule, run: &Run) -> Option<Timestamp> {
    let after = DueBound::Instant(minute(0));
    let page = fixture.due(DueRead { poller: schedule.poller, after, until: Timestamp::MAX, limit: 1_000 }).await;
    page.keys.iter().find(|key| key.occurrence == run.occurrence && key.attempt > 1).map(|key| key.position)
}

/// Explains the instant of the case from the rows of the store.
async fn explained(fixture: &Fixture, schedule: &Schedule, case: &Case) -> Explanation {
    let current = fixture.now(schedule).await;
    let past = past_of(fixture, schedule).await;
    let until = case.at + Duration::from_millis(1);
    let (schedules, filter) = (Some(vec![schedule.incarnation]), RunFilter::default());
    let (from, order, after) = (Timestamp::MIN, Order::Newest, None);
    let read = RunRead { tenant: TENANT, schedules, from, until, filter, order, after, limit: 20 };
    let mut runs = fixture.store.list_runs(read).await.expect("the store accepts reads").runs;
    runs.reverse();
    let retrying = runs.iter().find(|run| run.state == RunState::Retrying);
    let retry_at = match retrying {
        Some(run) => retry_of(fixture, schedule, run).await,
        None => None,
    };
    explain(&Facts {
        at: case.at,
        now: case.now,
        schedule: &current,
        past: &past,
        runs: &runs,
        history_from: Timestamp::MIN,
        retry_at,
        delay: case.owner.ok().flatten(),
        is_in_flight: false,
        is_owner_reachable: case.owner.is_ok(),
    })
}

pub(super) async fn each_cause_is_explained_from_the_rows_of_the_store(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = fixture.named("first", minute(1)).schedule.poller;
    let owner = fixture.owner(poller).await;
    let cases = cases_of_the_future_and_of_changes().into_iter().chain(cases_of_runs());
    for (number, case) in cases.enumerate() {
        let mut insert = insert_in(poller, fixture.numbers.incarnation(), id(&format!("case-{number}")), minute(1));
        let schedule = Arc::make_mut(&mut insert.schedule);
        schedule.spec.when = case.when.clone();
        (schedule.updated_at, schedule.created_at) = (SET_AT, SET_AT);
        let schedule = fixture.create(insert).await;
        write_history(&fixture, owner, &schedule, &case.history).await;
        assert_eq!(explained(&fixture, &schedule, &case).await, case.explanation, "{}", case.name);
    }
}

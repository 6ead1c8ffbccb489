use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{Cron, HttpTarget, Incarnation, PollerId, RetryPolicy, Revision, ScheduleId, Spec, Target, TenantId};

const CREATED_AT: Timestamp = Timestamp::from_millis(1_790_000_000_000);
const FAILURE: AttemptResult = AttemptResult::Answered(500);
const SUCCESS: AttemptResult = AttemptResult::Answered(204);

fn after(secs: u64) -> Timestamp {
    CREATED_AT + Duration::from_secs(secs)
}

fn schedule(when: When) -> Schedule {
    let incarnation = Incarnation::new(CREATED_AT, 7);
    let id = ScheduleId::from_incarnation(incarnation);
    let poller = PollerId::of(TenantId(1), 0, 4, &id);
    let target = Target::Http(HttpTarget {
        url: "https://example.org/hook".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
    });
    let (payload, labels, retry) = (Bytes::new(), BTreeMap::new(), RetryPolicy::default());
    Schedule {
        tenant: TenantId(1),
        id,
        incarnation,
        poller,
        revision: Revision(3),
        status: Status::Active,
        created_at: CREATED_AT,
        updated_at: CREATED_AT,
        next: None,
        spec: Spec { when, target, payload, labels, retry },
    }
}

fn every_minute() -> Schedule {
    schedule(When::every(Duration::from_secs(60)))
}

fn once() -> Schedule {
    schedule(When::At(after(60)))
}

fn first_key(schedule: &Schedule) -> DueKey {
    first(schedule, CREATED_AT).expect("the schedule has an occurrence")
}

fn retry_of(schedule: &Schedule) -> DueKey {
    DueKey { attempt: 2, ..first_key(schedule) }
}

/// Decides about a due row of a poller that had no `closed` when the owner took the shard.
fn at_start(schedule: &Schedule, key: &DueKey, catch_up: CatchUp, now: Timestamp) -> Start {
    super::at_start(schedule, key, catch_up, Timestamp::MIN, now)
}

fn redrive_of(schedule: &Schedule, now: Timestamp) -> DueKey {
    let key = first_key(schedule);
    redrive(key.occurrence, key.target, now).expect("the occurrence was not redriven before")
}

#[test]
fn one_shot_schedule_with_a_past_instant_is_due_at_once() {
    let schedule = schedule(When::At(CREATED_AT));
    let key = first(&schedule, after(5)).expect("a one-shot is always due");
    assert_eq!((key.position, key.occurrence.nominal), (after(5), CREATED_AT));
    assert_eq!((key.attempt, key.occurrence.replay, key.occurrence.revision), (1, 0, Revision(3)));
    assert_eq!(at_start(&schedule, &key, CatchUp::Latest, after(3_600)), Start::Fire { advance: None });
}

#[test]
fn recurring_schedule_first_fires_one_interval_after_creation() {
    assert_eq!(first_key(&every_minute()).occurrence.nominal, after(60));
}

#[test]
fn scheduler_writes_the_next_due_row_when_an_occurrence_starts() {
    let schedule = every_minute();
    let key = first_key(&schedule);
    let Start::Fire { advance: Some(next) } = at_start(&schedule, &key, CatchUp::Latest, after(60)) else {
        panic!("the occurrence is due and has a next one");
    };
    assert_eq!((next.position, next.occurrence.nominal, next.attempt), (after(120), after(120), 1));
    assert_eq!(next.target, key.target);
}

#[test]
fn latest_overdue_occurrence_fires_and_others_are_missed() {
    let schedule = every_minute();
    let key = first_key(&schedule);
    let Start::Skip { missed, latest } = at_start(&schedule, &key, CatchUp::Latest, after(330)) else {
        panic!("five occurrences are due");
    };
    assert_eq!(missed.state, RunState::Missed { last: after(240), count: 4, attempt_possible: false });
    assert_eq!(missed.occurrence, key.occurrence);
    assert_eq!((latest.occurrence.nominal, latest.position), (after(300), after(330)));
    let Start::Fire { advance: Some(next) } = at_start(&schedule, &latest, CatchUp::Latest, after(330)) else {
        panic!("the latest occurrence fires");
    };
    assert_eq!(next.position, after(360));
}

#[test]
fn missed_run_is_marked_if_an_earlier_owner_may_have_started_it() {
    let schedule = every_minute();
    let key = first_key(&schedule);
    let is_marked = |closed_at_take: Timestamp| {
        let start = super::at_start(&schedule, &key, CatchUp::Latest, closed_at_take, after(330));
        let Start::Skip { missed, .. } = start else { panic!("five occurrences are due") };
        matches!(missed.state, RunState::Missed { attempt_possible: true, .. })
    };
    for closed_secs in 0..400 {
        let closed = after(closed_secs);
        assert_eq!(is_marked(closed), closed_secs >= 55, "the first occurrence is due after 60 s, closed is {closed}");
        assert_eq!(is_marked(closed), may_start_untraced(key.occurrence.nominal, closed));
    }
    assert!(!is_marked(Timestamp::MIN), "no owner has fired a row of this poller");
}

#[test]
fn all_overdue_occurrences_fire_if_the_service_had_no_free_slot() {
    let schedule = every_minute();
    let mut key = first_key(&schedule);
    for minute in 1..=5 {
        assert_eq!(key.occurrence.nominal, after(60 * minute));
        let Start::Fire { advance: Some(next) } = at_start(&schedule, &key, CatchUp::Every, after(330)) else {
            panic!("the occurrence of minute {minute} fires");
        };
        key = next;
    }
    assert_eq!(key.position, after(360), "the next occurrence is not due yet");
}

#[test]
fn scheduler_drops_due_rows_and_cancels_retries_of_older_revisions() {
    for mut schedule in [once(), every_minute()] {
        let (key, retry) = (first_key(&schedule), retry_of(&schedule));
        schedule.revision = Revision(4);
        assert_eq!(at_start(&schedule, &key, CatchUp::Latest, after(60)), Start::Drop(Void::Superseded));
        assert_eq!(at_start(&schedule, &retry, CatchUp::Latest, after(60)), Start::Cancel);
    }
}

#[test]
fn cancelled_schedule_fires_neither_occurrences_nor_redrives() {
    let mut schedule = once();
    let (key, replay) = (first_key(&schedule), redrive_of(&schedule, after(60)));
    schedule.status = Status::Cancelled;
    assert_eq!(at_start(&schedule, &key, CatchUp::Latest, after(60)), Start::Drop(Void::Superseded));
    assert_eq!(at_start(&schedule, &replay, CatchUp::Latest, after(60)), Start::Cancel);
}

#[test]
fn redrive_fires_even_if_the_schedule_changed_or_ended() {
    let mut schedule = once();
    let replay = redrive_of(&schedule, after(3_600));
    assert_eq!((replay.occurrence.replay, replay.attempt, replay.position), (1, 1, after(3_600)));
    schedule.revision = Revision(4);
    schedule.status = Status::Ended;
    assert_eq!(at_start(&schedule, &replay, CatchUp::Latest, after(3_600)), Start::Fire { advance: None });
}

#[test]
fn scheduler_drops_the_due_row_of_an_ended_schedule() {
    let mut schedule = once();
    let key = first_key(&schedule);
    schedule.status = Status::Ended;
    assert_eq!(at_start(&schedule, &key, CatchUp::Latest, after(60)), Start::Drop(Void::Ended));
}

#[test]
fn unreadable_cron_expression_does_not_end_its_schedule() {
    let schedule = schedule(When::Cron(Cron::from_stored("0 9 * * FUNDAY", "UTC")));
    let key = due_row(&schedule, after(60), schedule.spec.target.key(), CREATED_AT);
    let start = at_start(&schedule, &key, CatchUp::Latest, after(60));
    assert!(matches!(start, Start::Unreadable { .. }), "FUNDAY is not a day: {start:?}");
    assert!(!after_attempt(&schedule, &key, &SUCCESS, None, after(61), 0).ends);
}

#[test]
fn new_zone_data_does_not_stop_a_schedule() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let when = When::Cron(Cron::parse("0 9 * * *", "Africa/Cairo").unwrap());
    let moved = when.next_after(CREATED_AT, CREATED_AT + HOUR * 4).unwrap();
    let following = when.next_after(CREATED_AT, moved).unwrap();
    let start = |waits_for: Timestamp, nominal: Timestamp| {
        let schedule = Schedule { next: Some(waits_for), ..schedule(when.clone()) };
        let row = |nominal| due_row(&schedule, nominal, schedule.spec.target.key(), nominal);
        at_start(&schedule, &row(nominal), CatchUp::Latest, nominal)
    };
    let row = |nominal, now| due_row(&schedule(when.clone()), nominal, once().spec.target.key(), now);
    // Under the earlier data, the schedule waits for an instant an hour before its occurrence.
    let early = moved - HOUR;
    assert_eq!(start(early, early), Start::Move { next: row(moved, early) });
    // Under the earlier data, the schedule waits for an instant an hour after its occurrence.
    let late = moved + HOUR;
    assert_eq!(start(late, late), Start::Fire { advance: Some(row(following, late)) });
    // A failed change left a row, and the schedule waits for another instant.
    assert_eq!(start(following, early), Start::Drop(Void::Superseded));
}

#[test]
fn new_zone_data_does_not_fire_a_schedule_twice() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let waiting = |expression: &str, nominal: Timestamp| {
        let when = When::Cron(Cron::parse(expression, "Africa/Cairo").unwrap());
        Schedule { next: Some(nominal), ..schedule(when) }
    };
    let start = |schedule: &Schedule, now| {
        let nominal = schedule.next.unwrap();
        at_start(schedule, &due_row(schedule, nominal, schedule.spec.target.key(), nominal), CatchUp::Latest, now)
    };
    let instant =
        |expression: &str| waiting(expression, CREATED_AT).spec.when.next_after(CREATED_AT, CREATED_AT + HOUR * 4);
    let nine = instant("0 9 * * *").unwrap();
    // The occurrence of 07:00 has fired, and 09:00 was an hour earlier under the earlier data.
    let schedule = waiting("0 7,9 * * *", nine - HOUR);
    assert_eq!(
        start(&schedule, nine - HOUR),
        Start::Move { next: due_row(&schedule, nine, schedule.spec.target.key(), nine - HOUR) }
    );
    // The service was down for three days, and 09:00 was an hour later under the earlier data.
    let schedule = waiting("0 9 * * *", nine + HOUR);
    let Start::Move { next } = start(&schedule, nine + HOUR * 72) else { panic!("the schedule moves") };
    assert!(next.occurrence.nominal > nine + HOUR * 12, "{next:?}");
}

#[test]
fn successful_run_ends_only_a_one_shot_schedule() {
    for (schedule, ends) in [(once(), true), (every_minute(), false)] {
        let outcome = after_attempt(&schedule, &first_key(&schedule), &SUCCESS, None, after(61), 0);
        assert_eq!(outcome, Outcome { state: RunState::Succeeded, then: None, ends });
    }
}

#[test]
fn scheduler_retries_a_failed_occurrence_up_to_the_attempt_limit() {
    let schedule = once();
    let mut key = first_key(&schedule);
    for attempt in 1..5 {
        let outcome = after_attempt(&schedule, &key, &FAILURE, None, key.position, 1 << 63);
        let then = outcome.then.expect("attempts are left");
        assert_eq!((outcome.state, outcome.ends), (RunState::Retrying, false));
        assert_eq!((then.occurrence, then.attempt), (key.occurrence, attempt + 1));
        assert_eq!(then.position, key.position + Duration::from_millis(500 << (attempt - 1)));
        key = then;
    }
    let last = after_attempt(&schedule, &key, &FAILURE, None, after(120), 0);
    assert_eq!(last, Outcome { state: RunState::Failed, then: None, ends: true });
}

#[test]
fn attempt_of_an_older_revision_does_not_affect_its_schedule() {
    let mut schedule = once();
    let key = first_key(&schedule);
    schedule.revision = Revision(1);
    let failed = after_attempt(&schedule, &key, &FAILURE, None, after(61), 0);
    assert_eq!(failed, Outcome { state: RunState::Cancelled, then: None, ends: false });
    let succeeded = after_attempt(&schedule, &key, &SUCCESS, None, after(61), 0);
    assert_eq!(succeeded, Outcome { state: RunState::Succeeded, then: None, ends: false });
}

#[test]
fn schedule_ends_if_its_next_occurrence_is_after_year_9999() {
    let mut schedule = every_minute();
    schedule.updated_at = Timestamp::MAX - Duration::from_secs(90);
    let key = first_key(&schedule);
    assert_eq!(at_start(&schedule, &key, CatchUp::Latest, key.position), Start::Fire { advance: None });
    assert!(after_attempt(&schedule, &key, &SUCCESS, None, key.position, 0).ends);
}

proptest! {
    #[test]
    fn scheduler_never_writes_a_due_row_in_the_past(
        interval_millis in 1_u64..200_000,
        late_millis in 0_u64..400_000,
        attempt in 1_u16..8,
        status in 100_u16..600,
        random: u64,
    ) {
        let schedule = schedule(When::every(Duration::from_millis(interval_millis)));
        let key = DueKey { attempt, ..first_key(&schedule) };
        let now = key.position + Duration::from_millis(late_millis);
        let row = match at_start(&schedule, &key, CatchUp::Latest, now) {
            Start::Fire { advance } => advance,
            Start::Skip { latest, missed } => {
                let is_before = matches!(missed.state, RunState::Missed { last, .. } if last < latest.occurrence.nominal);
                prop_assert!(is_before && latest.occurrence.nominal <= now);
                Some(latest)
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        let outcome = after_attempt(&schedule, &key, &AttemptResult::Answered(status), None, now, random);
        prop_assert_eq!(outcome.then.is_some(), !outcome.state.is_final());
        for row in row.into_iter().chain(outcome.then) {
            prop_assert!(row.position >= now && row.position >= row.occurrence.nominal);
        }
    }
}

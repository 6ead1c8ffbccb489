use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::{Attempt, AttemptResult, HttpTarget, Incarnation, PollerId, RetryPolicy, Revision, ScheduleId, Spec};
use crate::{Target, TenantId, When};

fn at(second: u64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000) + Duration::from_secs(second)
}

fn schedule(when: When, next: Option<u64>) -> Schedule {
    let incarnation = Incarnation::new(at(0), 7);
    let id = ScheduleId::from_incarnation(incarnation);
    let target = Target::Http(HttpTarget {
        url: "https://example.org/hook".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
    });
    let retry = RetryPolicy { attempts_max: 5, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(20) };
    Schedule {
        tenant: TenantId(1),
        poller: PollerId::of(TenantId(1), 0, 4, &id),
        id,
        incarnation,
        revision: Revision(3),
        status: Status::Active,
        created_at: at(0),
        updated_at: at(0) - Duration::from_secs(10_000),
        next: next.map(at),
        spec: Spec { when, target, payload: Bytes::new(), labels: BTreeMap::new(), retry },
    }
}

fn every_ten_seconds(next: u64) -> Schedule {
    schedule(When::every(Duration::from_secs(10)), Some(next))
}

fn run(schedule: &Schedule, nominal: u64, state: RunState) -> Run {
    let Schedule { incarnation, revision, .. } = *schedule;
    let attempt = Attempt {
        number: 2,
        started_at: at(nominal + 5),
        duration: Duration::from_secs(1),
        result: AttemptResult::TimedOut,
        delay: None,
        excerpt: None,
    };
    let occurrence = Occurrence { incarnation, nominal: at(nominal), revision, replay: 0 };
    Run { tenant: TenantId(1), occurrence, state, attempts: vec![attempt] }
}

/// Returns the position, the nominal instant, the replay and the attempt of each row from second 100 to second 200. The
/// present instant is second 150.
fn rows(schedule: &Schedule, runs: &[(Run, bool)]) -> Vec<(u64, u64, u16, u16)> {
    rows_until(schedule, runs, 200, 150)
}

fn rows_until(schedule: &Schedule, runs: &[(Run, bool)], until: u64, now: u64) -> Vec<(u64, u64, u16, u16)> {
    let mut rebuild = Rebuild::new(schedule, at(100), at(until), at(now));
    runs.iter().for_each(|(run, is_redriven)| rebuild.add_run(run, *is_redriven));
    let second = |instant: Timestamp| instant.since(at(0)).as_secs();
    let row = |row: DueKey| {
        let Occurrence { nominal, replay, .. } = row.occurrence;
        (second(row.position), second(nominal), replay, row.attempt)
    };
    rebuild.finish().into_iter().map(row).collect()
}

#[test]
fn active_schedule_has_a_due_row_at_its_next_instant() {
    for (next, expected) in [(50, vec![(100, 50, 0, 1)]), (150, vec![(150, 150, 0, 1)]), (201, vec![])] {
        assert_eq!(rows(&schedule(When::At(at(next)), Some(next)), &[]), expected, "next at {next}");
    }
    let ended = Schedule { status: Status::Ended, ..schedule(When::At(at(150)), None) };
    assert_eq!(rows(&ended, &[]), []);
    let cancelled = Schedule { status: Status::Cancelled, ..schedule(When::At(at(150)), None) };
    assert_eq!(rows(&cancelled, &[]), []);
}

#[test]
fn pending_retry_has_a_due_row_that_is_not_too_early() {
    for (nominal, until, position) in [(20, 200, 100), (90, 200, 116), (90, 110, 110), (190, 200, 190)] {
        let schedule = schedule(When::At(at(nominal)), Some(nominal));
        let retrying = run(&schedule, nominal, RunState::Retrying);
        assert_eq!(rows_until(&schedule, &[(retrying, false)], until, 150), [(position, nominal, 0, 3)]);
    }
    let later = schedule(When::At(at(210)), Some(210));
    assert_eq!(rows(&later, &[(run(&later, 210, RunState::Retrying), false)]), []);
}

#[test]
fn pending_retry_of_an_attempt_with_a_fast_clock_does_not_wait_for_that_clock() {
    let schedule = schedule(When::At(at(120)), Some(120));
    let mut retrying = run(&schedule, 120, RunState::Retrying);
    retrying.attempts[0].started_at = at(3_720);
    assert_eq!(rows(&schedule, &[(retrying, false)]), [(170, 120, 0, 3)]);
}

#[test]
fn rows_of_a_clock_that_was_ahead_start_at_the_present_instant() {
    let new = schedule(When::At(at(20)), Some(20));
    let retrying = (run(&new, 20, RunState::Retrying), false);
    let ended = Schedule { status: Status::Ended, ..new.clone() };
    let redriven = (run(&ended, 20, RunState::Failed), true);
    assert_eq!(rows_until(&new, &[], 200, 50), [(50, 20, 0, 1)]);
    assert_eq!(rows_until(&new, &[retrying], 200, 50), [(50, 20, 0, 3)]);
    assert_eq!(rows_until(&ended, &[redriven], 200, 50), [(50, 20, 1, 1)]);
}

#[test]
fn redriven_dead_letter_has_a_due_row_but_other_dead_letters_have_none() {
    let ended = Schedule { status: Status::Ended, ..schedule(When::At(at(20)), None) };
    let failed = run(&ended, 20, RunState::Failed);
    assert_eq!(rows(&ended, &[(failed.clone(), false)]), []);
    assert_eq!(rows(&ended, &[(failed, true)]), [(100, 20, 1, 1)]);
    let soon = run(&ended, 150, RunState::Failed);
    assert_eq!(rows(&ended, &[(soon, true)]), [(150, 150, 1, 1)]);
}

#[test]
fn started_occurrences_without_an_outcome_have_due_rows() {
    let schedule = every_ten_seconds(150);
    let missed = RunState::Missed { last: at(110), count: 2, attempt_possible: false };
    let runs = [(run(&schedule, 90, missed), false), (run(&schedule, 130, RunState::Succeeded), false)];
    assert_eq!(rows(&schedule, &runs), [(120, 120, 0, 1), (140, 140, 0, 1), (150, 150, 0, 1)]);
}

#[test]
fn missed_occurrences_of_an_earlier_revision_do_not_affect_the_present_revision() {
    let schedule = every_ten_seconds(120);
    let earlier = Schedule { revision: Revision(schedule.revision.0 - 1), ..schedule.clone() };
    let missed = run(&earlier, 90, RunState::Missed { last: at(500), count: 42, attempt_possible: false });
    assert_eq!(rows(&schedule, &[(missed, false)]), [(100, 100, 0, 1), (110, 110, 0, 1), (120, 120, 0, 1)]);
}

#[test]
fn late_start_after_missed_occurrences_has_a_due_row() {
    let schedule = every_ten_seconds(100);
    let missed = (run(&schedule, 50, RunState::Missed { last: at(70), count: 3, attempt_possible: false }), false);
    let expected = [(100, 80, 0, 1), (100, 90, 0, 1), (100, 100, 0, 1)];
    assert_eq!(rows(&schedule, std::slice::from_ref(&missed)), expected);
    let later = (run(&schedule, 80, RunState::Succeeded), false);
    assert_eq!(rows(&schedule, &[missed, later]), [(100, 90, 0, 1), (100, 100, 0, 1)]);
}

#[test]
fn late_start_between_missed_occurrences_has_a_due_row() {
    let schedule = every_ten_seconds(130);
    let missed = |nominal, last| {
        let state = RunState::Missed { last: at(last), count: 2, attempt_possible: false };
        (run(&schedule, nominal, state), false)
    };
    let runs = [missed(60, 70), missed(90, 110), (run(&schedule, 120, RunState::Succeeded), false)];
    assert_eq!(rows(&schedule, &runs), [(100, 80, 0, 1), (130, 130, 0, 1)]);
}

#[test]
fn young_schedule_without_a_run_has_due_rows_for_all_started_occurrences() {
    let young = Schedule { updated_at: at(75), ..every_ten_seconds(105) };
    assert_eq!(rows(&young, &[]), [(100, 85, 0, 1), (100, 95, 0, 1), (105, 105, 0, 1)]);
}

#[test]
fn schedule_continues_after_missed_occurrences() {
    let schedule = every_ten_seconds(120);
    let missed = RunState::Missed { last: at(140), count: 3, attempt_possible: false };
    let runs = [(run(&schedule, 100, RunState::Succeeded), false), (run(&schedule, 110, RunState::Failed), false)];
    let runs = [&runs[..], &[(run(&schedule, 120, missed), false)]].concat();
    assert_eq!(rows(&schedule, &runs), [(150, 150, 0, 1)]);
}

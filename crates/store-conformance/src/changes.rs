//! Test cases of an owner's writes. Each case tests one kind of change.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, DueKey, Occurrence, Precondition, Revision, RunState, Schedule, ScheduleVersion, Secret,
    Status, Timestamp,
};
use futures_util::future::join;

use crate::Subject;
use crate::fixture::{Fixture, Owner, TENANT, due_of, insert_in, minute, run_of, spec, yield_times};
use store::{Change, Insert, Inserted, OwnerWrite, Positions, WriteRejection, Written};

pub(super) async fn put_creates_a_missing_schedule(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    for insert in [fixture.named("invoice-7", minute(1)), fixture.unnamed(minute(1))] {
        let owner = fixture.owner(insert.schedule.poller).await;
        let response = owner.put(&insert).await;
        assert_eq!(response, (insert.schedule.clone(), minute(1), None));
        assert_eq!(fixture.get(TENANT, &insert.schedule.id).await, Some(insert.schedule.clone()));
        assert_eq!(fixture.now(&insert.schedule).await, insert.schedule);
        assert!(fixture.all_due(owner.poller).await.contains(&insert.due));
    }
}

/// Returns a put that uses the id of `schedule` and another spec.
fn replacing(fixture: &Fixture, schedule: &Schedule, at: Timestamp) -> Insert {
    let mut insert = insert_in(schedule.poller, fixture.numbers.incarnation(), schedule.id.clone(), at);
    let requested = Arc::make_mut(&mut insert.schedule);
    requested.created_at = minute(-1);
    requested.updated_at = minute(-1);
    requested.spec.payload = bytes::Bytes::from_static(b"[2]");
    insert
}

/// Replaces `schedule` by a put, and checks the result. The schedule must not be cancelled.
async fn put_over(owner: Owner<'_>, schedule: &Schedule, at: Timestamp) -> Arc<Schedule> {
    let fixture = owner.fixture;
    let mut insert = replacing(fixture, schedule, at);
    // The put names a poller of a later generation, because a caller may know only the tenant's current generation. The
    // schedule keeps its old poller.
    Arc::make_mut(&mut insert.schedule).poller.generation += 1;
    let expected = Arc::new(Schedule {
        incarnation: schedule.incarnation,
        poller: schedule.poller,
        created_at: schedule.created_at,
        revision: Revision(schedule.revision.0 + 1),
        ..Schedule::clone(&insert.schedule)
    });
    assert_eq!(owner.put(&insert).await, (expected.clone(), at, Some(schedule.status)));
    assert_eq!(fixture.now(schedule).await, expected);
    assert_eq!(fixture.get(schedule.tenant, &schedule.id).await, Some(expected.clone()));
    assert_eq!(fixture.load(insert.schedule.incarnation).await, None, "the put keeps the schedule's incarnation");
    let row = DueKey { position: at, ..due_of(&expected, at) };
    assert!(fixture.all_due(owner.poller).await.contains(&row), "the due row has the revision that the put created");
    expected
}

pub(super) async fn put_replaces_an_active_schedule(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    let second = put_over(owner, &first, minute(2)).await;
    put_over(owner, &second, minute(1)).await;
}

pub(super) async fn put_reactivates_an_ended_schedule(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    owner.finish(&schedule, RunState::Succeeded).await;
    let ended = fixture.now(&schedule).await;
    assert_eq!(ended.status, Status::Ended);
    let revived = put_over(owner, &ended, minute(2)).await;
    assert_eq!(revived.status, Status::Active);
}

pub(super) async fn put_over_a_cancelled_id_creates_an_incarnation(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(1));
    let first = fixture.create(insert.clone()).await;
    let owner = fixture.owner(first.poller).await;
    owner.write(Change::Cancel(first.incarnation)).await;
    let cancelled = fixture.now(&first).await;

    let same = owner.try_write(Change::Put(insert.clone())).await;
    assert_eq!(same, Err(WriteRejection::NotFound), "a repeated put does not revert the cancellation");
    assert_eq!(fixture.now(&first).await, cancelled);

    let second = replacing(&fixture, &first, minute(2));
    assert_eq!(owner.put(&second).await, (second.schedule.clone(), minute(2), Some(Status::Cancelled)));
    assert_eq!(fixture.get(TENANT, &first.id).await, Some(second.schedule.clone()));
    assert_eq!(fixture.now(&first).await, cancelled);
    assert!(fixture.all_due(owner.poller).await.contains(&second.due));

    owner.write(Change::Cancel(second.schedule.incarnation)).await;
    let oldest = owner.try_write(Change::Put(insert)).await;
    assert_eq!(oldest, Err(WriteRejection::NotFound), "a repeated put has no effect after a later put");
    assert_eq!(fixture.now(&first).await, cancelled);

    let third = replacing(&fixture, &first, minute(3));
    owner.put(&third).await;
    let over_live = replacing(&fixture, &first, minute(4));
    let (live, ..) = owner.put(&over_live).await;
    assert_eq!(live.incarnation, third.schedule.incarnation);
    owner.write(Change::Cancel(live.incarnation)).await;
    let cancelled = fixture.now(&live).await;
    let again = owner.try_write(Change::Put(over_live.clone())).await;
    assert_eq!(again, Err(WriteRejection::NotFound), "a repeated put has no effect after a cancellation");
    assert_eq!(fixture.insert(&over_live).await, Inserted::Exists(live.incarnation));
    assert_eq!(fixture.now(&live).await, cancelled);
}

pub(super) async fn put_behind_closed_returns_its_row_position(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(3));
    let owner = fixture.owner(insert.schedule.poller).await;
    owner.close(minute(5), minute(1)).await;
    let (schedule, position, _) = owner.put(&insert).await;
    let just_after = minute(5) + Duration::from_millis(1);
    assert!([minute(3), just_after].contains(&position), "{position}");
    assert_eq!(fixture.all_due(owner.poller).await, [DueKey { position, ..due_of(&schedule, minute(3)) }]);
}

pub(super) async fn put_if_absent_creates_an_id_only_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(1));
    let owner = fixture.owner(insert.schedule.poller).await;
    let created = owner.put_if(&insert, None).await;
    assert_eq!(created, Ok((insert.schedule.clone(), minute(1), None)));
    assert_eq!(fixture.get(TENANT, &insert.schedule.id).await, Some(insert.schedule.clone()));
    assert!(fixture.all_due(owner.poller).await.contains(&insert.due));

    let second = replacing(&fixture, &insert.schedule, minute(2));
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRejection::Changed), "an active schedule keeps its id");
    owner.finish(&insert.schedule, RunState::Succeeded).await;
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRejection::Changed), "an ended schedule keeps its id");
    owner.write(Change::Cancel(insert.schedule.incarnation)).await;
    let cancelled = fixture.now(&insert.schedule).await;
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRejection::Changed), "a cancelled schedule keeps its id");
    assert_eq!(fixture.get(TENANT, &insert.schedule.id).await, Some(cancelled));
    assert_eq!(fixture.load(second.schedule.incarnation).await, None);
}

pub(super) async fn put_if_unchanged_replaces_the_expected_version(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    let seen = first.seen();
    let unlike = [
        Precondition { next: Some(minute(2)), ..seen },
        Precondition { next: None, ..seen },
        Precondition { edition: ScheduleVersion { revision: Revision(1), ..seen.edition }, ..seen },
        Precondition {
            edition: ScheduleVersion { incarnation: fixture.numbers.incarnation(), ..seen.edition },
            ..seen
        },
    ];
    let insert = replacing(&fixture, &first, minute(5));
    for seen in unlike {
        assert_eq!(owner.put_if(&insert, Some(seen)).await, Err(WriteRejection::Changed), "{seen:?}");
    }
    assert_eq!(fixture.now(&first).await, first);

    // An advance of a recurring schedule changes the schedule's `next` but not its version.
    let (incarnation, revision) = (first.incarnation, first.revision);
    owner.write(Change::Advance { incarnation, revision, due: due_of(&first, minute(3)) }).await;
    assert_eq!(owner.put_if(&insert, Some(seen)).await, Err(WriteRejection::Changed));
    let advanced = fixture.now(&first).await;
    let (second, position, before) =
        owner.put_if(&insert, Some(advanced.seen())).await.expect("the precondition holds");
    assert_eq!((second.incarnation, second.revision), (incarnation, Revision(1)));
    assert_eq!((second.next, position, before), (Some(minute(5)), minute(5), Some(Status::Active)));
    assert_eq!(fixture.now(&first).await, second);
    assert!(fixture.all_due(owner.poller).await.contains(&due_of(&second, minute(5))));

    owner.write(Change::Cancel(incarnation)).await;
    let third = replacing(&fixture, &first, minute(6));
    assert_eq!(
        owner.put_if(&third, Some(second.seen())).await,
        Err(WriteRejection::Changed),
        "a put does not revert a cancellation"
    );
    let cancelled = fixture.now(&first).await.seen();
    let created = owner.put_if(&third, Some(cancelled)).await.expect("the precondition matches the cancelled schedule");
    assert_eq!(created, (third.schedule.clone(), minute(6), Some(Status::Cancelled)));
    assert_eq!(owner.put_if(&third, Some(cancelled)).await, Err(WriteRejection::Changed));
    assert_eq!(fixture.get(TENANT, &first.id).await, Some(third.schedule));
}

pub(super) async fn one_of_two_concurrent_conditional_puts_succeeds(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    for round in 0..20 {
        let mut schedule = fixture.named(&format!("invoice-{round}"), minute(1)).schedule;
        let owner = fixture.owner(schedule.poller).await;
        // The precondition of the first two puts is that no schedule has the id. The precondition of the next two puts
        // is the state of the schedule that one of the first two puts created.
        for seen in [false, true] {
            let seen = seen.then(|| schedule.seen());
            let puts = [2, 3].map(|at| replacing(&fixture, &schedule, minute(at)));
            let put = async |at: usize| {
                yield_times((round + 3 * at) % 8).await;
                owner.put_if(&puts[at], seen).await
            };
            let responses = join(put(0), put(1)).await;
            schedule = match responses {
                (Ok((created, ..)), Err(WriteRejection::Changed))
                | (Err(WriteRejection::Changed), Ok((created, ..))) => created,
                both => panic!("exactly one of the two puts must take effect: {both:?}"),
            };
            assert_eq!(fixture.get(TENANT, &schedule.id).await, Some(schedule.clone()));
        }
        assert_eq!(schedule.revision, Revision(1));
    }
}

pub(super) async fn concurrent_put_and_cancel_agree_on_the_result(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    for round in 0..40 {
        let schedule = fixture.create(fixture.named(&format!("invoice-{round}"), minute(1))).await;
        let owner = fixture.owner(schedule.poller).await;
        let put = replacing(&fixture, &schedule, minute(2));
        let putting = async {
            yield_times(round % 5).await;
            owner.put_if(&put, Some(schedule.seen())).await
        };
        let cancelling = async {
            yield_times(round % 7).await;
            match round % 2 {
                0 => owner.try_write(Change::CancelIf(schedule.edition(), None)).await,
                _ => owner.try_write(Change::Cancel(schedule.incarnation)).await,
            }
        };
        let (put, cancelled) = join(putting, cancelling).await;
        let now = fixture.get(TENANT, &schedule.id).await.expect("the schedule was created");
        assert_eq!(now.incarnation, schedule.incarnation, "neither a put nor a cancel changes the incarnation");
        match (&put, cancelled) {
            (Ok((created, ..)), Err(WriteRejection::Changed)) if round % 2 == 0 => assert_eq!(now, *created),
            (Ok(_), Ok(_)) if round % 2 == 1 => {
                assert_eq!((now.status, now.revision), (Status::Cancelled, Revision(2)))
            }
            (Err(WriteRejection::Changed), Ok(_)) => {
                assert_eq!((now.status, now.revision), (Status::Cancelled, Revision(1)));
            }
            both => panic!("the results of the put and the cancel contradict each other: {both:?}"),
        }
    }
}

pub(super) async fn conditional_cancel_spares_other_versions(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    let unknown = ScheduleVersion { incarnation: fixture.numbers.incarnation(), ..first.edition() };
    let later = ScheduleVersion { revision: Revision(1), ..first.edition() };
    for edition in [unknown, later] {
        assert_eq!(owner.try_write(Change::CancelIf(edition, None)).await, Err(WriteRejection::Changed));
    }
    let second = put_over(owner, &first, minute(2)).await;
    assert_eq!(owner.try_write(Change::CancelIf(first.edition(), None)).await, Err(WriteRejection::Changed));
    assert_eq!(fixture.now(&first).await, second);

    // An advance does not change the version of the schedule.
    let (incarnation, revision) = (second.incarnation, second.revision);
    owner.write(Change::Advance { incarnation, revision, due: due_of(&second, minute(3)) }).await;
    owner.write(Change::CancelIf(second.edition(), None)).await;
    let cancelled = fixture.now(&first).await;
    assert_eq!((cancelled.status, cancelled.revision, cancelled.next), (Status::Cancelled, Revision(2), None));
    for edition in [second.edition(), cancelled.edition()] {
        assert_eq!(owner.try_write(Change::CancelIf(edition, None)).await, Err(WriteRejection::Changed));
    }
    assert_eq!(fixture.now(&first).await, cancelled);
}

pub(super) async fn cancel_takes_effect_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    owner.write(Change::Cancel(schedule.incarnation)).await;
    let expected = Schedule {
        status: Status::Cancelled,
        revision: Revision(schedule.revision.0 + 1),
        next: None,
        ..Schedule::clone(&schedule)
    };
    assert_eq!(*fixture.now(&schedule).await, expected);
    for incarnation in [schedule.incarnation, fixture.numbers.incarnation()] {
        assert_eq!(owner.try_write(Change::Cancel(incarnation)).await, Err(WriteRejection::NotFound));
    }
    assert_eq!(*fixture.now(&schedule).await, expected);

    let ended = fixture.create(fixture.unnamed_in(owner.poller, minute(1))).await;
    owner.finish(&ended, RunState::Succeeded).await;
    owner.write(Change::Cancel(ended.incarnation)).await;
    assert_eq!(fixture.now(&ended).await.status, Status::Cancelled);
}

pub(super) async fn retry_row_is_due_when_its_run_is_written(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let first = due_of(&schedule, minute(1));
    assert_eq!(fixture.run(first.occurrence).await, None);
    let run = run_of(TENANT, first.occurrence, RunState::Retrying);
    let retry = DueKey { position: minute(2), attempt: 2, ..first };
    owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false, origin: None }).await;
    assert_eq!(fixture.run(first.occurrence).await, Some(run));
    assert_eq!(fixture.all_due(owner.poller).await, [first, retry]);
    assert_eq!(fixture.now(&schedule).await, schedule);
}

pub(super) async fn occurrence_has_one_final_outcome(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let missed = RunState::Missed { last: minute(9), count: 12_345, attempt_possible: false };
    for state in [RunState::Succeeded, RunState::Failed, RunState::Cancelled, missed] {
        let schedule = fixture.create(fixture.unnamed(minute(1))).await;
        let owner = fixture.owner(schedule.poller).await;
        let first = due_of(&schedule, minute(1));
        let run = run_of(TENANT, first.occurrence, RunState::Retrying);
        let retry = DueKey { position: minute(2), attempt: 2, ..first };
        owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false, origin: None }).await;
        let last = Run { state, ..run.clone() };
        owner.write(Change::Run { run: last.clone(), then: None, ends: false, origin: None }).await;

        let later = DueKey { position: minute(3), attempt: 3, ..first };
        let late = [
            Change::Run { run, then: Some(later), ends: false, origin: None },
            Change::Run {
                run: Run { state: RunState::Succeeded, ..last.clone() },
                then: None,
                ends: true,
                origin: None,
            },
        ];
        for change in late {
            assert_eq!(owner.try_write(change).await, Err(WriteRejection::Resolved));
        }
        assert_eq!(fixture.run(first.occurrence).await, Some(last), "the store keeps the first final outcome");
        assert!(!fixture.all_due(owner.poller).await.contains(&later), "a rejected outcome writes no due row");
        assert_eq!(fixture.now(&schedule).await, schedule, "a rejected outcome does not end the schedule");
    }
}

/// Length of the longest encrypted excerpt.
const EXCERPT_LEN: usize = domain::limits::EXCERPT_BYTES_MAX + Secret::ENCRYPTION_OVERHEAD;

pub(super) async fn run_is_stored_exactly(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let results = [
        AttemptResult::Answered(100),
        AttemptResult::Answered(u16::MAX),
        AttemptResult::Unreachable(String::new()),
        AttemptResult::Unreachable("connection refused \u{2014} ".repeat(40)),
        AttemptResult::TimedOut,
        AttemptResult::Panicked,
    ];
    let attempts = results.into_iter().cycle().take(domain::limits::ATTEMPTS_KEPT).zip(7..);
    let attempts = attempts.map(|(result, number)| Attempt {
        number,
        started_at: minute(i64::from(number)),
        duration: Duration::from_millis(u64::from(number) * 100_000),
        result,
        delay: None,
        excerpt: (number % 3 > 0).then(|| Secret::Encrypted(vec![number.to_le_bytes()[0]; EXCERPT_LEN].into())),
    });
    let run = Run {
        tenant: TENANT,
        occurrence: due_of(&schedule, minute(1)).occurrence,
        state: RunState::Failed,
        attempts: attempts.collect(),
    };
    owner.write(Change::Run { run: run.clone(), then: None, ends: true, origin: None }).await;
    let missed = Run {
        tenant: TENANT,
        occurrence: due_of(&schedule, minute(3)).occurrence,
        state: RunState::Missed { last: minute(500), count: u64::from(u32::MAX) + 1, attempt_possible: true },
        attempts: Vec::new(),
    };
    let unmarked = Run {
        occurrence: due_of(&schedule, minute(501)).occurrence,
        state: RunState::Missed { last: minute(501), count: 1, attempt_possible: false },
        ..missed.clone()
    };
    owner.write(Change::Run { run: missed.clone(), then: None, ends: false, origin: None }).await;
    owner.write(Change::Run { run: unmarked.clone(), then: None, ends: false, origin: None }).await;

    let unknown = due_of(&schedule, minute(2)).occurrence;
    let requested = vec![missed.occurrence, unknown, run.occurrence, missed.occurrence];
    let found = fixture.store.find_runs(requested).await.expect("the store accepts reads");
    assert_eq!(found, [Some(missed.clone()), None, Some(run.clone()), Some(missed.clone())]);
    assert_eq!(fixture.store.runs(schedule.incarnation, None, 10).await, Ok(vec![run, missed, unmarked]));
}

pub(super) async fn run_ends_only_its_own_revision(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    let second = put_over(owner, &first, minute(2)).await;
    let old = owner.finish(&first, RunState::Succeeded).await;
    assert_eq!(fixture.run(old.occurrence).await, Some(old), "the store stores the outcome of an older revision");
    assert_eq!(fixture.now(&second).await, second, "the outcome of an older revision does not end the newer revision");

    owner.finish(&second, RunState::Succeeded).await;
    let expected = Schedule { status: Status::Ended, next: None, ..Schedule::clone(&second) };
    assert_eq!(*fixture.now(&second).await, expected);

    let cancelled = fixture.create(fixture.unnamed_in(owner.poller, minute(1))).await;
    owner.write(Change::Cancel(cancelled.incarnation)).await;
    owner.finish(&cancelled, RunState::Succeeded).await;
    assert_eq!(fixture.now(&cancelled).await.status, Status::Cancelled);
}

pub(super) async fn advance_moves_only_an_active_schedule(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let first = due_of(&schedule, minute(1));
    let advance = |schedule: &Schedule, due: DueKey| Change::Advance {
        incarnation: schedule.incarnation,
        revision: schedule.revision,
        due,
    };
    let second = due_of(&schedule, minute(2));
    for _ in 0..2 {
        owner.write(advance(&schedule, second)).await; // A repeated advance has no further effect.
        let moved = Schedule { next: Some(minute(2)), ..Schedule::clone(&schedule) };
        assert_eq!(*fixture.now(&schedule).await, moved);
        assert_eq!(fixture.all_due(owner.poller).await, [first, second]);
    }

    owner.write(advance(&schedule, first)).await; // A slow owner repeats an earlier advance.
    assert_eq!(fixture.now(&schedule).await.next, Some(minute(2)), "`next` never decreases");

    let replaced = put_over(owner, &fixture.now(&schedule).await.clone(), minute(3)).await;
    let third = due_of(&replaced, minute(3));
    owner.write(advance(&schedule, due_of(&schedule, minute(4)))).await;
    assert_eq!(fixture.now(&schedule).await, replaced, "`Change::Advance` of an old revision has no effect");
    assert_eq!(fixture.all_due(owner.poller).await, [first, second, third]);

    owner.write(Change::End { incarnation: replaced.incarnation, revision: replaced.revision }).await;
    let ended = fixture.now(&schedule).await;
    owner.write(advance(&replaced, due_of(&replaced, minute(5)))).await;
    assert_eq!(fixture.now(&schedule).await, ended, "`Change::Advance` does not change an ended schedule");
    assert_eq!(fixture.all_due(owner.poller).await, [first, second, third]);

    let unknown = Schedule { incarnation: fixture.numbers.incarnation(), ..Schedule::clone(&schedule) };
    let response = owner.try_write(advance(&unknown, due_of(&unknown, minute(6)))).await;
    assert_eq!(response, Err(WriteRejection::NotFound));
}

pub(super) async fn end_keeps_the_revision(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let (incarnation, revision) = (schedule.incarnation, schedule.revision);
    owner.write(Change::End { incarnation, revision: Revision(revision.0 + 1) }).await;
    assert_eq!(fixture.now(&schedule).await, schedule, "`Change::End` of another revision does not end the schedule");
    for _ in 0..2 {
        owner.write(Change::End { incarnation, revision }).await;
        let expected = Schedule { status: Status::Ended, next: None, ..Schedule::clone(&schedule) };
        assert_eq!(*fixture.now(&schedule).await, expected);
    }
    let unknown = fixture.numbers.incarnation();
    let response = owner.try_write(Change::End { incarnation: unknown, revision }).await;
    assert_eq!(response, Err(WriteRejection::NotFound));
}

pub(super) async fn deferred_row_is_due_at_its_later_position(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.unnamed(minute(1));
    let schedule = fixture.create(insert.clone()).await;
    let owner = fixture.owner(schedule.poller).await;
    let later = DueKey { position: minute(7), ..insert.due };
    owner.write(Change::Defer(later)).await;
    owner.write(Change::Defer(later)).await;
    assert_eq!(fixture.all_due(owner.poller).await, [insert.due, later]);
    owner.close(minute(6), minute(6)).await;
    assert_eq!(fixture.all_due(owner.poller).await, [later], "only the deferred row is after `done`");
}

pub(super) async fn dead_letter_is_redriven_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let mut dead = owner.finish(&schedule, RunState::Failed).await;
    let row = due_of(&schedule, minute(1));
    let redrive = |of: Occurrence, position| Change::Redrive {
        of,
        due: DueKey { position, occurrence: Occurrence { replay: of.replay + 1, ..of }, ..row },
    };
    let mut rows = vec![row];
    for replay in 0..2 {
        assert_eq!(fixture.dead_letters(TENANT).await, [dead.clone()]);
        let position = minute(2 + i64::from(replay));
        owner.write(redrive(dead.occurrence, position)).await;
        let occurrence = Occurrence { replay: replay + 1, ..row.occurrence };
        rows.push(DueKey { position, occurrence, ..row });
        assert_eq!(fixture.all_due(owner.poller).await, rows);
        assert_eq!(fixture.dead_letters(TENANT).await, [], "a redriven run is not a dead letter");
        assert_eq!(fixture.run(dead.occurrence).await, Some(dead.clone()), "a redrive does not change the failed run");
        let again = owner.try_write(redrive(dead.occurrence, minute(50))).await;
        assert_eq!(again, Err(WriteRejection::NotFound));

        dead = Run { occurrence, ..dead };
        owner.write(Change::Run { run: dead.clone(), then: None, ends: false, origin: None }).await;
    }
    let live = fixture.create(fixture.unnamed_in(owner.poller, minute(1))).await;
    let succeeded = owner.finish(&live, RunState::Succeeded).await.occurrence;
    let unknown = due_of(&schedule, minute(9)).occurrence;
    for of in [succeeded, unknown] {
        assert_eq!(owner.try_write(redrive(of, minute(60))).await, Err(WriteRejection::NotFound));
    }
    assert!(
        fixture.all_due(owner.poller).await.iter().all(|row| row.position < minute(50)),
        "a rejected redrive writes no due row"
    );
}

pub(super) async fn items_of_a_batch_take_effect_in_order(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(1));
    let owner = fixture.owner(insert.schedule.poller).await;
    let schedule = insert.schedule.clone();
    let (incarnation, revision) = (schedule.incarnation, schedule.revision);
    let first = due_of(&schedule, minute(1));
    let run = |state| run_of(TENANT, first.occurrence, state);
    let retry = DueKey { position: minute(2), attempt: 2, ..first };
    let replacing = replacing(&fixture, &schedule, minute(5));
    let changes = vec![
        Change::Put(insert),
        Change::Run { run: run(RunState::Retrying), then: Some(retry), ends: false, origin: None },
        Change::Run { run: run(RunState::Succeeded), then: None, ends: false, origin: None },
        Change::Run { run: run(RunState::Failed), then: None, ends: true, origin: None },
        Change::Advance { incarnation, revision, due: due_of(&schedule, minute(3)) },
        Change::Put(replacing),
        Change::End { incarnation, revision },
        Change::Positions(Positions { closed: minute(2), done: minute(1) }),
        Change::Positions(Positions { closed: minute(4), done: minute(2) }),
        Change::Cancel(incarnation),
        Change::Cancel(incarnation),
    ];
    let batch = changes.into_iter().map(|change| owner.request(change)).collect();
    let responses = fixture.store.write(batch).await.expect("the store accepts an owner's writes");
    let [
        Ok(Written::Put { before: None, .. }),
        run_written,
        Ok(Written::Put { before: Some(Status::Active), schedule: second, .. }),
        rest,
    ] = [&responses[0], &responses[1], &responses[5], &responses[6]]
    else {
        panic!("{responses:?}");
    };
    assert_eq!((run_written, rest), (&Ok(Written::Done), &Ok(Written::Done)));
    assert_eq!(second.revision, Revision(1));
    let done = Ok(Written::Done);
    assert_eq!(responses[2..5], [done.clone(), Err(WriteRejection::Resolved), done.clone()]);
    assert_eq!(responses[7..], [done.clone(), done.clone(), done, Err(WriteRejection::NotFound)]);

    let last = fixture.now(&schedule).await;
    assert_eq!((last.status, last.revision, last.next), (Status::Cancelled, Revision(2), None));
    assert_eq!(fixture.run(first.occurrence).await, Some(run(RunState::Succeeded)));
    assert_eq!(fixture.positions(owner.poller).await, Positions { closed: minute(4), done: minute(2) });
    assert_eq!(fixture.all_due(owner.poller).await, [due_of(&schedule, minute(3)), due_of(second, minute(5))]);
}

pub(super) async fn batch_of_10000_outcomes_is_written(subject: &dyn Subject) {
    const ROWS: i64 = 10_000;
    let fixture = Fixture::open(subject).await;
    let mut insert = fixture.unnamed(minute(1));
    Arc::make_mut(&mut insert.schedule).spec = spec(minute(1));
    let schedule = fixture.create(insert).await;
    let owner = fixture.owner(schedule.poller).await;
    let occurrence = |number| due_of(&schedule, minute(number)).occurrence;
    let state = |number| if number % 3 == 0 { RunState::Failed } else { RunState::Succeeded };
    let runs: Vec<Run> = (1..=ROWS).map(|number| run_of(TENANT, occurrence(number), state(number))).collect();
    let outcome_write =
        |run: &Run| owner.request(Change::Run { run: run.clone(), then: None, ends: false, origin: None });
    let batch: Vec<OwnerWrite> = runs.iter().rev().map(outcome_write).collect();
    let responses = fixture.store.write(batch).await.expect("the store accepts a batch of 10,000 outcomes");
    assert!(responses.len() == runs.len() && responses.iter().all(|response| *response == Ok(Written::Done)));
    assert!(fixture.store.runs(schedule.incarnation, None, usize::MAX).await.expect("the store accepts reads") == runs);
    let dead = fixture.dead_letters(TENANT).await;
    assert!(dead.iter().eq(runs.iter().filter(|run| run.state == RunState::Failed)));
}

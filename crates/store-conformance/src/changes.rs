//! What an owner writes, one change at a time.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, DueKey, Edition, Occurrence, Revision, RunState, Schedule, Seen, Status, Timestamp,
};
use futures_util::future::join;

use crate::Subject;
use crate::scene::{Owner, Scene, TENANT, due_of, insert_in, minute, poller, run_of, spec, yield_times};
use store::{Change, Insert, Inserted, OwnerWrite, Positions, WriteRefusal, Written};

pub(super) async fn a_put_makes_what_is_not_there(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    for insert in [scene.named("invoice-7", minute(1)), scene.unnamed(minute(1))] {
        let owner = scene.owner(insert.schedule.poller).await;
        let answer = owner.put(&insert).await;
        assert_eq!(answer, (insert.schedule.clone(), minute(1), None));
        assert_eq!(scene.get(TENANT, &insert.schedule.id).await, Some(insert.schedule.clone()));
        assert_eq!(scene.now(&insert.schedule).await, insert.schedule);
        assert!(scene.all_due(owner.poller).await.contains(&insert.due));
    }
}

/// What a put with a spec of its own asks for.
fn replacing(scene: &Scene, schedule: &Schedule, at: Timestamp) -> Insert {
    let mut insert = insert_in(schedule.poller, scene.numbers.incarnation(), schedule.id.clone(), at);
    let asked = Arc::make_mut(&mut insert.schedule);
    asked.created_at = minute(-1);
    asked.updated_at = minute(-1);
    asked.spec.payload = bytes::Bytes::from_static(b"[2]");
    insert
}

/// Puts over `schedule`, which is not cancelled, and checks what comes of it.
async fn put_over(owner: Owner<'_>, schedule: &Schedule, at: Timestamp) -> Arc<Schedule> {
    let scene = owner.scene;
    let mut insert = replacing(scene, schedule, at);
    // Whoever asks may know only the pollers that the tenant's quota gives new schedules now.
    Arc::make_mut(&mut insert.schedule).poller.generation += 1;
    let expected = Arc::new(Schedule {
        incarnation: schedule.incarnation,
        poller: schedule.poller,
        created_at: schedule.created_at,
        revision: Revision(schedule.revision.0 + 1),
        ..Schedule::clone(&insert.schedule)
    });
    assert_eq!(owner.put(&insert).await, (expected.clone(), at, Some(schedule.status)));
    assert_eq!(scene.now(schedule).await, expected);
    assert_eq!(scene.get(schedule.tenant, &schedule.id).await, Some(expected.clone()));
    assert_eq!(scene.load(insert.schedule.incarnation).await, None, "the asked incarnation was not needed");
    let row = DueKey { position: at, ..due_of(&expected, at) };
    assert!(scene.all_due(owner.poller).await.contains(&row), "its row has the revision that came of it");
    expected
}

pub(super) async fn a_put_replaces_what_is_live(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(first.poller).await;
    let second = put_over(owner, &first, minute(2)).await;
    put_over(owner, &second, minute(1)).await;
}

pub(super) async fn a_put_revives_what_has_ended(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    owner.finish(&schedule, RunState::Succeeded).await;
    let ended = scene.now(&schedule).await;
    assert_eq!(ended.status, Status::Ended);
    let revived = put_over(owner, &ended, minute(2)).await;
    assert_eq!(revived.status, Status::Active);
}

pub(super) async fn a_put_over_a_cancelled_id_makes_a_new_incarnation(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(1));
    let first = scene.create(insert.clone()).await;
    let owner = scene.owner(first.poller).await;
    owner.write(Change::Cancel(first.incarnation)).await;
    let cancelled = scene.now(&first).await;

    let same = owner.try_write(Change::Put(insert.clone())).await;
    assert_eq!(same, Err(WriteRefusal::NotFound), "a put that is tried again does not undo the cancel");
    assert_eq!(scene.now(&first).await, cancelled);

    let second = replacing(&scene, &first, minute(2));
    assert_eq!(owner.put(&second).await, (second.schedule.clone(), minute(2), Some(Status::Cancelled)));
    assert_eq!(scene.get(TENANT, &first.id).await, Some(second.schedule.clone()));
    assert_eq!(scene.now(&first).await, cancelled);
    assert!(scene.all_due(owner.poller).await.contains(&second.due));

    owner.write(Change::Cancel(second.schedule.incarnation)).await;
    let oldest = owner.try_write(Change::Put(insert)).await;
    assert_eq!(oldest, Err(WriteRefusal::NotFound), "nor after another had the id");
    assert_eq!(scene.now(&first).await, cancelled);

    let third = replacing(&scene, &first, minute(3));
    owner.put(&third).await;
    let over_live = replacing(&scene, &first, minute(4));
    let (live, ..) = owner.put(&over_live).await;
    assert_eq!(live.incarnation, third.schedule.incarnation);
    owner.write(Change::Cancel(live.incarnation)).await;
    let cancelled = scene.now(&live).await;
    let again = owner.try_write(Change::Put(over_live.clone())).await;
    assert_eq!(again, Err(WriteRefusal::NotFound), "nor if it had no need of its incarnation");
    assert_eq!(scene.insert(&over_live).await, Inserted::Exists(live.incarnation));
    assert_eq!(scene.now(&live).await, cancelled);
}

pub(super) async fn a_put_behind_closed_says_where_its_row_is(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(3));
    let owner = scene.owner(insert.schedule.poller).await;
    owner.close(minute(5), minute(1)).await;
    let (schedule, position, _) = owner.put(&insert).await;
    let just_after = minute(5) + Duration::from_millis(1);
    assert!([minute(3), just_after].contains(&position), "{position}");
    assert_eq!(scene.all_due(owner.poller).await, [DueKey { position, ..due_of(&schedule, minute(3)) }]);
}

pub(super) async fn a_put_if_nothing_is_there_makes_an_id_only_once(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(1));
    let owner = scene.owner(insert.schedule.poller).await;
    let made = owner.put_if(&insert, None).await;
    assert_eq!(made, Ok((insert.schedule.clone(), minute(1), None)));
    assert_eq!(scene.get(TENANT, &insert.schedule.id).await, Some(insert.schedule.clone()));
    assert!(scene.all_due(owner.poller).await.contains(&insert.due));

    let second = replacing(&scene, &insert.schedule, minute(2));
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRefusal::Changed), "another has the id");
    owner.finish(&insert.schedule, RunState::Succeeded).await;
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRefusal::Changed), "even once it has ended");
    owner.write(Change::Cancel(insert.schedule.incarnation)).await;
    let cancelled = scene.now(&insert.schedule).await;
    assert_eq!(owner.put_if(&second, None).await, Err(WriteRefusal::Changed), "even once it is cancelled");
    assert_eq!(scene.get(TENANT, &insert.schedule.id).await, Some(cancelled));
    assert_eq!(scene.load(second.schedule.incarnation).await, None);
}

pub(super) async fn a_put_if_nothing_has_changed_replaces_what_was_seen(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(first.poller).await;
    let seen = first.seen();
    let unlike = [
        Seen { next: Some(minute(2)), ..seen },
        Seen { next: None, ..seen },
        Seen { edition: Edition { revision: Revision(1), ..seen.edition }, ..seen },
        Seen { edition: Edition { incarnation: scene.numbers.incarnation(), ..seen.edition }, ..seen },
    ];
    let insert = replacing(&scene, &first, minute(5));
    for seen in unlike {
        assert_eq!(owner.put_if(&insert, Some(seen)).await, Err(WriteRefusal::Changed), "{seen:?}");
    }
    assert_eq!(scene.now(&first).await, first);

    // A recurring schedule that went on is of the same edition, and yet not as it was seen.
    let (incarnation, revision) = (first.incarnation, first.revision);
    owner.write(Change::Advance { incarnation, revision, due: due_of(&first, minute(3)) }).await;
    assert_eq!(owner.put_if(&insert, Some(seen)).await, Err(WriteRefusal::Changed));
    let gone_on = scene.now(&first).await;
    let (second, position, before) = owner.put_if(&insert, Some(gone_on.seen())).await.expect("it is as it was seen");
    assert_eq!((second.incarnation, second.revision), (incarnation, Revision(1)));
    assert_eq!((second.next, position, before), (Some(minute(5)), minute(5), Some(Status::Active)));
    assert_eq!(scene.now(&first).await, second);
    assert!(scene.all_due(owner.poller).await.contains(&due_of(&second, minute(5))));

    owner.write(Change::Cancel(incarnation)).await;
    let third = replacing(&scene, &first, minute(6));
    assert_eq!(owner.put_if(&third, Some(second.seen())).await, Err(WriteRefusal::Changed), "no cancel is undone");
    let cancelled = scene.now(&first).await.seen();
    let made = owner.put_if(&third, Some(cancelled)).await.expect("whoever saw that it is cancelled may");
    assert_eq!(made, (third.schedule.clone(), minute(6), Some(Status::Cancelled)));
    assert_eq!(owner.put_if(&third, Some(cancelled)).await, Err(WriteRefusal::Changed));
    assert_eq!(scene.get(TENANT, &first.id).await, Some(third.schedule));
}

pub(super) async fn of_puts_at_once_that_saw_the_same_one_takes_effect(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    for round in 0..20 {
        let mut schedule = scene.named(&format!("invoice-{round}"), minute(1)).schedule;
        let owner = scene.owner(schedule.poller).await;
        // Over nothing first, then over what came of that.
        for seen in [false, true] {
            let seen = seen.then(|| schedule.seen());
            let puts = [2, 3].map(|at| replacing(&scene, &schedule, minute(at)));
            let put = async |at: usize| {
                yield_times((round + 3 * at) % 8).await;
                owner.put_if(&puts[at], seen).await
            };
            let answers = join(put(0), put(1)).await;
            schedule = match answers {
                (Ok((made, ..)), Err(WriteRefusal::Changed)) | (Err(WriteRefusal::Changed), Ok((made, ..))) => made,
                both => panic!("one of them takes effect, and the other is told: {both:?}"),
            };
            assert_eq!(scene.get(TENANT, &schedule.id).await, Some(schedule.clone()));
        }
        assert_eq!(schedule.revision, Revision(1));
    }
}

pub(super) async fn a_put_and_a_cancel_at_once_agree_on_what_was_there(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    for round in 0..40 {
        let schedule = scene.create(scene.named(&format!("invoice-{round}"), minute(1))).await;
        let owner = scene.owner(schedule.poller).await;
        let put = replacing(&scene, &schedule, minute(2));
        let putting = async {
            yield_times(round % 5).await;
            owner.put_if(&put, Some(schedule.seen())).await
        };
        let cancelling = async {
            yield_times(round % 7).await;
            match round % 2 {
                0 => owner.try_write(Change::CancelIf(schedule.edition())).await,
                _ => owner.try_write(Change::Cancel(schedule.incarnation)).await,
            }
        };
        let (put, cancelled) = join(putting, cancelling).await;
        let now = scene.get(TENANT, &schedule.id).await.expect("it was made");
        assert_eq!(now.incarnation, schedule.incarnation, "what was live is not made anew");
        match (&put, cancelled) {
            (Ok((made, ..)), Err(WriteRefusal::Changed)) if round % 2 == 0 => assert_eq!(now, *made),
            (Ok(_), Ok(_)) if round % 2 == 1 => {
                assert_eq!((now.status, now.revision), (Status::Cancelled, Revision(2)))
            }
            (Err(WriteRefusal::Changed), Ok(_)) => {
                assert_eq!((now.status, now.revision), (Status::Cancelled, Revision(1)));
            }
            both => panic!("they do not agree: {both:?}"),
        }
    }
}

pub(super) async fn a_cancel_of_an_edition_spares_every_other(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(first.poller).await;
    let nobodys = Edition { incarnation: scene.numbers.incarnation(), ..first.edition() };
    let later = Edition { revision: Revision(1), ..first.edition() };
    for edition in [nobodys, later] {
        assert_eq!(owner.try_write(Change::CancelIf(edition)).await, Err(WriteRefusal::Changed));
    }
    let second = put_over(owner, &first, minute(2)).await;
    assert_eq!(owner.try_write(Change::CancelIf(first.edition())).await, Err(WriteRefusal::Changed));
    assert_eq!(scene.now(&first).await, second);

    // That it went on does not make it another edition.
    let (incarnation, revision) = (second.incarnation, second.revision);
    owner.write(Change::Advance { incarnation, revision, due: due_of(&second, minute(3)) }).await;
    owner.write(Change::CancelIf(second.edition())).await;
    let cancelled = scene.now(&first).await;
    assert_eq!((cancelled.status, cancelled.revision, cancelled.next), (Status::Cancelled, Revision(2), None));
    for edition in [second.edition(), cancelled.edition()] {
        assert_eq!(owner.try_write(Change::CancelIf(edition)).await, Err(WriteRefusal::Changed));
    }
    assert_eq!(scene.now(&first).await, cancelled);
}

pub(super) async fn a_cancel_takes_effect_once(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    owner.write(Change::Cancel(schedule.incarnation)).await;
    let expected = Schedule {
        status: Status::Cancelled,
        revision: Revision(schedule.revision.0 + 1),
        next: None,
        ..Schedule::clone(&schedule)
    };
    assert_eq!(*scene.now(&schedule).await, expected);
    for incarnation in [schedule.incarnation, scene.numbers.incarnation()] {
        assert_eq!(owner.try_write(Change::Cancel(incarnation)).await, Err(WriteRefusal::NotFound));
    }
    assert_eq!(*scene.now(&schedule).await, expected);

    let ended = scene.create(scene.unnamed_in(owner.poller, minute(1))).await;
    owner.finish(&ended, RunState::Succeeded).await;
    owner.write(Change::Cancel(ended.incarnation)).await;
    assert_eq!(scene.now(&ended).await.status, Status::Cancelled);
}

pub(super) async fn a_retry_is_due_when_its_run_is_booked(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.unnamed(minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    let first = due_of(&schedule, minute(1));
    assert_eq!(scene.run(first.occurrence).await, None);
    let run = run_of(TENANT, first.occurrence, RunState::Retrying);
    let retry = DueKey { position: minute(2), attempt: 2, ..first };
    owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false }).await;
    assert_eq!(scene.run(first.occurrence).await, Some(run));
    assert_eq!(scene.all_due(owner.poller).await, [first, retry]);
    assert_eq!(scene.now(&schedule).await, schedule);
}

pub(super) async fn an_occurrence_has_one_final_outcome(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let missed = RunState::Missed { last: minute(9), count: 12_345 };
    for state in [RunState::Succeeded, RunState::Failed, RunState::Cancelled, missed] {
        let schedule = scene.create(scene.unnamed(minute(1))).await;
        let owner = scene.owner(schedule.poller).await;
        let first = due_of(&schedule, minute(1));
        let run = run_of(TENANT, first.occurrence, RunState::Retrying);
        let retry = DueKey { position: minute(2), attempt: 2, ..first };
        owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false }).await;
        let last = Run { state, ..run.clone() };
        owner.write(Change::Run { run: last.clone(), then: None, ends: false }).await;

        let later = DueKey { position: minute(3), attempt: 3, ..first };
        let late = [
            Change::Run { run, then: Some(later), ends: false },
            Change::Run { run: Run { state: RunState::Succeeded, ..last.clone() }, then: None, ends: true },
        ];
        for change in late {
            assert_eq!(owner.try_write(change).await, Err(WriteRefusal::Resolved));
        }
        assert_eq!(scene.run(first.occurrence).await, Some(last), "the first outcome stays");
        assert!(!scene.all_due(owner.poller).await.contains(&later), "and the refused one made no row");
        assert_eq!(scene.now(&schedule).await, schedule, "nor an end");
    }
}

pub(super) async fn a_run_is_kept_exactly(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.unnamed(minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
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
    });
    let run = Run {
        tenant: TENANT,
        occurrence: due_of(&schedule, minute(1)).occurrence,
        state: RunState::Failed,
        attempts: attempts.collect(),
    };
    owner.write(Change::Run { run: run.clone(), then: None, ends: true }).await;
    let missed = Run {
        tenant: TENANT,
        occurrence: due_of(&schedule, minute(3)).occurrence,
        state: RunState::Missed { last: minute(500), count: u64::from(u32::MAX) + 1 },
        attempts: Vec::new(),
    };
    owner.write(Change::Run { run: missed.clone(), then: None, ends: false }).await;

    let unknown = due_of(&schedule, minute(2)).occurrence;
    let asked = vec![missed.occurrence, unknown, run.occurrence, missed.occurrence];
    let found = scene.store.find_runs(asked).await.expect("the store is read");
    assert_eq!(found, [Some(missed.clone()), None, Some(run.clone()), Some(missed.clone())]);
    assert_eq!(scene.store.runs(schedule.incarnation, None, 10).await, Ok(vec![run, missed]));
}

pub(super) async fn a_run_ends_its_own_revision_only(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(first.poller).await;
    let second = put_over(owner, &first, minute(2)).await;
    let old = owner.finish(&first, RunState::Succeeded).await;
    assert_eq!(scene.run(old.occurrence).await, Some(old), "the outcome counts");
    assert_eq!(scene.now(&second).await, second, "but the schedule has gone on");

    owner.finish(&second, RunState::Succeeded).await;
    let expected = Schedule { status: Status::Ended, next: None, ..Schedule::clone(&second) };
    assert_eq!(*scene.now(&second).await, expected);

    let cancelled = scene.create(scene.unnamed_in(owner.poller, minute(1))).await;
    owner.write(Change::Cancel(cancelled.incarnation)).await;
    owner.finish(&cancelled, RunState::Succeeded).await;
    assert_eq!(scene.now(&cancelled).await.status, Status::Cancelled);
}

pub(super) async fn an_advance_moves_a_live_schedule_only(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    let first = due_of(&schedule, minute(1));
    let advance = |schedule: &Schedule, due: DueKey| Change::Advance {
        incarnation: schedule.incarnation,
        revision: schedule.revision,
        due,
    };
    let second = due_of(&schedule, minute(2));
    for _ in 0..2 {
        owner.write(advance(&schedule, second)).await; // Twice is harmless.
        let moved = Schedule { next: Some(minute(2)), ..Schedule::clone(&schedule) };
        assert_eq!(*scene.now(&schedule).await, moved);
        assert_eq!(scene.all_due(owner.poller).await, [first, second]);
    }

    owner.write(advance(&schedule, first)).await; // By an owner that comes late.
    assert_eq!(scene.now(&schedule).await.next, Some(minute(2)), "it never goes back");

    let replaced = put_over(owner, &scene.now(&schedule).await.clone(), minute(3)).await;
    let third = due_of(&replaced, minute(3));
    owner.write(advance(&schedule, due_of(&schedule, minute(4)))).await;
    assert_eq!(scene.now(&schedule).await, replaced, "another revision");
    assert_eq!(scene.all_due(owner.poller).await, [first, second, third]);

    owner.write(Change::End { incarnation: replaced.incarnation, revision: replaced.revision }).await;
    let ended = scene.now(&schedule).await;
    owner.write(advance(&replaced, due_of(&replaced, minute(5)))).await;
    assert_eq!(scene.now(&schedule).await, ended, "no longer active");
    assert_eq!(scene.all_due(owner.poller).await, [first, second, third]);

    let unknown = Schedule { incarnation: scene.numbers.incarnation(), ..Schedule::clone(&schedule) };
    let answer = owner.try_write(advance(&unknown, due_of(&unknown, minute(6)))).await;
    assert_eq!(answer, Err(WriteRefusal::NotFound));
}

pub(super) async fn an_end_keeps_the_revision(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    let (incarnation, revision) = (schedule.incarnation, schedule.revision);
    owner.write(Change::End { incarnation, revision: Revision(revision.0 + 1) }).await;
    assert_eq!(scene.now(&schedule).await, schedule, "another revision");
    for _ in 0..2 {
        owner.write(Change::End { incarnation, revision }).await;
        let expected = Schedule { status: Status::Ended, next: None, ..Schedule::clone(&schedule) };
        assert_eq!(*scene.now(&schedule).await, expected);
    }
    let unknown = scene.numbers.incarnation();
    let answer = owner.try_write(Change::End { incarnation: unknown, revision }).await;
    assert_eq!(answer, Err(WriteRefusal::NotFound));
}

pub(super) async fn a_deferred_row_is_due_again_later(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.unnamed(minute(1));
    let schedule = scene.create(insert.clone()).await;
    let owner = scene.owner(schedule.poller).await;
    let later = DueKey { position: minute(7), ..insert.due };
    owner.write(Change::Defer(later)).await;
    owner.write(Change::Defer(later)).await;
    assert_eq!(scene.all_due(owner.poller).await, [insert.due, later]);
    owner.close(minute(6), minute(6)).await;
    assert_eq!(scene.all_due(owner.poller).await, [later], "its nominal instant is long done, the row is not");
}

pub(super) async fn a_dead_letter_is_redriven_once(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.unnamed(minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    let mut dead = owner.finish(&schedule, RunState::Failed).await;
    let row = due_of(&schedule, minute(1));
    let redrive = |of: Occurrence, position| Change::Redrive {
        of,
        due: DueKey { position, occurrence: Occurrence { replay: of.replay + 1, ..of }, ..row },
    };
    let mut rows = vec![row];
    for replay in 0..2 {
        assert_eq!(scene.dead_letters(TENANT).await, [dead.clone()]);
        let position = minute(2 + i64::from(replay));
        owner.write(redrive(dead.occurrence, position)).await;
        let occurrence = Occurrence { replay: replay + 1, ..row.occurrence };
        rows.push(DueKey { position, occurrence, ..row });
        assert_eq!(scene.all_due(owner.poller).await, rows);
        assert_eq!(scene.dead_letters(TENANT).await, [], "a redriven run is no dead letter");
        assert_eq!(scene.run(dead.occurrence).await, Some(dead.clone()), "but its record stays");
        let again = owner.try_write(redrive(dead.occurrence, minute(50))).await;
        assert_eq!(again, Err(WriteRefusal::NotFound));

        dead = Run { occurrence, ..dead };
        owner.write(Change::Run { run: dead.clone(), then: None, ends: false }).await;
    }
    let live = scene.create(scene.unnamed_in(owner.poller, minute(1))).await;
    let succeeded = owner.finish(&live, RunState::Succeeded).await.occurrence;
    let unknown = due_of(&schedule, minute(9)).occurrence;
    for of in [succeeded, unknown] {
        assert_eq!(owner.try_write(redrive(of, minute(60))).await, Err(WriteRefusal::NotFound));
    }
    assert!(scene.all_due(owner.poller).await.iter().all(|row| row.position < minute(50)), "the refused left no row");
}

pub(super) async fn positions_never_go_back(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let (poller, other) = (poller(TENANT, 0), poller(TENANT, 1));
    assert_eq!(scene.positions(poller).await, Positions { closed: Timestamp::MIN, done: Timestamp::MIN });
    let owner = scene.owner(poller).await;
    let moves = [((5, 2), (5, 2)), ((3, 3), (5, 3)), ((8, 1), (8, 3)), ((8, 8), (8, 8)), ((7, 7), (8, 8))];
    for ((closed, done), (expected_closed, expected_done)) in moves {
        owner.close(minute(closed), minute(done)).await;
        let expected = Positions { closed: minute(expected_closed), done: minute(expected_done) };
        assert_eq!(scene.positions(poller).await, expected);
    }
    assert_eq!(scene.positions(other).await, Positions::default(), "another poller's are its own");
    let both = scene.store.closed(vec![other, poller, other]).await;
    assert_eq!(both, Ok(vec![Timestamp::MIN, minute(8), Timestamp::MIN]), "in the order asked");
}

pub(super) async fn items_of_a_batch_take_effect_in_order(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(1));
    let owner = scene.owner(insert.schedule.poller).await;
    let schedule = insert.schedule.clone();
    let (incarnation, revision) = (schedule.incarnation, schedule.revision);
    let first = due_of(&schedule, minute(1));
    let run = |state| run_of(TENANT, first.occurrence, state);
    let retry = DueKey { position: minute(2), attempt: 2, ..first };
    let replacing = replacing(&scene, &schedule, minute(5));
    let changes = vec![
        Change::Put(insert),
        Change::Run { run: run(RunState::Retrying), then: Some(retry), ends: false },
        Change::Run { run: run(RunState::Succeeded), then: None, ends: false },
        Change::Run { run: run(RunState::Failed), then: None, ends: true },
        Change::Advance { incarnation, revision, due: due_of(&schedule, minute(3)) },
        Change::Put(replacing),
        Change::End { incarnation, revision },
        Change::Positions(Positions { closed: minute(2), done: minute(1) }),
        Change::Positions(Positions { closed: minute(4), done: minute(2) }),
        Change::Cancel(incarnation),
        Change::Cancel(incarnation),
    ];
    let batch = changes.into_iter().map(|change| owner.asks(change)).collect();
    let answers = scene.store.write(batch).await.expect("the store takes an owner's writes");
    let [
        Ok(Written::Put { before: None, .. }),
        booked,
        Ok(Written::Put { before: Some(Status::Active), schedule: second, .. }),
        rest,
    ] = [&answers[0], &answers[1], &answers[5], &answers[6]]
    else {
        panic!("{answers:?}");
    };
    assert_eq!((booked, rest), (&Ok(Written::Done), &Ok(Written::Done)));
    assert_eq!(second.revision, Revision(1));
    let done = Ok(Written::Done);
    assert_eq!(answers[2..5], [done.clone(), Err(WriteRefusal::Resolved), done.clone()]);
    assert_eq!(answers[7..], [done.clone(), done.clone(), done, Err(WriteRefusal::NotFound)]);

    let last = scene.now(&schedule).await;
    assert_eq!((last.status, last.revision, last.next), (Status::Cancelled, Revision(2), None));
    assert_eq!(scene.run(first.occurrence).await, Some(run(RunState::Succeeded)));
    assert_eq!(scene.positions(owner.poller).await, Positions { closed: minute(4), done: minute(2) });
    assert_eq!(scene.all_due(owner.poller).await, [due_of(&schedule, minute(3)), due_of(second, minute(5))]);
}

pub(super) async fn a_batch_of_ten_thousand_outcomes_is_booked(subject: &dyn Subject) {
    const ROWS: i64 = 10_000;
    let scene = Scene::open(subject).await;
    let mut insert = scene.unnamed(minute(1));
    Arc::make_mut(&mut insert.schedule).spec = spec(minute(1));
    let schedule = scene.create(insert).await;
    let owner = scene.owner(schedule.poller).await;
    let occurrence = |number| due_of(&schedule, minute(number)).occurrence;
    let state = |number| if number % 3 == 0 { RunState::Failed } else { RunState::Succeeded };
    let runs: Vec<Run> = (1..=ROWS).map(|number| run_of(TENANT, occurrence(number), state(number))).collect();
    let booking = |run: &Run| owner.asks(Change::Run { run: run.clone(), then: None, ends: false });
    let batch: Vec<OwnerWrite> = runs.iter().rev().map(booking).collect();
    let answers = scene.store.write(batch).await.expect("the store takes a large batch");
    assert!(answers.len() == runs.len() && answers.iter().all(|answer| *answer == Ok(Written::Done)));
    assert!(scene.store.runs(schedule.incarnation, None, usize::MAX).await.expect("the store is read") == runs);
    let dead = scene.dead_letters(TENANT).await;
    assert!(dead.iter().eq(runs.iter().filter(|run| run.state == RunState::Failed)));
}

//! Reads that go through many rows.

use std::sync::Arc;

use domain::{DueKey, Occurrence, PollerId, RunState, Timestamp};

use crate::Subject;
use crate::scene::{OTHER_TENANT, Scene, TENANT, due_of, insert_of, minute, poller, run_of};
use store::{Change, DueBound, DuePage, DueRead, Insert};

/// A row for each of `minutes`, in that order; the answer is in key order.
async fn rows_at(scene: &Scene, poller: PollerId, minutes: &[i64]) -> Vec<DueKey> {
    let inserts: Vec<Insert> = minutes.iter().map(|at| scene.unnamed_in(poller, minute(*at))).collect();
    let mut rows: Vec<DueKey> = inserts.iter().map(|insert| insert.due).collect();
    scene.store.insert(inserts).await.expect("the store takes inserts");
    rows.sort();
    rows
}

pub(super) async fn due_rows_come_in_key_order_between_their_bounds(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let rows = rows_at(&scene, poller, &[5, 1, 3, 3, 9, 2, 3]).await;
    let read = async |after, until| scene.due(DueRead { poller, after, until, limit: 100 }).await.keys;
    let beginning = DueBound::Instant(Timestamp::MIN);
    assert_eq!(read(beginning, Timestamp::MAX).await, rows);
    assert_eq!(read(beginning, minute(3)).await, rows[..5], "`until` is included");
    assert_eq!(read(beginning, just_before(minute(3))).await, rows[..2]);
    assert_eq!(read(DueBound::Instant(minute(1)), minute(5)).await, rows[1..6], "`after` is not");
    assert_eq!(read(DueBound::Instant(just_before(minute(1))), minute(5)).await, rows[..6]);
    assert_eq!(read(DueBound::Key(rows[2]), minute(5)).await, rows[3..6], "within its instant, too");
    assert_eq!(read(DueBound::Key(rows[4]), minute(3)).await, []);
    assert_eq!(read(DueBound::Instant(minute(3)), minute(3)).await, []);
    assert_eq!(read(DueBound::Instant(minute(5)), minute(3)).await, [], "an empty stretch has no rows");
    let between = DueKey { attempt: rows[2].attempt + 1, ..rows[2] };
    assert_eq!(read(DueBound::Key(between), minute(3)).await, rows[3..5], "a bound need not be a row");
}

pub(super) async fn a_due_page_says_where_the_next_row_is(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let rows = rows_at(&scene, poller, &[1, 2, 2, 9]).await;
    let read = async |after, until, limit| {
        let after = DueBound::Instant(after);
        scene.due(DueRead { poller, after, until, limit }).await
    };
    let page = |keys: &[DueKey], next| DuePage { keys: keys.to_vec(), next };
    let whole = read(Timestamp::MIN, minute(5), 10).await;
    assert_eq!(whole, page(&rows[..3], Some(minute(9))), "beyond `until`: how long there is nothing to do");
    let full = read(Timestamp::MIN, minute(5), 2).await;
    assert_eq!(full, page(&rows[..2], Some(minute(2))), "before `until`: the page was full");
    assert_eq!(read(Timestamp::MIN, minute(5), 3).await, whole, "just full");
    assert_eq!(read(minute(2), minute(5), 10).await, page(&[], Some(minute(9))));
    assert_eq!(read(minute(2), minute(9), 10).await, page(&rows[3..], None));
    assert_eq!(read(minute(9), Timestamp::MAX, 10).await, page(&[], None));
    assert_eq!(read(Timestamp::MIN, minute(5), 0).await, page(&[], Some(minute(1))));
}

pub(super) async fn an_instant_with_many_rows_is_read_in_pages(subject: &dyn Subject) {
    const PAGE: usize = 64;
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let minutes: Vec<i64> = [1].into_iter().chain([2; 1_000]).chain([3]).collect();
    let rows = rows_at(&scene, poller, &minutes).await;
    let mut after = DueBound::Instant(Timestamp::MIN);
    let mut read = Vec::new();
    loop {
        let page = scene.due(DueRead { poller, after, until: minute(2), limit: PAGE }).await;
        let more = page.next.is_some_and(|next| next <= minute(2));
        assert!(!more || page.keys.len() == PAGE, "a page that has more after it is full");
        read.extend(page.keys);
        let Some(last) = read.last().filter(|_| more) else { break };
        after = DueBound::Key(*last);
    }
    assert!(read == rows[..1_001], "each row once, in order: {} rows", read.len());
}

pub(super) async fn due_reads_of_several_pollers_are_answered_in_order(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let pollers = [
        poller(TENANT, 3),
        poller(TENANT, 1),
        poller(OTHER_TENANT, 3),
        PollerId { generation: 1, ..poller(TENANT, 3) },
    ];
    let mut expected = Vec::new();
    for (at, poller) in (1..).zip(pollers) {
        expected.push(rows_at(&scene, poller, &[at, at + 1]).await);
    }
    let idle = poller(TENANT, 2);
    let asked = pollers.into_iter().chain([idle, pollers[0]]);
    let read = |poller| DueRead { poller, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 10 };
    let pages = scene.store.due(asked.map(read).collect()).await.expect("the store is read");
    let keys: Vec<_> = pages.into_iter().map(|page| page.keys).collect();
    expected.extend([Vec::new(), expected[0].clone()]);
    assert_eq!(keys, expected);
}

pub(super) async fn rows_after_done_stay(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let (poller, other) = (poller(TENANT, 0), poller(TENANT, 1));
    let rows = rows_at(&scene, poller, &[1, 2, 3, 4]).await;
    let others = rows_at(&scene, other, &[1]).await;
    let owner = scene.owner(poller).await;
    owner.close(minute(3), minute(2)).await;
    assert_eq!(scene.all_due(poller).await, rows[2..]);
    owner.close(minute(4), just_before(minute(3))).await;
    assert_eq!(scene.all_due(poller).await, rows[2..], "closed is not done");
    owner.close(minute(9), minute(9)).await;
    assert_eq!(scene.all_due(poller).await, []);
    assert_eq!(scene.all_due(other).await, others);
}

pub(super) async fn runs_are_read_in_pages(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut schedules = Vec::new();
    for _ in 0..3 {
        schedules.push(scene.create(scene.unnamed_in(poller(TENANT, 0), minute(1))).await);
    }
    schedules.sort_by_key(|schedule| schedule.incarnation);
    let [before, schedule, after] = &schedules[..] else { unreachable!("three were made") };
    let owner = scene.owner(schedule.poller).await;
    let mut runs = Vec::new();
    for number in [3, 1, 2] {
        let first = due_of(schedule, minute(number)).occurrence;
        for replay in [1, 0] {
            runs.push(run_of(TENANT, Occurrence { replay, ..first }, RunState::Succeeded));
        }
    }
    for neighbour in [before, after] {
        runs.push(run_of(TENANT, due_of(neighbour, minute(1)).occurrence, RunState::Succeeded));
    }
    for run in &runs {
        owner.write(Change::Run { run: run.clone(), then: None, ends: false }).await;
    }
    runs.retain(|run| run.occurrence.incarnation == schedule.incarnation);
    runs.sort_by_key(|run| run.occurrence);

    let read = async |after: Option<Occurrence>, limit| {
        scene.store.runs(schedule.incarnation, after, limit).await.expect("the store is read")
    };
    assert_eq!(read(None, 100).await, runs);
    assert_eq!(read(None, 2).await, runs[..2]);
    assert_eq!(read(Some(runs[1].occurrence), 3).await, runs[2..5]);
    assert_eq!(read(Some(runs[5].occurrence), 3).await, []);
    assert_eq!(read(Some(due_of(before, minute(1)).occurrence), 3).await, runs[..3], "a bound may be another's");
    assert_eq!(read(Some(due_of(after, minute(1)).occurrence), 3).await, []);
    assert_eq!(scene.store.runs(scene.numbers.incarnation(), None, 10).await, Ok(Vec::new()));
}

pub(super) async fn dead_letters_are_read_in_pages(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut dead = Vec::new();
    for at in 0..10 {
        let tenant = if at % 5 == 2 { OTHER_TENANT } else { TENANT };
        let mut insert = scene.unnamed(minute(at));
        if tenant == OTHER_TENANT {
            insert = insert_of(tenant, insert.schedule.incarnation, insert.schedule.id.clone(), minute(at));
        }
        let schedule = scene.create(insert).await;
        let run = scene.owner(schedule.poller).await.finish(&schedule, RunState::Failed).await;
        if tenant == TENANT {
            dead.push(run);
        }
    }
    dead.sort_by_key(|run| run.occurrence);
    let read = async |after: Option<Occurrence>, limit| {
        scene.store.dead_letters(TENANT, after, limit).await.expect("the store is read")
    };
    assert_eq!(read(None, 100).await, dead);
    assert_eq!(read(None, 3).await, dead[..3]);
    assert_eq!(read(Some(dead[2].occurrence), 4).await, dead[3..7]);
    assert_eq!(read(Some(dead[7].occurrence), 4).await, []);
}

pub(super) async fn only_a_failed_run_is_a_dead_letter(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.unnamed(minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    let missed = RunState::Missed { last: minute(3), count: 2 };
    let states = [RunState::Succeeded, RunState::Cancelled, missed, RunState::Failed];
    let runs = (1..).zip(states).map(|(at, state)| run_of(TENANT, due_of(&schedule, minute(at)).occurrence, state));
    let runs: Vec<_> = runs.collect();
    for run in &runs {
        owner.write(Change::Run { run: run.clone(), then: None, ends: false }).await;
    }
    let retried = due_of(&schedule, minute(9));
    let run = run_of(TENANT, retried.occurrence, RunState::Retrying);
    let retry = DueKey { position: minute(10), attempt: 2, ..retried };
    owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false }).await;
    assert_eq!(scene.dead_letters(TENANT).await, runs[3..]);

    let failed = domain::occurrence::Run { state: RunState::Failed, ..run };
    owner.write(Change::Run { run: failed.clone(), then: None, ends: false }).await;
    assert_eq!(scene.dead_letters(TENANT).await, [runs[3].clone(), failed], "once its attempts are used up");
    assert_eq!(scene.now(&schedule).await, Arc::clone(&schedule));
}

fn just_before(instant: Timestamp) -> Timestamp {
    instant - std::time::Duration::from_millis(1)
}

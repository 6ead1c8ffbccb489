//! Test cases of reads that return many rows.

use std::sync::Arc;

use domain::{DueKey, Occurrence, PollerId, RunState, Timestamp};

use crate::Subject;
use crate::fixture::{Fixture, OTHER_TENANT, TENANT, due_of, insert_of, minute, poller, run_of};
use store::{Change, DueBound, DuePage, DueRead, Insert};

/// Inserts a schedule for each of `minutes`, in that order. Returns their due rows in key order.
async fn rows_at(fixture: &Fixture, poller: PollerId, minutes: &[i64]) -> Vec<DueKey> {
    let inserts: Vec<Insert> = minutes.iter().map(|at| fixture.unnamed_in(poller, minute(*at))).collect();
    let mut rows: Vec<DueKey> = inserts.iter().map(|insert| insert.due).collect();
    fixture.store.insert(inserts).await.expect("the store accepts inserts");
    rows.sort();
    rows
}

pub(super) async fn due_rows_are_in_key_order_within_bounds(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let rows = rows_at(&fixture, poller, &[5, 1, 3, 3, 9, 2, 3]).await;
    let read = async |after, until| fixture.due(DueRead { poller, after, until, limit: 100 }).await.keys;
    let beginning = DueBound::Instant(Timestamp::MIN);
    assert_eq!(read(beginning, Timestamp::MAX).await, rows);
    assert_eq!(read(beginning, minute(3)).await, rows[..5], "`until` is inclusive");
    assert_eq!(read(beginning, just_before(minute(3))).await, rows[..2]);
    assert_eq!(read(DueBound::Instant(minute(1)), minute(5)).await, rows[1..6], "`after` is exclusive");
    assert_eq!(read(DueBound::Instant(just_before(minute(1))), minute(5)).await, rows[..6]);
    assert_eq!(
        read(DueBound::Key(rows[2]), minute(5)).await,
        rows[3..6],
        "a read after a key excludes this key, but includes later keys of the same instant"
    );
    assert_eq!(read(DueBound::Key(rows[4]), minute(3)).await, []);
    assert_eq!(read(DueBound::Instant(minute(3)), minute(3)).await, []);
    assert_eq!(read(DueBound::Instant(minute(5)), minute(3)).await, [], "a read of an empty range returns no rows");
    let between = DueKey { attempt: rows[2].attempt + 1, ..rows[2] };
    assert_eq!(
        read(DueBound::Key(between), minute(3)).await,
        rows[3..5],
        "a read can start after a key that no row has"
    );
}

pub(super) async fn due_page_returns_position_of_the_next_row(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let rows = rows_at(&fixture, poller, &[1, 2, 2, 9]).await;
    let read = async |after, until, limit| {
        let after = DueBound::Instant(after);
        fixture.due(DueRead { poller, after, until, limit }).await
    };
    let page = |keys: &[DueKey], next| DuePage { keys: keys.to_vec(), next };
    let whole = read(Timestamp::MIN, minute(5), 10).await;
    assert_eq!(whole, page(&rows[..3], Some(minute(9))), "`next` is after `until`");
    let full = read(Timestamp::MIN, minute(5), 2).await;
    assert_eq!(full, page(&rows[..2], Some(minute(2))), "`next` is before `until`, because the limit ends the page");
    assert_eq!(
        read(Timestamp::MIN, minute(5), 3).await,
        whole,
        "a page is complete if its limit equals the number of rows in the range"
    );
    assert_eq!(read(minute(2), minute(5), 10).await, page(&[], Some(minute(9))));
    assert_eq!(read(minute(2), minute(9), 10).await, page(&rows[3..], None));
    assert_eq!(read(minute(9), Timestamp::MAX, 10).await, page(&[], None));
    assert_eq!(read(Timestamp::MIN, minute(5), 0).await, page(&[], Some(minute(1))));
}

pub(super) async fn instant_with_many_rows_is_read_in_pages(subject: &dyn Subject) {
    const PAGE: usize = 64;
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let minutes: Vec<i64> = [1].into_iter().chain([2; 1_000]).chain([3]).collect();
    let rows = rows_at(&fixture, poller, &minutes).await;
    let mut after = DueBound::Instant(Timestamp::MIN);
    let mut read = Vec::new();
    loop {
        let page = fixture.due(DueRead { poller, after, until: minute(2), limit: PAGE }).await;
        let more = page.next.is_some_and(|next| next <= minute(2));
        assert!(!more || page.keys.len() == PAGE, "a page contains `limit` rows if more rows of the range follow");
        read.extend(page.keys);
        let Some(last) = read.last().filter(|_| more) else { break };
        after = DueBound::Key(*last);
    }
    assert!(read == rows[..1_001], "the pages must contain each row once, in order: they contain {} rows", read.len());
}

pub(super) async fn due_pages_are_in_the_order_of_the_reads(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let pollers = [
        poller(TENANT, 3),
        poller(TENANT, 1),
        poller(OTHER_TENANT, 3),
        PollerId { generation: 1, ..poller(TENANT, 3) },
    ];
    let mut expected = Vec::new();
    for (at, poller) in (1..).zip(pollers) {
        expected.push(rows_at(&fixture, poller, &[at, at + 1]).await);
    }
    let idle = poller(TENANT, 2);
    let requested = pollers.into_iter().chain([idle, pollers[0]]);
    let read = |poller| DueRead { poller, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 10 };
    let pages = fixture.store.due(requested.map(read).collect()).await.expect("the store accepts reads");
    let keys: Vec<_> = pages.into_iter().map(|page| page.keys).collect();
    expected.extend([Vec::new(), expected[0].clone()]);
    assert_eq!(keys, expected);
}

pub(super) async fn rows_after_done_stay(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (poller, other) = (poller(TENANT, 0), poller(TENANT, 1));
    let rows = rows_at(&fixture, poller, &[1, 2, 3, 4]).await;
    let others = rows_at(&fixture, other, &[1]).await;
    let owner = fixture.owner(poller).await;
    owner.close(minute(3), minute(2)).await;
    assert_eq!(fixture.all_due(poller).await, rows[2..]);
    owner.close(minute(4), just_before(minute(3))).await;
    assert_eq!(fixture.all_due(poller).await, rows[2..], "an increase of `closed` deletes no due rows");
    owner.close(minute(9), minute(9)).await;
    assert_eq!(fixture.all_due(poller).await, []);
    assert_eq!(fixture.all_due(other).await, others);
}

pub(super) async fn runs_are_read_in_pages(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut schedules = Vec::new();
    for _ in 0..3 {
        schedules.push(fixture.create(fixture.unnamed_in(poller(TENANT, 0), minute(1))).await);
    }
    schedules.sort_by_key(|schedule| schedule.incarnation);
    let [before, schedule, after] = &schedules[..] else { unreachable!("the case created three schedules") };
    let owner = fixture.owner(schedule.poller).await;
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
        owner.write(Change::Run { run: run.clone(), then: None, ends: false, origin: None }).await;
    }
    runs.retain(|run| run.occurrence.incarnation == schedule.incarnation);
    runs.sort_by_key(|run| run.occurrence);

    let read = async |after: Option<Occurrence>, limit| {
        fixture.store.runs(schedule.incarnation, after, limit).await.expect("the store accepts reads")
    };
    assert_eq!(read(None, 100).await, runs);
    assert_eq!(read(None, 2).await, runs[..2]);
    assert_eq!(read(Some(runs[1].occurrence), 3).await, runs[2..5]);
    assert_eq!(read(Some(runs[5].occurrence), 3).await, []);
    assert_eq!(
        read(Some(due_of(before, minute(1)).occurrence), 3).await,
        runs[..3],
        "a read of runs may start after an occurrence of another schedule"
    );
    assert_eq!(read(Some(due_of(after, minute(1)).occurrence), 3).await, []);
    assert_eq!(fixture.store.runs(fixture.numbers.incarnation(), None, 10).await, Ok(Vec::new()));
}

pub(super) async fn dead_letters_are_read_in_pages(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut dead = Vec::new();
    for at in 0..10 {
        let tenant = if at % 5 == 2 { OTHER_TENANT } else { TENANT };
        let mut insert = fixture.unnamed(minute(at));
        if tenant == OTHER_TENANT {
            insert = insert_of(tenant, insert.schedule.incarnation, insert.schedule.id.clone(), minute(at));
        }
        let schedule = fixture.create(insert).await;
        let run = fixture.owner(schedule.poller).await.finish(&schedule, RunState::Failed).await;
        if tenant == TENANT {
            dead.push(run);
        }
    }
    dead.sort_by_key(|run| run.occurrence);
    let read = async |after: Option<Occurrence>, limit| {
        fixture.store.dead_letters(TENANT, after, limit).await.expect("the store accepts reads")
    };
    assert_eq!(read(None, 100).await, dead);
    assert_eq!(read(None, 3).await, dead[..3]);
    assert_eq!(read(Some(dead[2].occurrence), 4).await, dead[3..7]);
    assert_eq!(read(Some(dead[7].occurrence), 4).await, []);
}

pub(super) async fn only_a_failed_run_is_a_dead_letter(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let missed = RunState::Missed { last: minute(3), count: 2, attempt_possible: true };
    let states = [RunState::Succeeded, RunState::Cancelled, missed, RunState::Failed];
    let runs = (1..).zip(states).map(|(at, state)| run_of(TENANT, due_of(&schedule, minute(at)).occurrence, state));
    let runs: Vec<_> = runs.collect();
    for run in &runs {
        owner.write(Change::Run { run: run.clone(), then: None, ends: false, origin: None }).await;
    }
    let retried = due_of(&schedule, minute(9));
    let run = run_of(TENANT, retried.occurrence, RunState::Retrying);
    let retry = DueKey { position: minute(10), attempt: 2, ..retried };
    owner.write(Change::Run { run: run.clone(), then: Some(retry), ends: false, origin: None }).await;
    assert_eq!(fixture.dead_letters(TENANT).await, runs[3..]);

    let failed = domain::occurrence::Run { state: RunState::Failed, ..run };
    owner.write(Change::Run { run: failed.clone(), then: None, ends: false, origin: None }).await;
    assert_eq!(
        fixture.dead_letters(TENANT).await,
        [runs[3].clone(), failed],
        "a retried run becomes a dead letter when its state changes to failed"
    );
    assert_eq!(fixture.now(&schedule).await, Arc::clone(&schedule));
}

fn just_before(instant: Timestamp) -> Timestamp {
    instant - std::time::Duration::from_millis(1)
}

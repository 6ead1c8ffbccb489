//! Where creators, owners and cancellers could miss each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{DueKey, RunState, ShardId, Status, Timestamp};
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use crate::Subject;
use crate::scene::{Scene, TENANT, id, insert_in, minute, only, poller, yield_times};
use store::{Arrival, Change, Cursor, DueBound, DueRead, Insert, Inserted};

pub(super) async fn a_creator_behind_closed_is_moved_or_can_see_it(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    scene.owner(poller).await.close(minute(5), minute(2)).await;
    for (due, behind) in [(3, true), (5, true), (6, false)] {
        let insert = scene.unnamed_in(poller, minute(due));
        let Inserted::Placed(placed) = scene.insert(&insert).await else { panic!("the schedule is new") };
        let passed = placed.position <= scene.positions(poller).await.closed;
        if placed.settled {
            assert!(!passed, "a settled row is after `closed`");
            let expected = if behind { just_after(minute(5)) } else { minute(due) };
            assert_eq!(placed.position, expected, "the first instant that will do");
        } else {
            assert_eq!((placed.position, passed), (minute(due), behind));
        }
        let row = DueKey { position: placed.position, ..insert.due };
        assert!(scene.all_due(poller).await.contains(&row), "the row is where the answer says");
        let arrivals = scene.arrivals(&[poller.shard()], 100).await;
        assert!(arrivals.contains(&Arrival { poller, key: row }), "and its arrival says so, too");

        let placed = scene.place(poller, insert.due).await;
        let expected = if placed.settled && behind { just_after(minute(5)) } else { minute(due) };
        assert_eq!(placed.position, expected);
    }
}

/// The heart of "no row is left behind": a creator writes its row and then looks at `closed`; the owner writes `closed`
/// and then reads the stretch.
pub(super) async fn a_creator_or_the_owner_sees_the_other(subject: &dyn Subject) {
    const ROUNDS: i64 = 100;
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let owner = scene.owner(poller).await;
    for round in 1..=ROUNDS {
        let insert = scene.unnamed_in(poller, minute(round));
        let delay = usize::try_from(round).unwrap_or(0);
        let creator = async {
            yield_times(delay % 7).await;
            let Inserted::Placed(placed) = scene.insert(&insert).await else { panic!("the schedule is new") };
            placed.position > minute(round)
                || !placed.settled
                    && only(scene.store.closed(vec![poller]).await.expect("the store is read")) >= placed.position
        };
        let closer = async {
            yield_times(delay % 11).await;
            owner.close(minute(round), minute(round - 1)).await;
            let after = DueBound::Instant(minute(round - 1));
            let stretch = scene.due(DueRead { poller, after, until: minute(round), limit: usize::MAX }).await;
            stretch.keys.contains(&insert.due)
        };
        let (creator_knows, owner_sees) = join(creator, closer).await;
        assert!(creator_knows || owner_sees, "in round {round} the row was left behind");
    }
}

pub(super) async fn a_row_written_twice_is_one_row(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.unnamed(minute(1));
    let schedule = scene.create(insert.clone()).await;
    for _ in 0..2 {
        let placed = scene.place(schedule.poller, insert.due).await;
        assert_eq!(placed.position, minute(1));
    }
    let twice = vec![(schedule.poller, insert.due); 2];
    assert_eq!(scene.store.place(twice).await.expect("the store takes rows").len(), 2);
    assert_eq!(scene.all_due(schedule.poller).await, [insert.due]);
}

pub(super) async fn a_row_placed_again_is_found_at_its_new_position(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.unnamed(minute(1));
    let schedule = scene.create(insert.clone()).await;
    scene.owner(schedule.poller).await.close(minute(3), minute(3)).await;
    let later = DueKey { position: minute(4), ..insert.due };
    assert_eq!(scene.place(schedule.poller, later).await.position, minute(4));
    assert_eq!(scene.all_due(schedule.poller).await, [later], "its nominal instant is what it was");
    let arrivals = scene.arrivals(&[schedule.poller.shard()], 100).await;
    assert!(arrivals.contains(&Arrival { poller: schedule.poller, key: later }));
}

pub(super) async fn arrivals_are_told_by_shard_and_in_pieces(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let pollers = [poller(TENANT, 0), poller(TENANT, 1)];
    let shards = pollers.map(|poller| poller.shard());
    assert_ne!(shards[0], shards[1], "the case needs two shards");
    let inserts: Vec<Insert> = (0..20).map(|at| scene.unnamed_in(pollers[at % 2], minute(1))).collect();
    scene.store.insert(inserts.clone()).await.expect("the store takes inserts");

    let of = |poller| inserts.iter().filter(move |insert| insert.schedule.poller == poller);
    let first = scene.arrivals(&shards[..1], 3).await;
    assert!(first.iter().all(|arrival| arrival.poller == pollers[0]), "the other shard was not asked for");
    assert!(of(pollers[0]).all(|insert| first.contains(&arrival_of(insert))), "each is told, over several reads");
    // What the first shard's owner has read is not taken from the second's.
    let second = scene.arrivals(&shards[1..], 1_000).await;
    assert!(of(pollers[1]).all(|insert| second.contains(&arrival_of(insert))));
    let unasked: Arc<[ShardId]> = Arc::new([ShardId(shards[0].0 ^ shards[1].0 ^ 1)]);
    let (none, _) = scene.store.arrivals(unasked, Cursor::default(), 10).await.expect("the store is read");
    assert_eq!(none, []);
}

pub(super) async fn no_arrival_is_lost_under_a_moving_cursor(subject: &dyn Subject) {
    const CREATORS: u16 = 8;
    const ROUNDS: usize = 25;
    let scene = Scene::open(subject).await;
    let shards: Arc<[ShardId]> = (0..CREATORS).map(|number| poller(TENANT, number).shard()).collect();
    let read = async |cursor| scene.store.arrivals(shards.clone(), cursor, 7).await.expect("the store is read");
    let create = async |number: u16, round: usize| {
        yield_times((round * usize::from(number + 1)) % 5).await;
        let of_poller = |_| scene.unnamed_in(poller(TENANT, number), minute(1));
        let inserts: Vec<Insert> = (0..1 + round % 3).map(of_poller).collect();
        scene.store.insert(inserts.clone()).await.expect("the store takes inserts");
        (number, round, inserts)
    };
    let (mut inserts, mut told) = (Vec::new(), Vec::new());
    let mut cursor = Cursor::default();
    let mut creating: FuturesUnordered<_> = (0..CREATORS).map(|number| create(number, 1)).collect();
    // Each read is under way with some inserts, after some, and before others.
    while !creating.is_empty() {
        let ((arrivals, next), created) = join(read(cursor), creating.next()).await;
        cursor = next;
        told.extend(arrivals);
        let (number, round, batch) = created.expect("there is one");
        inserts.extend(batch);
        if round < ROUNDS {
            creating.push(create(number, round + 1));
        }
    }
    loop {
        let (arrivals, next) = read(cursor).await;
        told.extend(arrivals);
        if next == cursor {
            break;
        }
        cursor = next;
    }
    let told: BTreeSet<DueKey> = told.into_iter().map(|arrival| arrival.key).collect();
    let lost: Vec<&Insert> = inserts.iter().filter(|insert| !told.contains(&insert.due)).collect();
    assert!(lost.is_empty(), "{} of {} arrivals were lost, the first {:?}", lost.len(), inserts.len(), lost[0].due);
}

pub(super) async fn a_mark_is_applied_or_told_to_the_owner(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let ended = scene.create(scene.named("ended", minute(1))).await;
    scene.owner(ended.poller).await.finish(&ended, RunState::Succeeded).await;
    let active = scene.create(scene.named("active", minute(1))).await;
    for schedule in [scene.now(&ended).await, active] {
        let answer = scene.mark(TENANT, &schedule.id).await;
        assert_eq!(answer.before, Some(schedule.clone()), "the answer shows what was marked");
        let (told, _) = scene.marks(schedule.poller.shard(), Cursor::default()).await;
        if answer.applied {
            assert_eq!(told, [], "what the engine did is not asked of the owner");
        } else {
            assert!(told.contains(&schedule.incarnation));
            assert_eq!(scene.now(&schedule).await, schedule, "the owner decides");
            scene.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
        }
        let cancelled = scene.now(&schedule).await;
        assert_eq!((cancelled.status, cancelled.next), (Status::Cancelled, None));
        assert_eq!(cancelled.revision.0, schedule.revision.0 + 1);
    }
}

/// A new owner reads marks that the last one obeyed already.
pub(super) async fn a_mark_told_again_spares_the_next_incarnation(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(first.poller).await;
    if !scene.mark(TENANT, &first.id).await.applied {
        owner.write(Change::Cancel(first.incarnation)).await;
    }
    let second = scene.create(scene.named("invoice-7", minute(2))).await;
    let (told, _) = scene.marks(first.poller.shard(), Cursor::default()).await;
    assert!(!told.contains(&second.incarnation));
    for incarnation in told {
        assert_eq!(owner.try_write(Change::Cancel(incarnation)).await, Err(store::WriteRefusal::NotFound));
    }
    assert_eq!(scene.now(&second).await, second);
}

pub(super) async fn a_mark_without_work_is_not_told(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    let owner = scene.owner(schedule.poller).await;
    owner.write(Change::Cancel(schedule.incarnation)).await;
    let cancelled = scene.now(&schedule).await;

    let answer = scene.mark(TENANT, &schedule.id).await;
    assert_eq!((answer.before, answer.applied), (Some(cancelled.clone()), true));
    let answer = scene.mark(TENANT, &id("invoice-8")).await;
    assert_eq!((answer.before, answer.applied), (None, true));
    assert_eq!(scene.now(&schedule).await, cancelled, "and its revision stays");
    let (told, _) = scene.marks(schedule.poller.shard(), Cursor::default()).await;
    assert_eq!(told, []);
}

pub(super) async fn marks_are_kept_until_their_cursor_is_presented(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let mut pending = Vec::new();
    for name in ["a", "b", "c"] {
        let insert = insert_in(poller, scene.numbers.incarnation(), id(name), minute(1));
        let schedule = scene.create(insert).await;
        if !scene.mark(TENANT, &schedule.id).await.applied {
            pending.push(schedule.incarnation);
        }
    }
    let (told, cursor) = scene.marks(poller.shard(), Cursor::default()).await;
    assert_eq!(told, pending);
    let (told, _) = scene.marks(poller.shard(), Cursor::default()).await;
    assert_eq!(told, pending, "another owner is told the same");
    let (told, _) = scene.marks(poller.shard(), cursor).await;
    assert_eq!(told, [], "after them there are no more");
}

fn arrival_of(insert: &Insert) -> Arrival {
    Arrival { poller: insert.schedule.poller, key: insert.due }
}

fn just_after(closed: Timestamp) -> Timestamp {
    closed + std::time::Duration::from_millis(1)
}

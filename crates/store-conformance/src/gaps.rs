//! Test cases of races between creators, owners and cancellations.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{DueKey, RunState, ShardId, Status, Timestamp};
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use crate::Subject;
use crate::fixture::{Fixture, TENANT, id, insert_in, minute, only, poller, yield_times};
use store::{Change, Cursor, DueBound, DueRead, Insert, InsertLogEntry, Inserted};

pub(super) async fn row_behind_closed_is_moved_or_reported(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    fixture.owner(poller).await.close(minute(5), minute(2)).await;
    for (due, behind) in [(3, true), (5, true), (6, false)] {
        let insert = fixture.unnamed_in(poller, minute(due));
        let Inserted::Placed(placed) = fixture.insert(&insert).await else {
            panic!("an insert of a new schedule returns `Inserted::Placed`")
        };
        let passed = placed.position <= fixture.positions(poller).await.closed;
        if placed.settled {
            assert!(!passed, "a row with a confirmed placement is after `closed`");
            let expected = if behind { just_after(minute(5)) } else { minute(due) };
            assert_eq!(
                placed.position, expected,
                "the store places the row at its instant, or at the first instant after `closed`"
            );
        } else {
            assert_eq!((placed.position, passed), (minute(due), behind));
        }
        let row = DueKey { position: placed.position, ..insert.due };
        assert!(fixture.all_due(poller).await.contains(&row), "the due row is stored at the returned position");
        let arrivals = fixture.insert_log(&[poller.shard()], 100).await;
        assert!(
            arrivals.contains(&InsertLogEntry { poller, key: row }),
            "the insert log contains an entry with the returned position"
        );

        let placed = fixture.place(poller, insert.due).await;
        let expected = if placed.settled && behind { just_after(minute(5)) } else { minute(due) };
        assert_eq!(placed.position, expected);
    }
}

/// Tests that the creator or the owner notices each due row. A creator writes its row and then reads `closed`. The
/// owner writes `closed` and then reads the rows up to `closed`. The creator must observe the owner's write, or the
/// owner must observe the creator's write.
pub(super) async fn creator_or_owner_observes_the_other(subject: &dyn Subject) {
    const ROUNDS: i64 = 100;
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let owner = fixture.owner(poller).await;
    for round in 1..=ROUNDS {
        let insert = fixture.unnamed_in(poller, minute(round));
        let delay = usize::try_from(round).unwrap_or(0);
        let creator = async {
            yield_times(delay % 7).await;
            let Inserted::Placed(placed) = fixture.insert(&insert).await else {
                panic!("an insert of a new schedule returns `Inserted::Placed`")
            };
            placed.position > minute(round)
                || !placed.settled
                    && only(fixture.store.closed(vec![poller]).await.expect("the store accepts reads")).at
                        >= placed.position
        };
        let closer = async {
            yield_times(delay % 11).await;
            owner.close(minute(round), minute(round - 1)).await;
            let after = DueBound::Instant(minute(round - 1));
            let range = fixture.due(DueRead { poller, after, until: minute(round), limit: usize::MAX }).await;
            range.keys.contains(&insert.due)
        };
        let (creator_knows, owner_sees) = join(creator, closer).await;
        assert!(creator_knows || owner_sees, "neither the creator nor the owner observed the other in round {round}");
    }
}

pub(super) async fn row_written_twice_exists_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.unnamed(minute(1));
    let schedule = fixture.create(insert.clone()).await;
    for _ in 0..2 {
        let placed = fixture.place(schedule.poller, insert.due).await;
        assert_eq!(placed.position, minute(1));
    }
    let twice = vec![(schedule.poller, insert.due); 2];
    assert_eq!(fixture.store.place(twice).await.expect("the store accepts due rows").len(), 2);
    assert_eq!(fixture.all_due(schedule.poller).await, [insert.due]);
}

pub(super) async fn row_placed_again_has_its_new_position(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.unnamed(minute(1));
    let schedule = fixture.create(insert.clone()).await;
    fixture.owner(schedule.poller).await.close(minute(3), minute(3)).await;
    let later = DueKey { position: minute(4), ..insert.due };
    assert_eq!(fixture.place(schedule.poller, later).await.position, minute(4));
    assert_eq!(
        fixture.all_due(schedule.poller).await,
        [later],
        "the row exists only at its new position and keeps its nominal instant"
    );
    let arrivals = fixture.insert_log(&[schedule.poller.shard()], 100).await;
    assert!(arrivals.contains(&InsertLogEntry { poller: schedule.poller, key: later }));
}

pub(super) async fn insert_log_is_read_by_shard_in_pages(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let pollers = [poller(TENANT, 0), poller(TENANT, 1)];
    let shards = pollers.map(|poller| poller.shard());
    assert_ne!(shards[0], shards[1], "the two pollers belong to different shards");
    let inserts: Vec<Insert> = (0..20).map(|at| fixture.unnamed_in(pollers[at % 2], minute(1))).collect();
    fixture.store.insert(inserts.clone()).await.expect("the store accepts inserts");

    let of = |poller| inserts.iter().filter(move |insert| insert.schedule.poller == poller);
    let first = fixture.insert_log(&shards[..1], 3).await;
    assert!(
        first.iter().all(|arrival| arrival.poller == pollers[0]),
        "all returned entries belong to the requested shard"
    );
    assert!(
        of(pollers[0]).all(|insert| first.contains(&arrival_of(insert))),
        "the pages together contain every insert log entry of the shard"
    );
    // Reads of the first shard's insert log do not affect the second shard's log.
    let second = fixture.insert_log(&shards[1..], 1_000).await;
    assert!(of(pollers[1]).all(|insert| second.contains(&arrival_of(insert))));
    let unrelated: Arc<[ShardId]> = Arc::new([ShardId(shards[0].0 ^ shards[1].0 ^ 1)]);
    let (none, _) = fixture.store.insert_log(unrelated, Cursor::default(), 10).await.expect("the store accepts reads");
    assert_eq!(none, []);
}

pub(super) async fn moving_cursor_loses_no_insert_log_entry(subject: &dyn Subject) {
    const CREATORS: u16 = 8;
    const ROUNDS: usize = 25;
    let fixture = Fixture::open(subject).await;
    let shards: Arc<[ShardId]> = (0..CREATORS).map(|number| poller(TENANT, number).shard()).collect();
    let read =
        async |cursor| fixture.store.insert_log(shards.clone(), cursor, 7).await.expect("the store accepts reads");
    let create = async |number: u16, round: usize| {
        yield_times((round * usize::from(number + 1)) % 5).await;
        let of_poller = |_| fixture.unnamed_in(poller(TENANT, number), minute(1));
        let inserts: Vec<Insert> = (0..1 + round % 3).map(of_poller).collect();
        fixture.store.insert(inserts.clone()).await.expect("the store accepts inserts");
        (number, round, inserts)
    };
    let (mut inserts, mut returned) = (Vec::new(), Vec::new());
    let mut cursor = Cursor::default();
    let mut creating: FuturesUnordered<_> = (0..CREATORS).map(|number| create(number, 1)).collect();
    // Each read runs concurrently with some of the inserts. Other inserts run before or after the read.
    while !creating.is_empty() {
        let ((arrivals, next), created) = join(read(cursor), creating.next()).await;
        cursor = next;
        returned.extend(arrivals);
        let (number, round, batch) = created.expect("the set of running inserts is not empty");
        inserts.extend(batch);
        if round < ROUNDS {
            creating.push(create(number, round + 1));
        }
    }
    loop {
        let (arrivals, next) = read(cursor).await;
        returned.extend(arrivals);
        if next == cursor {
            break;
        }
        cursor = next;
    }
    let returned: BTreeSet<DueKey> = returned.into_iter().map(|arrival| arrival.key).collect();
    let lost: Vec<&Insert> = inserts.iter().filter(|insert| !returned.contains(&insert.due)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} insert log entries were not returned by any read; the first is {:?}",
        lost.len(),
        inserts.len(),
        lost[0].due
    );
}

pub(super) async fn cancellation_record_is_applied_or_returned(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let ended = fixture.create(fixture.named("ended", minute(1))).await;
    fixture.owner(ended.poller).await.finish(&ended, RunState::Succeeded).await;
    let active = fixture.create(fixture.named("active", minute(1))).await;
    for schedule in [fixture.now(&ended).await, active] {
        let response = fixture.append_cancellations(TENANT, &schedule.id).await;
        assert_eq!(
            response.before,
            Some(schedule.clone()),
            "the result contains the state of the schedule before the cancellation"
        );
        let (returned, _) = fixture.cancellations(schedule.poller.shard(), Cursor::default()).await;
        if response.applied {
            assert_eq!(returned, [], "the store does not return a cancellation record that it has applied");
        } else {
            assert!(returned.contains(&schedule.incarnation));
            assert_eq!(
                fixture.now(&schedule).await,
                schedule,
                "a cancellation record that the store has not applied leaves the schedule unchanged"
            );
            fixture.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
        }
        let cancelled = fixture.now(&schedule).await;
        assert_eq!((cancelled.status, cancelled.next), (Status::Cancelled, None));
        assert_eq!(cancelled.revision.0, schedule.revision.0 + 1);
    }
}

/// A new owner may read cancellation records that the previous owner has already processed.
pub(super) async fn repeated_cancellation_spares_next_incarnation(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    if !fixture.append_cancellations(TENANT, &first.id).await.applied {
        owner.write(Change::Cancel(first.incarnation)).await;
    }
    let second = fixture.create(fixture.named("invoice-7", minute(2))).await;
    let (returned, _) = fixture.cancellations(first.poller.shard(), Cursor::default()).await;
    assert!(!returned.contains(&second.incarnation));
    for incarnation in returned {
        assert_eq!(owner.try_write(Change::Cancel(incarnation)).await, Err(store::WriteRejection::NotFound));
    }
    assert_eq!(fixture.now(&second).await, second);
}

pub(super) async fn cancellation_record_without_effect_is_omitted(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    owner.write(Change::Cancel(schedule.incarnation)).await;
    let cancelled = fixture.now(&schedule).await;

    let response = fixture.append_cancellations(TENANT, &schedule.id).await;
    assert_eq!((response.before, response.applied), (Some(cancelled.clone()), true));
    let response = fixture.append_cancellations(TENANT, &id("invoice-8")).await;
    assert_eq!((response.before, response.applied), (None, true));
    assert_eq!(fixture.now(&schedule).await, cancelled, "the revision of a cancelled schedule stays unchanged");
    let (returned, _) = fixture.cancellations(schedule.poller.shard(), Cursor::default()).await;
    assert_eq!(returned, []);
}

pub(super) async fn cancellation_records_stay_until_cursor_is_presented(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let mut pending = Vec::new();
    for name in ["a", "b", "c"] {
        let insert = insert_in(poller, fixture.numbers.incarnation(), id(name), minute(1));
        let schedule = fixture.create(insert).await;
        if !fixture.append_cancellations(TENANT, &schedule.id).await.applied {
            pending.push(schedule.incarnation);
        }
    }
    let (returned, cursor) = fixture.cancellations(poller.shard(), Cursor::default()).await;
    assert_eq!(returned, pending);
    let (returned, _) = fixture.cancellations(poller.shard(), Cursor::default()).await;
    assert_eq!(returned, pending, "a second read from the beginning returns the same cancellation records");
    let (returned, _) = fixture.cancellations(poller.shard(), cursor).await;
    assert_eq!(returned, [], "a read from the returned cursor returns no cancellation records");
}

fn arrival_of(insert: &Insert) -> InsertLogEntry {
    InsertLogEntry { poller: insert.schedule.poller, key: insert.due }
}

fn just_after(closed: Timestamp) -> Timestamp {
    closed + std::time::Duration::from_millis(1)
}

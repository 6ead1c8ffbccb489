//! Tests of the partitions of due rows. The store creates a partition on demand, and drops it when no poller needs its
//! rows.

use std::time::Duration;

use domain::Timestamp;
use runtime::TaskSet;
use store::{Change, DueBound, DueRead, Positions, Store};
use test_servers::postgres::shared;

use crate::support::{Home, OtherSession, POLLER, database, due_after, name_of, on_real, one_shot, owned};

const DAY: Duration = Duration::from_secs(86_400);

fn partitions_of(url: &str) -> Vec<String> {
    let list = "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('reveille.due_near'::regclass, 'reveille.due_far'::regclass) order by 1";
    shared().sql(name_of(url), list).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn store_drops_a_partition_after_all_its_due_rows_are_done() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        assert_eq!(partitions_of(&url), [] as [&str; 0]);
        let now = runtime.now();
        let days = [1, 2, 300, 3_650];
        let inserts: Vec<_> = days.iter().map(|days| one_shot(&runtime, now + DAY * *days)).collect();
        store.insert(inserts.clone()).await.unwrap();
        let created = partitions_of(&url);
        assert_eq!(created.iter().filter(|name| name.starts_with("due_near_")).count(), 2, "{created:?}");
        assert_eq!(created.iter().filter(|name| name.starts_with("due_far_")).count(), 2, "{created:?}");
        assert_eq!(due_after(store, Timestamp::MIN).await, inserts.iter().map(|insert| insert.due).collect::<Vec<_>>());

        // At `later`, the day of the first row has passed. The store still keeps the row, because no owner has
        // raised the poller's `done` yet.
        let later = now + DAY * 5;
        assert_eq!(store.maintain(later, Timestamp::MIN).await, Ok(0));
        assert_eq!(due_after(store, Timestamp::MIN).await.len(), 4);

        let term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let done = async |done: Timestamp| {
            let change = Change::Positions(Positions { closed: done, done });
            store.write(vec![owned(term, change)]).await.unwrap().remove(0).unwrap();
        };
        done(inserts[1].due.position - Duration::from_millis(1)).await;
        assert_eq!(
            store.maintain(later, Timestamp::MIN).await,
            Ok(1),
            "the first day is dropped; the second has a row that is not done"
        );
        assert_eq!(due_after(store, Timestamp::MIN).await.len(), 3);
        done(inserts[1].due.position).await;
        assert_eq!(store.maintain(later, Timestamp::MIN).await, Ok(1));
        assert_eq!(due_after(store, Timestamp::MIN).await.len(), 2);

        // If all rows of a partition are at or before `done`, the store drops the partition, even if it covers several
        // weeks.
        done(inserts[2].due.position).await;
        let empty = store.maintain(now + DAY * 290, Timestamp::MIN).await.unwrap();
        assert!(empty >= 8, "only {empty} empty partitions of past days were dropped");
        assert_eq!(store.maintain(now + DAY * 500, Timestamp::MIN).await.map(|dropped| dropped > 0), Ok(true));
        assert_eq!(due_after(store, Timestamp::MIN).await, [inserts[3].due]);
        home.close().await;
    });
}

#[test]
fn member_recreates_partition_that_another_member_dropped() {
    let url = database();
    on_real(async |runtime| {
        let (one, other) = (Home::open(&runtime, &url).await, Home::open(&runtime, &url).await);
        let day = runtime.now() + DAY;
        let first = one_shot(&runtime, day);
        one.store.insert(vec![first.clone()]).await.unwrap();
        let term = one.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let done = Positions { closed: day, done: day };
        one.store.write(vec![owned(term, Change::Positions(done))]).await.unwrap().remove(0).unwrap();
        assert_eq!(other.store.maintain(day + DAY * 3, Timestamp::MIN).await, Ok(1));

        let second = one_shot(&runtime, day + Duration::from_millis(1));
        let by_owner = one_shot(&runtime, day + Duration::from_millis(2));
        one.store.insert(vec![second.clone()]).await.unwrap();
        assert_eq!(other.store.maintain(day + DAY * 3, Timestamp::MIN).await, Ok(0));
        let put = one.store.write(vec![owned(term, Change::Put(by_owner.clone()))]).await.unwrap();
        assert!(put[0].is_ok());
        assert_eq!(due_after(&*other.store, day).await, [second.due, by_owner.due]);
        one.close().await;
        other.close().await;
    });
}

/// A member can write a due row long before its position, and place the row again shortly before its position. Such a
/// row is in a partition that covers several weeks and in the partition of its day.
#[test]
fn read_returns_a_due_row_only_once_if_two_partitions_contain_it() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let at = runtime.now() + DAY * 2;
        let inserts: Vec<_> = (0..10).map(|number| one_shot(&runtime, at + Duration::from_millis(number))).collect();
        store.insert(inserts.clone()).await.unwrap();
        let far = runtime.now() + DAY * 100;
        store.insert(vec![one_shot(&runtime, far)]).await.unwrap();
        let copies = OtherSession::new(&runtime, &tasks, &url);
        let start = at.as_millis() - 1_000;
        copies
            .execute(&format!(
                "create table reveille.due_far_test partition of reveille.due_far for values from ({start}) to ({});
                 insert into reveille.due_far select * from reveille.due_near where position <> {}",
                start + 10_000,
                inserts[4].due.position.as_millis()
            ))
            .await;
        let keys: Vec<_> = inserts.iter().map(|insert| insert.due).collect();
        let read = |limit, until| DueRead { poller: POLLER, after: DueBound::Instant(Timestamp::MIN), until, limit };
        for limit in 0..12 {
            let page = store.due(vec![read(limit, at + DAY)]).await.unwrap().remove(0);
            assert_eq!(page.keys, keys[..limit.min(10)]);
            assert_eq!(page.next, Some(keys.get(limit).map_or(far, |key| key.position)));
        }
        let page = store.due(vec![read(100, keys[4].position)]).await.unwrap().remove(0);
        assert_eq!((page.keys, page.next), (keys[..5].to_vec(), Some(keys[5].position)));
        home.close().await;
    });
}

#[test]
fn dropping_partitions_loses_no_concurrently_written_row() {
    let url = database();
    on_real(async |runtime| {
        let (one, other) = (Home::open(&runtime, &url).await, Home::open(&runtime, &url).await);
        let day = runtime.now() + DAY;
        let mut written = Vec::new();
        let mut dropped = 0;
        for round in 0..40_u64 {
            let term = one.store.take(vec![POLLER.shard()]).await.unwrap()[0];
            let done = day + Duration::from_millis(round);
            let close = owned(term, Change::Positions(Positions { closed: done, done }));
            one.store.write(vec![close]).await.unwrap().remove(0).unwrap();
            let insert = one_shot(&runtime, done + Duration::from_millis(1));
            if round % 4 == 0 {
                // No write is under way, so this call drops a partition. The next insert must create the partition
                // again.
                dropped += other.store.maintain(day + DAY * 3, Timestamp::MIN).await.unwrap();
            }
            let inserting = async {
                runtime.sleep(Duration::from_micros(round * 173 % 4_000)).await;
                one.store.insert(vec![insert.clone()]).await.unwrap()
            };
            let maintaining = async { other.store.maintain(day + DAY * 3, Timestamp::MIN).await.unwrap() };
            let (_, count) = futures_util::future::join(inserting, maintaining).await;
            dropped += count;
            assert_eq!(due_after(&*other.store, done).await, [insert.due], "in round {round}");
            written.push(insert);
        }
        assert!(dropped >= 9, "only {dropped} partitions were dropped: the test proves nothing");
        let known = written.iter().map(|insert| insert.due.occurrence.incarnation).collect();
        assert!(one.store.load(known).await.unwrap().iter().all(Option::is_some));
        one.close().await;
        other.close().await;
    });
}

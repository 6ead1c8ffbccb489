//! Arrivals beside transactions that take their time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, ShardId};
use runtime::TaskSet;
use store::{Cursor, Insert, Store};

use crate::support::{Home, POLLER, Somebody, database, on_real, one_shot};

async fn told(store: &dyn Store, cursor: &mut Cursor, limit: usize) -> Vec<DueKey> {
    let shards: Arc<[ShardId]> = Arc::new([POLLER.shard()]);
    let (arrivals, next) = store.arrivals(shards, *cursor, limit).await.unwrap();
    *cursor = next;
    arrivals.into_iter().map(|arrival| arrival.key).collect()
}

/// As a creator writes it.
fn written_by_hand(insert: &Insert) -> String {
    let key = insert.due;
    format!(
        "insert into reveille.due_near values ({}, {}, '{:032x}', {}, 0, {}, {}, pg_current_xact_id())",
        7_i64 << 32 | 3,
        key.position.as_millis(),
        key.occurrence.incarnation.0,
        key.occurrence.nominal.as_millis(),
        1_i64 << 32 | i64::from(key.target.0),
        POLLER.shard().0
    )
}

#[test]
fn a_transaction_held_open_elsewhere_neither_hides_nor_holds_up_arrivals() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let soon = || one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        let mut cursor = Cursor::default();
        let before = soon();
        store.insert(vec![before.clone()]).await.unwrap();
        assert_eq!(told(store, &mut cursor, 10).await, [before.due]);

        // One that has written nothing that matters, and a creator that is slow to commit.
        let bystander = Somebody::new(&runtime, &tasks, &url);
        bystander.says("begin; create table unrelated ()").await;
        let (slow, slowest) = (soon(), soon());
        let (creator, slower) = (Somebody::new(&runtime, &tasks, &url), Somebody::new(&runtime, &tasks, &url));
        creator.says(&format!("begin; {}", written_by_hand(&slow))).await;
        slower.says(&format!("begin; {}", written_by_hand(&slowest))).await;

        for _ in 0..5 {
            let meanwhile = [soon(), soon(), soon()];
            let rows: BTreeSet<DueKey> = meanwhile.iter().map(|insert| insert.due).collect();
            for insert in meanwhile {
                store.insert(vec![insert]).await.unwrap();
            }
            let mut heard = BTreeSet::new();
            while heard.len() < rows.len() {
                heard.extend(told(store, &mut cursor, 2).await);
            }
            assert_eq!(heard, rows, "nothing waits for the others");
        }
        assert_eq!(told(store, &mut cursor, 2).await, []);
        creator.says("commit").await;
        assert_eq!(told(store, &mut cursor, 10).await, [slow.due], "what commits late is told then");
        assert_eq!(told(store, &mut cursor, 10).await, []);
        slower.says("rollback").await;
        assert_eq!(told(store, &mut cursor, 10).await, [], "and what never does is not");
        let after = soon();
        store.insert(vec![after.clone()]).await.unwrap();
        assert_eq!(told(store, &mut cursor, 10).await, [after.due]);
        bystander.says("commit").await;
        home.close().await;
    });
}

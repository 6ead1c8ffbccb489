//! Tests of reads of the insert log during long transactions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, ShardId};
use runtime::TaskSet;
use store::{Cursor, Insert, Store};

use crate::support::{Home, OtherSession, POLLER, database, on_real, one_shot};

async fn read_log(store: &dyn Store, cursor: &mut Cursor, limit: usize) -> Vec<DueKey> {
    let shards: Arc<[ShardId]> = Arc::new([POLLER.shard()]);
    let (arrivals, next) = store.insert_log(shards, *cursor, limit).await.unwrap();
    *cursor = next;
    arrivals.into_iter().map(|arrival| arrival.key).collect()
}

/// Returns the SQL statement with which a creator inserts the due row of `insert`.
fn insert_statement(insert: &Insert) -> String {
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
fn insert_log_does_not_wait_for_open_transactions() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let soon = || one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        let mut cursor = Cursor::default();
        let before = soon();
        store.insert(vec![before.clone()]).await.unwrap();
        assert_eq!(read_log(store, &mut cursor, 10).await, [before.due]);

        // The session `bystander` has a long transaction that writes no due row. The sessions `creator` and `slower`
        // each write a due row, and end their transactions late.
        let bystander = OtherSession::new(&runtime, &tasks, &url);
        bystander.execute("begin; create table unrelated ()").await;
        let (slow, slowest) = (soon(), soon());
        let (creator, slower) = (OtherSession::new(&runtime, &tasks, &url), OtherSession::new(&runtime, &tasks, &url));
        creator.execute(&format!("begin; {}", insert_statement(&slow))).await;
        slower.execute(&format!("begin; {}", insert_statement(&slowest))).await;

        for _ in 0..5 {
            let inserts = [soon(), soon(), soon()];
            let rows: BTreeSet<DueKey> = inserts.iter().map(|insert| insert.due).collect();
            for insert in inserts {
                store.insert(vec![insert]).await.unwrap();
            }
            let mut received = BTreeSet::new();
            while received.len() < rows.len() {
                received.extend(read_log(store, &mut cursor, 2).await);
            }
            assert_eq!(received, rows, "entries do not wait for open transactions");
        }
        assert_eq!(read_log(store, &mut cursor, 2).await, []);
        creator.execute("commit").await;
        assert_eq!(
            read_log(store, &mut cursor, 10).await,
            [slow.due],
            "a row that commits late is returned after the commit"
        );
        assert_eq!(read_log(store, &mut cursor, 10).await, []);
        slower.execute("rollback").await;
        assert_eq!(read_log(store, &mut cursor, 10).await, [], "a row that is rolled back is never returned");
        let after = soon();
        store.insert(vec![after.clone()]).await.unwrap();
        assert_eq!(read_log(store, &mut cursor, 10).await, [after.due]);
        bystander.execute("commit").await;
        home.close().await;
    });
}

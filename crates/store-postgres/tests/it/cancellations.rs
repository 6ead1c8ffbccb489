//! Tests of cancellation records that members of earlier builds leave in a cluster during an upgrade.

use std::sync::Arc;
use std::time::Duration;

use domain::ShardId;
use store::{Cursor, Store};
use test_servers::postgres::shared;

use crate::support::{Home, POLLER, database, name_of, on_real, one_shot};

#[test]
fn store_keeps_a_cancellation_record_until_a_later_cursor_arrives() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let insert = one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        let incarnation = insert.schedule.incarnation;
        home.store.insert(vec![insert]).await.unwrap();
        let id = uuid::Uuid::from_u128(incarnation.0);
        let mark = format!("insert into reveille.mark (shard, incarnation) values ({}, '{id}')", POLLER.shard().0);
        shared().sql(name_of(&url), &mark).unwrap();

        let shards: Arc<[ShardId]> = Arc::new([POLLER.shard()]);
        let (records, _) = home.store.cancellations(shards.clone(), Cursor::default()).await.unwrap();
        assert_eq!(records, [(POLLER.shard(), incarnation)]);
        let (again, cursor) = home.store.cancellations(shards.clone(), Cursor::default()).await.unwrap();
        assert_eq!(again, records, "the records stay until their cursor is presented");
        let (rest, _) = home.store.cancellations(shards, cursor).await.unwrap();
        assert_eq!(rest, []);
        home.close().await;
    });
}

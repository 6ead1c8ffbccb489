//! Cancel marks, which members of earlier builds leave in a cluster that is being upgraded.

use std::sync::Arc;
use std::time::Duration;

use domain::ShardId;
use store::{Cursor, Store};
use test_servers::postgres::shared;

use crate::support::{Home, POLLER, database, name_of, on_real, one_shot};

#[test]
fn a_mark_of_a_member_of_an_earlier_build_is_told_until_it_is_obeyed() {
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
        let (told, _) = home.store.marks(shards.clone(), Cursor::default()).await.unwrap();
        assert_eq!(told, [(POLLER.shard(), incarnation)]);
        let (again, cursor) = home.store.marks(shards.clone(), Cursor::default()).await.unwrap();
        assert_eq!(again, told, "nobody has said that it is obeyed");
        let (rest, _) = home.store.marks(shards, cursor).await.unwrap();
        assert_eq!(rest, []);
        home.close().await;
    });
}

//! Tests of the table of handled callbacks: creation, lookup and deletion by age.

use std::time::Duration;

use reveille_receiver::{create_table, forget, is_first};
use test_servers::postgres::shared;

use crate::support::{count, on_real, pool, pool_of};

#[test]
fn concurrent_callers_can_create_the_callback_table() {
    on_real(async |_| {
        let pool = pool_of(&shared().create_database().unwrap());
        let make = async || create_table(&pool.get().await.unwrap()).await;
        let created = tokio::join!(make(), make(), make(), make());
        assert!(created.0.is_ok() && created.1.is_ok() && created.2.is_ok() && created.3.is_ok(), "{created:?}");
        make().await.unwrap();
        assert_eq!(count(&pool, "reveille_callbacks").await, 0);
    });
}

#[test]
fn callback_is_a_duplicate_only_after_its_id_is_committed() {
    on_real(async |_| {
        let pool = pool().await;
        let mut connection = pool.get().await.unwrap();
        let rolled_back = connection.transaction().await.unwrap();
        assert!(is_first(&rolled_back, "one").await.unwrap());
        rolled_back.rollback().await.unwrap();
        for is_new in [true, false] {
            let transaction = connection.transaction().await.unwrap();
            assert_eq!(is_first(&transaction, "one").await.unwrap(), is_new);
            transaction.commit().await.unwrap();
        }
    });
}

#[test]
fn receiver_deletes_only_callbacks_older_than_the_given_age() {
    on_real(async |_| {
        let pool = pool().await;
        let connection = pool.get().await.unwrap();
        let day = Duration::from_secs(24 * 60 * 60);
        for (count, age) in [(25_000, "31 days"), (3, "29 days"), (2, "0 days")] {
            let insert = format!(
                "insert into reveille_callbacks select '{age}-' || n, now() - interval '{age}' from generate_series(1, {count}) n"
            );
            connection.batch_execute(&insert).await.unwrap();
        }
        assert_eq!(forget(&connection, day * 30).await.unwrap(), 25_000);
        assert_eq!(count(&pool, "reveille_callbacks").await, 5);
        assert_eq!(forget(&connection, day * 30).await.unwrap(), 0);
        assert_eq!(forget(&connection, day).await.unwrap(), 3);
    });
}

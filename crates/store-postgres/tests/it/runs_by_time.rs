//! Tests of the index by which the store lists runs by time. The conformance suite tests the listings themselves.

use std::time::Duration;

use domain::{RunFilter, RunStateKind, ShardId, Timestamp};
use runtime::Runtime;
use store::{Insert, Order, RunList, RunRead, Store, StoreError};
use store_postgres::{Options, SCHEMA_VERSION, migrate};
use test_servers::postgres::shared;

use crate::support::{Home, POLLER, TENANT, database, name_of, on_real, one_shot, outcome, owned, undo_to};

const DAY: Duration = Duration::from_secs(86_400);

/// Inserts one schedule for each instant, and writes their outcomes.
async fn write_runs(runtime: &Runtime, store: &dyn Store, instants: impl Iterator<Item = Timestamp>) {
    let shards: Vec<ShardId> = vec![POLLER.shard()];
    let term = store.take(shards).await.unwrap()[0];
    let inserts: Vec<Insert> = instants.map(|at| one_shot(runtime, at)).collect();
    store.insert(inserts.clone()).await.unwrap();
    let outcomes = inserts.iter().map(|insert| owned(term, outcome(insert))).collect();
    assert!(store.write(outcomes).await.unwrap().iter().all(Result::is_ok));
}

async fn list(store: &dyn Store, state: Option<RunStateKind>, limit: usize) -> Result<RunList, StoreError> {
    let filter = RunFilter { state, ..RunFilter::default() };
    let (from, until) = (Timestamp::MIN, Timestamp::MAX);
    let order = Order::Newest;
    store.list_runs(RunRead { tenant: TENANT, schedules: None, from, until, filter, order, after: None, limit }).await
}

#[test]
fn migration_indexes_runs_while_members_write_runs() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        // The last of these runs is so old that it is in the default partition.
        write_runs(&runtime, &*home.store, [0, 1, 3, 40].into_iter().map(|days| now - DAY * days)).await;
        shared().sql(name_of(&url), &undo_to(11)).unwrap();
        let migration = include_str!("../../migrations/0012-run-time.sql");
        shared().sql(name_of(&url), &format!("{migration} update reveille.meta set version = 12")).unwrap();
        let rejected = list(&*home.store, None, 10).await;
        let Err(StoreError::Unindexed(text)) = rejected else { panic!("the index is incomplete: {rejected:?}") };
        assert!(text.contains("reveille store migrate"), "{text}");
        write_runs(&runtime, &*home.store, [now - DAY * 2].into_iter()).await;

        for _ in 0..2 {
            let migrated = migrate(&runtime, &url, &Options::default()).await.unwrap();
            assert_eq!((migrated.from, migrated.to), (Some(12), SCHEMA_VERSION));
            let runs = list(&*home.store, None, 10).await.unwrap().runs;
            let days: Vec<Duration> = runs.iter().map(|run| now.since(run.occurrence.nominal)).collect();
            assert_eq!(days, [0, 1, 2, 3, 40].map(|days| DAY * days));
        }
        // The partition of a later day gets its index when a member creates it.
        write_runs(&runtime, &*home.store, [now - DAY * 5].into_iter()).await;
        let valid =
            "select bool_and(indisvalid) from pg_index where indexrelid::regclass::text like 'reveille.run%time'";
        assert_eq!(shared().sql(name_of(&url), valid).unwrap().trim(), "t");
        assert_eq!(list(&*home.store, None, 10).await.unwrap().runs.len(), 6);
        home.close().await;
    });
}

#[test]
fn page_of_runs_reads_only_its_rows() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        for part in 0..3_u64 {
            let instants = (0..1_000_u64).map(|number| now - DAY * 2 + Duration::from_secs(part * 60_000 + number));
            write_runs(&runtime, &*home.store, instants).await;
        }
        home.stop().await;
        shared().sql(name_of(&url), "select pg_stat_reset()").unwrap();
        let home = Home::open(&runtime, &url).await;
        for _ in 0..10 {
            assert_eq!(list(&*home.store, None, 10).await.unwrap().runs.len(), 10);
            assert_eq!(list(&*home.store, Some(RunStateKind::Failed), 10).await.unwrap().runs.len(), 0);
        }
        home.stop().await;
    });
    // A connection reports its statistics to the PostgreSQL server when the connection ends.
    let read = "select coalesce(sum(idx_tup_read + seq_tup_read), 0) from (
        select pg_stat_get_tuples_returned(c.oid) seq_tup_read,
            (select sum(pg_stat_get_tuples_returned(i.indexrelid)) from pg_index i where i.indrelid = c.oid) idx_tup_read
        from pg_class c where c.relname like 'run\\_%' and c.relkind = 'r') t";
    let read_count = || shared().sql(name_of(&url), read).unwrap().trim().parse::<u64>().unwrap();
    let read =
        (0..100).map(|_| read_count()).find(|read| *read >= 110).expect("the connections report their statistics");
    assert!(read <= 400, "{read} rows were read for 10 pages of 10 runs");
}

//! Tests of the index by which the store lists runs by time. The conformance suite tests the listings themselves.

use std::time::Duration;

use domain::{Incarnation, Occurrence, RunFilter, RunStateKind, ShardId, Timestamp};
use runtime::Runtime;
use store::runs::EXAMINED_MAX;
use store::{Insert, Order, RunList, RunRead, Store, StoreError};
use store_postgres::{Options, SCHEMA_VERSION, index_runs, migrate};
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
        // The members of this test write the counts of version 14, too.
        let migrations =
            [include_str!("../../migrations/0012-run-time.sql"), include_str!("../../migrations/0014-run-counts.sql")];
        let set_version = "update reveille.meta set version = 12";
        shared().sql(name_of(&url), &format!("{} {set_version}", migrations.concat())).unwrap();
        let rejected = list(&*home.store, None, 10).await;
        let Err(StoreError::Unindexed(text)) = rejected else { panic!("the index is incomplete: {rejected:?}") };
        assert!(text.contains("reveille store migrate"), "{text}");
        write_runs(&runtime, &*home.store, [now - DAY * 2].into_iter()).await;
        shared().sql(name_of(&url), &format!("{}; {set_version}", undo_to(13))).unwrap();

        for (from, expected) in [(12, &["run_rest", "run_"][..]), (SCHEMA_VERSION, &[])] {
            let migrated = migrate(&runtime, &url, &Options::default()).await.unwrap();
            assert_eq!((migrated.from, migrated.to), (Some(from), SCHEMA_VERSION));
            // Members can start before the index is complete.
            let other = Home::open(&runtime, &url).await;
            assert_eq!(other.store.has_run_index().await, Ok(expected.is_empty()));
            other.stop().await;
            let mut indexed = Vec::new();
            let progress = |partition: &str, left: usize| indexed.push((partition.to_owned(), left));
            index_runs(&runtime, &url, &Options::default(), progress).await.unwrap();
            for prefix in expected {
                assert!(indexed.iter().any(|(partition, _)| partition.starts_with(prefix)), "{indexed:?}");
            }
            let left: Vec<usize> = indexed.iter().map(|(_, left)| *left).collect();
            assert_eq!(left, (1..=indexed.len()).rev().collect::<Vec<_>>());
            assert_eq!(indexed.is_empty(), expected.is_empty());
            let runs = list(&*home.store, None, 10).await.unwrap().runs;
            let days: Vec<Duration> = runs.iter().map(|run| now.since(run.occurrence.nominal)).collect();
            assert_eq!(days, [0, 1, 2, 3, 40].map(|days| DAY * days));
        }
        // The partition of a later day gets its index when a member creates it.
        write_runs(&runtime, &*home.store, [now - DAY * 5].into_iter()).await;
        let unindexed = "select count(*), count(*) filter (where not exists (
                select from pg_index x join pg_inherits p on p.inhrelid = x.indexrelid
                where x.indrelid = i.inhrelid and x.indisvalid and p.inhparent = 'reveille.run_time'::regclass))
            from pg_inherits i where i.inhparent = 'reveille.run'::regclass";
        let counts = shared().sql(name_of(&url), unindexed).unwrap();
        let (partitions, without_index) = counts.trim().split_once('|').unwrap();
        assert!(partitions.parse::<u32>().unwrap() >= 6, "{counts}");
        assert_eq!(without_index, "0", "each partition has its part of the index");
        assert_eq!(list(&*home.store, None, 10).await.unwrap().runs.len(), 6);
        home.close().await;
    });
}

/// Returns the number of rows of runs that all connections read from tables and indexes so far. Repeats the query until
/// the number is at least `at_least`, because a connection reports its statistics only when it ends.
fn rows_read(url: &str, at_least: u64) -> u64 {
    let read = "select coalesce(sum(idx_tup_read + seq_tup_read), 0) from (
        select pg_stat_get_tuples_returned(c.oid) seq_tup_read, (
            select sum(pg_stat_get_tuples_returned(i.indexrelid)) from pg_index i where i.indrelid = c.oid) idx_tup_read
        from pg_class c where c.relname like 'run\\_%' and c.relkind = 'r') t";
    let read_count = || shared().sql(name_of(url), read).unwrap().trim().parse::<u64>().unwrap();
    let counts = (0..100).map(|_| read_count());
    counts.into_iter().find(|read| *read >= at_least).expect("the connections report their statistics")
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
    let read = rows_read(&url, 110);
    assert!(read <= 400, "{read} rows were read for 10 pages of 10 runs");
}

/// Returns the pages of a listing of these schedules.
async fn pages(store: &dyn Store, mut read: RunRead) -> Vec<RunList> {
    let mut pages = Vec::new();
    loop {
        let list = store.list_runs(read.clone()).await.unwrap();
        read.after = list.next;
        pages.push(list);
        if read.after.is_none() {
            return pages;
        }
    }
}

fn read_all(schedules: Option<Vec<Incarnation>>, filter: RunFilter, order: Order) -> RunRead {
    let (from, until) = (Timestamp::MIN, Timestamp::MAX);
    RunRead { tenant: TENANT, schedules, from, until, filter, order, after: None, limit: 100 }
}

/// Writes `count` succeeded runs at `at` and the milliseconds after it, of `schedules` schedules in turn.
fn add_runs(url: &str, schedules: usize, at: Timestamp, count: usize) {
    let insert = format!(
        "set session_replication_role = replica; insert into reveille.run
         select lpad(to_hex(n % {schedules} + 1), 32, '0')::uuid, {} + n, 0, {}, 1, false, '\\x0100000000'
         from generate_series(0, {count} - 1) n",
        at.as_millis(),
        TENANT.0
    );
    shared().sql(name_of(url), &insert).unwrap();
}

#[test]
fn call_for_many_schedules_reads_few_rows() {
    let url = database();
    let schedules: Vec<Incarnation> = (1..=64).map(Incarnation).collect();
    let calls = on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        add_runs(&url, 64, runtime.now() - DAY * 30, 64 * 200);
        home.stop().await;
        shared().sql(name_of(&url), "select pg_stat_reset()").unwrap();
        let home = Home::open(&runtime, &url).await;
        let filter = RunFilter { status: Some(404), ..RunFilter::default() };
        let mut calls = 0;
        for schedules in [Some(schedules), None] {
            let lists = pages(&*home.store, read_all(schedules, filter, Order::Newest)).await;
            assert!(lists.iter().all(|list| list.runs.is_empty() && list.examined <= EXAMINED_MAX));
            calls += lists.len();
        }
        home.stop().await;
        calls
    });
    // A statement reads each row from an index, and may also count it as a row of the table.
    let read = rows_read(&url, 64 * 200);
    let most = 2 * u64::try_from(calls * EXAMINED_MAX).unwrap();
    assert!(calls < 64 && read <= most, "{read} rows in {calls} calls");
}

#[test]
fn long_range_is_read_in_slices_of_days() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let today = Timestamp::from_millis(runtime.now().as_millis() / 86_400_000 * 86_400_000);
        for day in 20..60 {
            let start = (today - DAY * day).as_millis();
            let create = format!(
                "create table reveille.run_old_{day} partition of reveille.run for values from ({start}) to ({})",
                start + 86_400_000
            );
            shared().sql(name_of(&url), &create).unwrap();
        }
        // Some runs are in the default partition, between and around the other partitions.
        for day in [0, 1, 9, 20, 21, 28, 29, 40, 59, 60, 400] {
            add_runs(&url, 3, today - DAY * day, 5);
        }
        let mut found = Vec::new();
        for order in [Order::Newest, Order::Oldest] {
            for schedules in [None, Some((1..=64).map(Incarnation).collect())] {
                let lists = pages(&*home.store, read_all(schedules, RunFilter::default(), order)).await;
                assert!((5..20).contains(&lists.len()), "{} slices", lists.len());
                let mut runs: Vec<Occurrence> =
                    lists.into_iter().flat_map(|list| list.runs).map(|run| run.occurrence).collect();
                if order == Order::Newest {
                    runs.reverse();
                }
                found.push(runs);
            }
        }
        assert_eq!(found[0].len(), 55);
        assert!(found[0].is_sorted_by_key(Occurrence::by_time));
        assert!(found.iter().all(|runs| *runs == found[0]));
        home.stop().await;
    });
}

#[test]
fn unreadable_run_hides_no_other_run() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        add_runs(&url, 1, runtime.now() - DAY, 30);
        let damage = "set session_replication_role = replica; update reveille.run set value = '\\xff'
            where nominal % 10 = 3 or nominal in (select max(nominal) from reveille.run)";
        shared().sql(name_of(&url), damage).unwrap();
        for order in [Order::Newest, Order::Oldest] {
            let read = RunRead { limit: 4, ..read_all(None, RunFilter::default(), order) };
            let lists = pages(&*home.store, read).await;
            let readable: usize = lists.iter().map(|list| list.runs.len()).sum();
            let unreadable: usize = lists.iter().map(|list| list.unreadable).sum();
            assert!(unreadable >= 3 && readable + unreadable == 30, "{readable} and {unreadable}");
        }
        home.stop().await;
    });
}

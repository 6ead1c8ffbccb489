//! Tests of the counts of runs: an upgrade, damaged rows, the merge of past hours and the deletion by classes. The
//! conformance suite tests the counts themselves.

use std::time::Duration;

use domain::occurrence::Run;
use domain::{Facet, Hour, PollerId, RunState, ShardId, TenantId, Timestamp};
use runtime::Runtime;
use store::{Change, CountPage, CountRead, OwnerWrite, Positions, Store};
use store_postgres::{Options, SCHEMA_VERSION, migrate};
use test_servers::postgres::shared;

use crate::history::{DAY, HOUR, OTHER, created, put_class, run, runs_in};
use crate::support::{Home, POLLER, TENANT, database, name_of, on_real, one_shot, outcome, owned, undo_to};

/// Writes the outcome of a new schedule that is due at `at`.
async fn write_run(runtime: &Runtime, store: &dyn Store, at: Timestamp) {
    let shards: Vec<ShardId> = vec![POLLER.shard()];
    let term = store.take(shards).await.unwrap()[0];
    let insert = one_shot(runtime, at);
    store.insert(vec![insert.clone()]).await.unwrap();
    assert!(store.write(vec![owned(term, outcome(&insert))]).await.unwrap()[0].is_ok());
}

async fn counts(store: &dyn Store) -> CountPage {
    counts_of(store, TENANT).await
}

async fn counts_of(store: &dyn Store, tenant: TenantId) -> CountPage {
    let (from, until) = (Hour(0), Hour::of(Timestamp::MAX));
    store.counts(CountRead { tenant, facet: Facet::All, from, until }).await.unwrap()
}

/// Makes each row of counts a row of another process, and copies it to `copies` further processes.
fn copy_to_other_processes(url: &str, copies: u32) {
    let sql = |statement: &str| shared().sql(name_of(url), statement).unwrap();
    sql("update reveille.run_count set slot = slot + 1000000000 where slot <> 0");
    sql(&format!(
        "insert into reveille.run_count select tenant, facet, hour, 1500000000 + n, value
         from reveille.run_count, generate_series(1, {copies}) n where slot <> 0"
    ));
}

fn runs(page: &CountPage) -> u64 {
    let groups = page.hours.iter().flat_map(|(_, counts)| counts.groups().values());
    groups.flat_map(|tallies| tallies.values()).map(|tally| tally.runs).sum()
}

/// Asserts that the counts are complete from the hour after the two minutes that follow the present time.
fn assert_counted_from_now(page: &CountPage, now: Timestamp) {
    let first = Hour::from_start(now + Duration::from_secs(120));
    assert!([first, Hour(first.0 + 1)].contains(&page.counted_from), "{page:?}");
}

#[test]
fn uncounted_runs_of_an_earlier_build_are_noticed() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        write_run(&runtime, &*home.store, now).await;
        let page = counts(&*home.store).await;
        assert_eq!((runs(&page), page.counted_from), (1, Hour(0)), "a new store counts all runs");
        // A member of an earlier build writes outcomes by this statement, without the parameter.
        let write = "insert into reveille.run (incarnation, nominal, version, tenant, state, value, written_at)
            select incarnation, nominal, version + 1, tenant, state, value, written_at from reveille.run
            on conflict (incarnation, nominal, version) do update set state = excluded.state";
        let counted = format!("begin; set local reveille.counts_runs = 'on'; {write}; rollback");
        shared().sql(name_of(&url), &counted).unwrap();
        assert_eq!(counts(&*home.store).await, page);
        shared().sql(name_of(&url), write).unwrap();
        let after = counts(&*home.store).await;
        assert_eq!(after.hours, page.hours);
        assert_counted_from_now(&after, now);
        home.close().await;
    });
}

#[test]
fn migrated_store_counts_runs_from_the_migration_on() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        write_run(&runtime, &*home.store, now).await;
        home.stop().await;
        shared().sql(name_of(&url), &undo_to(13)).unwrap();
        let migrated = migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!((migrated.from, migrated.to), (Some(13), SCHEMA_VERSION));
        let home = Home::open(&runtime, &url).await;
        let page = counts(&*home.store).await;
        assert_eq!(runs(&page), 0);
        assert_counted_from_now(&page, now);
        write_run(&runtime, &*home.store, now).await;
        assert_eq!(runs(&counts(&*home.store).await), 1);
        home.stop().await;
    });
}

/// A report reads the rows of an hour by several statements, because each process has a row of its own.
#[test]
fn leader_merges_the_counts_of_past_hours() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        let [past, open] = [now - HOUR * 5, now];
        write_run(&runtime, &*home.store, past).await;
        write_run(&runtime, &*home.store, open).await;
        copy_to_other_processes(&url, 299);
        assert_eq!(runs_in(&url, "run_count"), "1800");
        let before = counts(&*home.store).await;
        assert_eq!((runs(&before), before.hours.len()), (600, 2));

        home.store.maintain(now, now - DAY * 30).await.unwrap();
        assert_eq!(runs_in(&url, "run_count where slot = 0"), "3", "a row for each facet of the past hour");
        assert_eq!(runs_in(&url, "run_count"), "903", "processes still write the counts of the latest hours");
        assert_eq!(counts(&*home.store).await, before);

        // A late outcome adds a row. The next merge adds it to the merged row.
        write_run(&runtime, &*home.store, past).await;
        home.store.maintain(now, now - DAY * 30).await.unwrap();
        assert_eq!(runs_in(&url, "run_count"), "903");
        assert_eq!(runs(&counts(&*home.store).await), 601);
        home.close().await;
    });
}

#[test]
fn outcomes_during_merges_are_all_counted() {
    const RUNS: u64 = 40;
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        let writing = async {
            for _ in 0..RUNS {
                write_run(&runtime, &*home.store, now - HOUR * 5).await;
            }
        };
        let merging = async {
            for _ in 0..RUNS {
                home.store.maintain(now, now - DAY * 30).await.unwrap();
            }
        };
        futures_util::future::join(writing, merging).await;
        assert_eq!(runs(&counts(&*home.store).await), RUNS);
        home.close().await;
    });
}

#[test]
fn damaged_counts_stop_no_outcome_and_no_report() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        let [damaged, sound] = [now - HOUR * 4, now - HOUR * 3];
        for at in [damaged, damaged, sound] {
            write_run(&runtime, &*home.store, at).await;
        }
        let damage = format!("update reveille.run_count set value = '\\xff' where hour = {}", Hour::of(damaged).0);
        shared().sql(name_of(&url), &damage).unwrap();
        let page = counts(&*home.store).await;
        assert_eq!(page.hours.iter().map(|(hour, _)| *hour).collect::<Vec<_>>(), [Hour::of(sound)]);
        home.store.maintain(now, now - DAY * 30).await.unwrap();
        assert_eq!(runs(&counts(&*home.store).await), 1, "a merge keeps the damaged rows");
        // Each process of the database counts again from zero.
        for _ in 0..8 {
            write_run(&runtime, &*home.store, damaged).await;
        }
        assert_eq!(runs(&counts(&*home.store).await), 9);
        home.close().await;
    });
}

#[test]
fn counts_are_deleted_by_the_class_of_their_tenant() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let now = runtime.now();
        let write = async |poller: PollerId, at: Timestamp| {
            let term = store.take(vec![poller.shard()]).await.unwrap()[0];
            let insert = created(&one_shot(&runtime, at), now - DAY * 40, poller);
            store.insert(vec![insert.clone()]).await.unwrap();
            let run = Run { tenant: poller.tenant, ..run(&insert, RunState::Succeeded) };
            let change = Change::Run { run, then: None, ends: true, origin: None };
            assert!(store.write(vec![OwnerWrite { term, poller, change }]).await.unwrap()[0].is_ok());
        };
        for poller in [POLLER, OTHER] {
            for days in [2, 10, 40] {
                write(poller, now - DAY * days).await;
            }
            // A due row without an outcome would prevent the deletions.
            let term = store.take(vec![poller.shard()]).await.unwrap()[0];
            let change = Change::Positions(Positions { closed: now, done: now });
            assert!(store.write(vec![OwnerWrite { term, poller, change }]).await.unwrap()[0].is_ok());
        }
        let kept = async || {
            let hours = async |tenant| counts_of(store, tenant).await.hours.len();
            (hours(TENANT).await, hours(OTHER.tenant).await)
        };
        for (version, ours, theirs, expected) in
            [(1, Some(90), None, (3, 2)), (2, Some(30), Some(7), (2, 1)), (3, Some(1), Some(7), (0, 1))]
        {
            put_class(store, TENANT, version, ours).await;
            put_class(store, OTHER.tenant, version, theirs).await;
            store.maintain(now, now - DAY * 30).await.unwrap();
            assert_eq!(kept().await, expected, "classes of {ours:?} and {theirs:?} days");
        }
        home.close().await;
    });
}

//! Tests of the counts of runs during an upgrade. The conformance suite tests the counts themselves.

use std::time::Duration;

use domain::{Facet, Hour, ShardId, Timestamp};
use runtime::Runtime;
use store::{CountPage, CountRead, Store};
use store_postgres::{Options, SCHEMA_VERSION, migrate};
use test_servers::postgres::shared;

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
    let (from, until) = (Hour(0), Hour::of(Timestamp::MAX));
    store.counts(CountRead { tenant: TENANT, facet: Facet::All, from, until }).await.unwrap()
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

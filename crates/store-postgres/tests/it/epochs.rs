//! Tests of databases that return to an earlier state: fail-over to a standby that lagged, restored dumps, and restored
//! files.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, ShardId, Term, Timestamp};
use runtime::Runtime;
use store::{Change, Cursor, Health, Insert, Positions, Store, StoreError, WriteRejection, Written};
use store_postgres::{OpenError, Options, migrate, start_epoch};
use test_servers::postgres::{Postgres, shared};

use crate::support::{Home, POLLER, database, due_after, migrated, name_of, on_real, one_shot, owned, undo_to};

async fn until_health(runtime: &Runtime, store: &dyn Store, health: Health) {
    let waited = runtime.timeout(Duration::from_secs(60), async {
        while store.health() != health {
            runtime.sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_some(), "the store is not {health:?} after a minute");
}

/// Makes a call, and repeats it while not all connections of the store are open again after a fail-over.
async fn repeat<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> T {
    loop {
        match call().await {
            Ok(response) => return response,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

async fn take(store: &dyn Store) -> Term {
    repeat(async || store.take(vec![POLLER.shard()]).await).await[0]
}

async fn insert(store: &dyn Store, insert: &Insert) {
    repeat(async || store.insert(vec![insert.clone()]).await).await;
}

/// Raises the positions of [`POLLER`] to `at`.
async fn raise(store: &dyn Store, term: Term, at: Timestamp) -> Result<Written, WriteRejection> {
    let positions = Positions { closed: at, done: at };
    repeat(async || store.write(vec![owned(term, Change::Positions(positions))]).await).await.remove(0)
}

async fn read_log(store: &dyn Store, cursor: &mut Cursor) -> Vec<DueKey> {
    let shards: Arc<[ShardId]> = Arc::new([POLLER.shard()]);
    let (entries, next) = repeat(async || store.insert_log(shards.clone(), *cursor, 100).await).await;
    *cursor = next;
    entries.into_iter().map(|entry| entry.key).collect()
}

/// Returns the URL of a database on the first of these servers that accepts writes.
fn url_of_both(url: &str, one: &Postgres, other: &Postgres) -> String {
    let port = format!("127.0.0.1:{}", one.port());
    url.replace(&port, &format!("{port},127.0.0.1:{}", other.port()))
}

#[test]
fn failover_that_lost_commits_supersedes_all_owners() {
    let primary = Postgres::start().unwrap();
    let url = migrated(&primary);
    let standby = primary.start_standby().unwrap();
    let url = url_of_both(&url, &primary, &standby);
    on_real(async |runtime| {
        let [owner, other] = [Home::open(&runtime, &url).await, Home::open(&runtime, &url).await];
        let stores: [&dyn Store; 2] = [&*owner.store, &*other.store];
        let start = runtime.now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let first = one_shot(&runtime, later(60));
        let mut cursor = Cursor::default();
        let term = take(stores[0]).await;
        insert(stores[0], &first).await;
        assert_eq!(read_log(stores[0], &mut cursor).await, [first.due]);
        raise(stores[0], term, later(1)).await.unwrap();

        standby.wait_until_replayed(&primary).unwrap();
        standby.disconnect_from_primary().unwrap();
        // The standby does not receive the following writes. It assigns their transaction numbers again.
        raise(stores[0], term, later(50)).await.unwrap();
        for _ in 0..20 {
            insert(stores[0], &one_shot(&runtime, later(60))).await;
        }
        assert_eq!(read_log(stores[0], &mut cursor).await.len(), 20);
        let lost = take(stores[1]).await;
        primary.kill().unwrap();
        until_health(&runtime, stores[0], Health::Unreachable).await;
        standby.promote().unwrap();
        for store in stores {
            until_health(&runtime, store, Health::Ready).await;
        }

        assert!(stores[0].epoch() > lost.epoch() && stores[0].epoch() == stores[1].epoch());
        assert_eq!(raise(stores[0], term, later(51)).await, Err(WriteRejection::Superseded));
        let newer = take(stores[0]).await;
        assert!(newer > lost && newer.epoch() == stores[0].epoch(), "{newer:?}, {lost:?}");
        let positions = Positions { closed: later(1), done: later(1) };
        assert_eq!(stores[0].positions(vec![POLLER]).await.unwrap(), [positions]);
        assert_eq!(due_after(stores[0], Timestamp::MIN).await, [first.due]);
        // The number of this transaction is lower than the numbers of transactions that the reader has seen.
        let new = one_shot(&runtime, later(60));
        insert(stores[1], &new).await;
        let entries = read_log(stores[0], &mut cursor).await;
        assert!(entries.contains(&new.due), "{entries:?}");

        // The former primary comes back, and still accepts writes.
        primary.restart().unwrap();
        standby.stop().unwrap();
        until_health(&runtime, stores[0], Health::Unreachable).await;
        let waited = runtime.timeout(Duration::from_secs(60), async {
            loop {
                let error = stores[0].positions(vec![POLLER]).await.unwrap_err().to_string();
                if error.contains("former primary") {
                    return;
                }
                runtime.sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap();
        owner.stop().await;
        other.stop().await;
    });
}

#[test]
fn restart_without_loss_keeps_the_epoch_and_the_terms() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let (term, epoch) = (take(store).await, store.epoch());
        for kill in [true, false] {
            raise(store, term, runtime.now()).await.unwrap();
            if kill {
                postgres.kill().unwrap()
            } else {
                postgres.stop().unwrap()
            }
            until_health(&runtime, store, Health::Unreachable).await;
            postgres.restart().unwrap();
            until_health(&runtime, store, Health::Ready).await;
        }
        raise(store, term, runtime.now()).await.unwrap();
        assert_eq!(store.epoch(), epoch);
        home.close().await;
    });
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// The files of an earlier state have the same timeline as the present state.
#[test]
fn database_without_the_last_written_positions_gets_a_new_epoch() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    let (data, copy) = (postgres.folder().join("data"), postgres.folder().join("copy"));
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let (term, start) = (take(store).await, runtime.now());
        raise(store, term, start).await.unwrap();
        postgres.stop().unwrap();
        copy_folder(&data, &copy);
        postgres.restart().unwrap();
        until_health(&runtime, store, Health::Ready).await;
        let closed = start + Duration::from_secs(1);
        raise(store, term, closed).await.unwrap();

        postgres.stop().unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&copy, &data).unwrap();
        until_health(&runtime, store, Health::Unreachable).await;
        postgres.restart().unwrap();
        until_health(&runtime, store, Health::Ready).await;
        assert!(store.epoch() > term.epoch());
        assert_eq!(raise(store, term, closed).await, Err(WriteRejection::Superseded));
        assert!(take(store).await.epoch() > term.epoch());
        home.stop().await;
    });
}

#[test]
fn restored_dump_is_rejected_until_an_operator_starts_an_epoch() {
    let original = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &original).await;
        let lost = take(&*home.store).await;
        home.close().await;
        let restored = shared().create_database().unwrap();
        shared().dump_and_restore(&original, &restored).unwrap();
        let in_place = database();
        shared().sql(name_of(&in_place), "drop schema reveille cascade").unwrap();
        shared().dump_and_restore(&original, &in_place).unwrap();
        let template = shared().copy_database(name_of(&original)).unwrap();
        for url in [restored, in_place, template] {
            let options = Options::default();
            let opened = Home::try_open(&runtime, &url, options.clone()).await.err().unwrap();
            assert!(matches!(opened, OpenError::OtherDatabase { .. }), "{opened}");
            assert!(opened.to_string().contains("reveille store new-epoch"), "{opened}");
            let again = migrate(&runtime, &url, &options).await;
            assert!(matches!(again, Err(OpenError::OtherDatabase { .. })), "{again:?}");
            let epoch = start_epoch(&runtime, &url, &options, 0).await.unwrap();
            let home = Home::open(&runtime, &url).await;
            let term = take(&*home.store).await;
            assert!(term > lost && term.epoch() == epoch, "{term:?}, {lost:?}, {epoch}");
            home.close().await;
        }
    });
}

#[test]
fn new_epoch_is_above_the_epoch_of_the_source() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let source = home.store.epoch() + 1_000_000;
        assert_eq!(start_epoch(&runtime, &url, &Options::default(), source).await, Ok(source + 1));
        // The open store learns of the epoch without a new connection.
        let term = take(&*home.store).await;
        assert_eq!((term.epoch(), home.store.epoch()), (source + 1, source + 1));
        home.close().await;
    });
}

#[test]
fn migration_of_an_older_schema_starts_an_epoch() {
    let url = database();
    shared().sql(name_of(&url), "update reveille.shard set term = 41").unwrap();
    shared().sql(name_of(&url), &undo_to(9)).unwrap();
    on_real(async |runtime| {
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let home = Home::open(&runtime, &url).await;
        let term = take(&*home.store).await;
        let now = u64::try_from(runtime.now().as_millis() / 1_000).unwrap();
        assert!(term.epoch() <= now && term.epoch() > now - 60, "{term:?}");
        home.close().await;
    });
}

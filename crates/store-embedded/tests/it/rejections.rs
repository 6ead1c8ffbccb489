//! Tests of rejected operations: on a full disk, by a second process, and with an incomplete data folder.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use domain::{Audit, ShardId, SigningSecret, Tenant, TenantId, Timestamp};
use runtime::{OpenMode, TaskEnd, TaskSet};
use simulator::{Simulation, run_seeds};
use store::{Cancellation, Change, Health, Insert, OwnerWrite, Positions, Store, StoreError};
use store_embedded::{EmbeddedStore, IndexKind, OpenError, Options};

use crate::support::{Home, POLLER, on_real, one_shot, small};

fn an_insert(number: u64) -> Insert {
    one_shot(number, Timestamp::from_millis(1_800_000_000_000), None, &[b'x'; 1000])
}

#[test]
fn store_on_a_nearly_full_disk_rejects_only_user_writes() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let a = sim.member("a");
        let options = Options { free_bytes_floor: 4 << 20, ..small(IndexKind::Map) };
        let tasks = TaskSet::new(&a);
        let store = EmbeddedStore::open(&a, &tasks, Path::new("/data"), options).await.unwrap();
        store.insert(vec![an_insert(1)]).await.unwrap();
        let term = store.take(vec![POLLER.shard()]).await.unwrap()[0];

        sim.volume("a").set_capacity(sim.volume("a").used_bytes() + (2 << 20));
        a.sleep(Duration::from_secs(2)).await;
        assert_eq!(store.health(), Health::Full);
        let rejected = store.insert(vec![an_insert(2)]).await;
        assert!(
            matches!(&rejected, Err(StoreError::Full(why)) if why.contains("4194304 bytes must stay free;")),
            "{rejected:?}"
        );
        let cancelled = an_insert(1).schedule;
        let cancellation = Cancellation { tenant: cancelled.tenant, id: cancelled.id.clone(), author: None };
        store.append_cancellations(vec![cancellation]).await.unwrap();
        let operator = Tenant::new(TenantId(77), "new", 1, SigningSecret::first(vec![7; 32], Timestamp::MIN));
        let entry = Audit::of(&operator, Timestamp::MIN, "test", "tenant.create", "");
        store.put_tenant(operator, entry).await.unwrap().unwrap();
        let moved = Positions { closed: Timestamp::from_millis(2), done: Timestamp::from_millis(1) };
        let write = OwnerWrite { term, poller: POLLER, change: Change::Positions(moved) };
        assert!(store.write(vec![write]).await.unwrap()[0].is_ok(), "owner writes are accepted");
        let found = store.load(vec![an_insert(1).schedule.incarnation]).await.unwrap();
        assert!(found[0].is_some(), "reads are accepted");

        sim.volume("a").set_capacity(u64::MAX);
        a.sleep(Duration::from_secs(2)).await;
        assert_eq!(store.health(), Health::Ready);
        store.insert(vec![an_insert(2)]).await.unwrap();
    });
}

#[test]
fn fast_writes_never_use_the_disk_space_that_must_stay_free() {
    const FLOOR: u64 = 4 << 20;
    const CAPACITY: u64 = 32 << 20;
    let sim = Simulation::new(1);
    sim.run_until(async {
        let a = sim.member("a");
        sim.volume("a").set_capacity(CAPACITY);
        // The store reads the free space so rarely that only its count of written bytes can stop the writer.
        let options =
            Options { free_bytes_floor: FLOOR, free_bytes_period: Duration::from_secs(3_600), ..small(IndexKind::Map) };
        let tasks = TaskSet::new(&a);
        let store = EmbeddedStore::open(&a, &tasks, Path::new("/data"), options).await.unwrap();
        let mut inserted = 0;
        let rejected = loop {
            match store
                .insert(vec![one_shot(inserted, Timestamp::from_millis(1_800_000_000_000), None, &[b'x'; 60_000])])
                .await
            {
                Ok(_) => inserted += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(rejected, StoreError::Full(_)), "{rejected:?}");
        assert!(inserted > 20, "only {inserted} of the schedules fitted");
        a.sleep(Duration::from_secs(10)).await;
        let free = CAPACITY - sim.volume("a").used_bytes();
        assert!(free >= FLOOR, "{free} bytes are free after {inserted} schedules");
    });
}

#[test]
fn second_store_cannot_open_the_data_folder_of_an_open_store() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        let second = Home::try_open(&runtime, dir.path(), small(IndexKind::Lsm)).await.err();
        assert!(matches!(second, Some(OpenError::Journal(journal::OpenError::Locked { .. }))), "{second:?}");
        home.close().await;
    });
}

#[test]
fn store_keeps_its_folder_locked_until_its_last_flush() {
    run_seeds("store-lock", 0..100, |sim| {
        let (a, options) = (sim.member("a"), Options { checkpoint_bytes: 1 << 30, ..small(IndexKind::Map) });
        let work = async move {
            let disk = a.disk();
            let [dir, lock, checkpoint] = ["/data", "/data/journal/lock", "/data/CHECKPOINT"].map(Path::new);
            let checkpoint = async || {
                let file = disk.open(checkpoint, OpenMode::Read).await.unwrap();
                let mut bytes = vec![0; usize::try_from(file.len().await.unwrap()).unwrap()];
                file.read_at(0, &mut bytes).await.unwrap();
                bytes
            };
            let home = Home::open(&a, dir, options).await;
            home.store.insert((1..50).map(an_insert).collect()).await.unwrap();
            let before = checkpoint().await;
            let store = home.store.clone();
            let closing = a.spawn("closes", async move { store.close().await });
            let lock = loop {
                match disk.lock(lock).await {
                    Ok(lock) => break lock,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            };
            let unlocked = checkpoint().await;
            assert!(unlocked != before, "the last flush writes a checkpoint");
            assert_eq!(closing.end.await, TaskEnd::Finished);
            assert!(checkpoint().await == unlocked, "the store writes a checkpoint after it unlocked its folder");
            drop(lock);
            home.close().await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
    });
}

#[test]
fn closed_store_rejects_every_call() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        home.store.close().await;
        assert_eq!(home.store.health(), Health::Closed);
        let rejected = home.store.insert(vec![an_insert(1)]).await.unwrap_err();
        assert!(rejected.is_retryable(), "{rejected:?}");
        assert!(home.store.take(vec![ShardId(1)]).await.is_err());
        assert!(home.store.load(Vec::new()).await.is_err());
        home.close().await;
    });
}

#[test]
fn error_names_the_missing_part_of_the_data_folder() {
    on_real(async |runtime| {
        for (taken, named) in [
            ("CHECKPOINT", "CHECKPOINT is missing"),
            ("index", "the index is missing"),
            ("index/due/current", "index/due/current: the file is missing"),
            ("journal", "the journal does not belong to the index"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
            home.store.insert(vec![an_insert(1)]).await.unwrap();
            home.store.checkpoint().await.unwrap();
            home.close().await;
            let path = dir.path().join(taken);
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
            let error = Home::try_open(&runtime, dir.path(), small(IndexKind::Lsm)).await.err();
            let Some(OpenError::Damaged { what, .. }) = &error else { panic!("without {taken}: {error:?}") };
            assert!(what.contains(named), "without {taken}: {what}");
        }
    });
}

#[test]
fn store_with_a_changed_byte_in_its_checkpoint_does_not_open() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        home.close().await;
        let path = dir.path().join("CHECKPOINT");
        let bytes = std::fs::read(&path).unwrap();
        for place in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << (place % 8);
            std::fs::write(&path, flipped).unwrap();
            let error = Home::try_open(&runtime, dir.path(), small(IndexKind::Lsm)).await.err();
            assert!(matches!(error, Some(OpenError::Damaged { .. })), "at {place}: {error:?}");
        }
    });
}

#[test]
fn store_reports_a_damaged_row_and_serves_other_rows() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let inserts: Vec<Insert> = (0..100).map(an_insert).collect();
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        home.store.insert(inserts.clone()).await.unwrap();
        home.close().await;
        let tables = dir.path().join("index/rows/tables");
        let table = std::fs::read_dir(tables).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&table).unwrap();
        let place = bytes.windows(64).position(|window| window == [b'x'; 64]).unwrap() + 5_000;
        bytes[place] ^= 4;
        std::fs::write(&table, bytes).unwrap();

        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        let (mut served, mut reported) = (0, 0);
        for insert in &inserts {
            match home.store.load(vec![insert.schedule.incarnation]).await {
                Ok(found) => {
                    assert_eq!(found, [Some(insert.schedule.clone())]);
                    served += 1;
                }
                Err(StoreError::Damaged(what)) => {
                    let number = format!("rows {:032x}", insert.schedule.incarnation.0);
                    assert!(what.contains(&number), "{what}");
                    reported += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        // One damaged block makes a few rows unreadable, because a block contains a few rows.
        assert!(
            (1..20).contains(&reported) && served + reported == 100,
            "{reported} rows were reported, {served} were served"
        );
        assert_eq!(
            home.store.verify().await.unwrap().damages.len(),
            2,
            "the checksum of the file and the scan of its rows report damage"
        );
        home.close().await;
    });
}

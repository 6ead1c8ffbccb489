//! Tests of backups of a running store, and of the stores that a restore creates.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use domain::{ShardId, Timestamp};
use runtime::{Runtime, TaskSet};
use store::{DueBound, DueRead, Store};
use store_embedded::{BackupError, EmbeddedStore, IndexKind, Options, restore, start_epoch};

use crate::support::{Home, POLLER, TENANT, on_real, one_shot, small};

const EVERYTHING: DueRead =
    DueRead { poller: POLLER, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 1_000_000 };
const SHARD: ShardId = ShardId(5);

#[test]
fn store_with_lsm_index_restores_a_backup_taken_during_writes() {
    on_real(async |runtime| backs_up(&runtime, small(IndexKind::Lsm)).await);
}

#[test]
fn store_with_map_index_restores_a_backup_taken_during_writes() {
    on_real(async |runtime| backs_up(&runtime, small(IndexKind::Map)).await);
}

async fn backs_up(runtime: &Runtime, options: Options) {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy, restored] = ["data", "copy", "restored"].map(|name| dir.path().join(name));
    let home = Home::open(runtime, &data, Options { memtable_bytes: 10_000, ..options.clone() }).await;
    let at = Timestamp::from_millis(1_800_000_000_000);
    let name = |number: u64| format!("named-{number}");
    let insert = |number: u64| one_shot(number, at, Some(&name(number)), &[b'x'; 500]);
    for number in 0..100 {
        home.store.insert(vec![insert(number)]).await.unwrap();
    }
    let before = home.store.take(vec![SHARD]).await.unwrap()[0];
    let more = async {
        for number in 100..200 {
            home.store.insert(vec![insert(number)]).await.unwrap();
        }
    };
    let (backed_up, ()) = futures_util::join!(home.store.backup(&copy), more);
    backed_up.unwrap();
    let rejected = home.store.backup(&copy).await;
    assert!(matches!(rejected, Err(BackupError::NotEmpty { .. })), "{rejected:?}");
    // The following writes must not change the backup.
    home.store.insert(vec![insert(999)]).await.unwrap();
    let later = home.store.take(vec![SHARD]).await.unwrap()[0];
    home.store.checkpoint().await.unwrap();
    home.close().await;

    restore(runtime, &copy, &restored).await.unwrap();
    for _ in 0..2 {
        let home = Home::open(runtime, &restored, options.clone()).await;
        let numbers: Vec<u64> = (0..200).collect();
        let names = numbers.iter().map(|number| (TENANT, insert(*number).schedule.id.clone())).collect();
        let found = home.store.get(names).await.unwrap();
        let count = found.iter().take_while(|found| found.is_some()).count();
        assert!(count >= 100, "the backup contains {count} of the 100 writes acknowledged before it");
        for (number, found) in numbers.iter().zip(&found) {
            let expected = (usize::try_from(*number).unwrap() < count).then(|| insert(*number).schedule);
            assert_eq!(found, &expected, "a backup contains a prefix of the calls and nothing else");
        }
        assert_eq!(home.store.due(vec![EVERYTHING]).await.unwrap()[0].keys.len(), count);
        assert_eq!(home.store.get(vec![(TENANT, insert(999).schedule.id.clone())]).await.unwrap(), [None]);
        let verified = home.store.verify().await.unwrap();
        assert!(verified.damages.is_empty());
        assert_eq!(verified.rows[..2], [count as u64; 2]);
        let restored_term = home.store.take(vec![SHARD]).await.unwrap()[0];
        assert!(restored_term > later && later > before, "{restored_term:?} is not above {later:?}");
        // The test checks that the restored store accepts writes.
        home.store.insert(vec![one_shot(5_000 + restored_term.0, at, None, b"new")]).await.unwrap();
        let kept = home.store.due(vec![EVERYTHING]).await.unwrap()[0].keys.len();
        assert_eq!(kept, count + 1);
        home.close().await;
        std::fs::remove_dir_all(&restored).unwrap();
        restore(runtime, &copy, &restored).await.unwrap();
    }
}

#[test]
fn new_epoch_of_a_closed_store_is_above_the_source_and_keeps_all_writes() {
    on_real(async |runtime| {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&runtime, folder.path(), Options::default()).await;
        let insert = one_shot(1, Timestamp::from_millis(5_000), None, b"x");
        home.store.insert(vec![insert.clone()]).await.unwrap();
        let before = home.store.take(vec![SHARD]).await.unwrap()[0];
        let source = before.epoch() + 1_000_000;
        home.close().await;
        let tasks = TaskSet::new(&runtime);
        start_epoch(&runtime, &tasks, folder.path(), source).await.unwrap();
        tasks.join().await;
        let home = Home::open(&runtime, folder.path(), Options::default()).await;
        assert_eq!(home.store.epoch(), source + 1);
        assert_eq!(home.store.take(vec![SHARD]).await.unwrap()[0].epoch(), source + 1);
        let found = home.store.get(vec![(TENANT, insert.schedule.id.clone())]).await.unwrap();
        assert_eq!(found, [Some(insert.schedule)]);
        home.close().await;
    });
}

/// Returns the paths of a folder, of all folders and of all files in it to which other users have access.
fn shared(folder: &Path) -> Vec<PathBuf> {
    let is_shared = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o077 != 0;
    let mut paths: Vec<PathBuf> = is_shared(folder).then(|| folder.to_owned()).into_iter().collect();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(shared(&path));
        } else if is_shared(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Gives other users access to a folder and to everything in it.
fn share(folder: &Path) {
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => share(&path),
            false => std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap(),
        }
    }
}

#[test]
fn store_and_backup_give_other_users_no_access() {
    for index in [IndexKind::Lsm, IndexKind::Map] {
        on_real(async |runtime| {
            let dir = tempfile::tempdir().unwrap();
            let [data, copy, restored] = ["data", "copy", "restored"].map(|name| dir.path().join(name));
            let home = Home::open(&runtime, &data, small(index)).await;
            let at = Timestamp::from_millis(1_800_000_000_000);
            home.store.insert((0..50).map(|number| one_shot(number, at, None, b"x")).collect()).await.unwrap();
            home.store.backup(&copy).await.unwrap();
            assert_eq!(shared(&copy), [""; 0].map(PathBuf::from));
            for name in ["", "index", "journal"] {
                let mode = std::fs::metadata(data.join(name)).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o700, "the folder {name:?} hides the files that the library creates");
            }
            home.close().await;

            for folder in [&data, &copy] {
                share(folder);
            }
            restore(&runtime, &copy, &restored).await.unwrap();
            let home = Home::open(&runtime, &data, small(index)).await;
            for folder in [&data, &restored] {
                assert_eq!(shared(folder), [""; 0].map(PathBuf::from));
            }
            home.close().await;
        });
    }
}

#[test]
fn restore_rejects_a_folder_without_a_backup() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let rejected = restore(&runtime, &dir.path().join("nothing"), &dir.path().join("restored")).await;
        assert!(matches!(rejected, Err(BackupError::NoBackup { .. })), "{rejected:?}");
    });
}

#[test]
fn restore_rejects_a_damaged_backup() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let (copy, restored) = (dir.path().join("copy"), dir.path().join("restored"));
        let options = Options { index: IndexKind::Lsm, free_bytes_floor: 0, ..Options::default() };
        let home = Home::open(&runtime, &dir.path().join("data"), options).await;
        for number in 0..100 {
            let name = format!("named-{number}");
            home.store
                .insert(vec![one_shot(number, Timestamp::from_millis(1_800_000_000_000), Some(&name), &[b'x'; 500])])
                .await
                .unwrap();
        }
        home.store.backup(&copy).await.unwrap();
        home.close().await;
        let tables = std::fs::read_dir(copy.join("index/rows/tables")).unwrap();
        let table = tables.map(|entry| entry.unwrap().path()).next().expect("the backup has a table");
        let mut bytes = std::fs::read(&table).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        // The table may be a hard link to a table of the store, so the test replaces the file and does not write into
        // it.
        std::fs::remove_file(&table).unwrap();
        std::fs::write(&table, bytes).unwrap();
        let rejected = restore(&runtime, &copy, &restored).await;
        assert!(matches!(rejected, Err(BackupError::Damaged(_))), "{rejected:?}");
        let opened = EmbeddedStore::open(&runtime, &TaskSet::new(&runtime), &restored, Options::default()).await;
        assert!(opened.is_err(), "a folder of a failed restore is not a data folder");
    });
}

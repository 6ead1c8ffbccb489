//! Tests of damage and merges. Every flipped bit is harmless, or the index reports the damage. A read never omits or
//! changes a row without an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;

use super::*;

type Files = BTreeMap<PathBuf, Vec<u8>>;
type Found = Result<Vec<(Vec<u8>, Bytes)>, IndexError>;

fn options() -> Options {
    Options { cache_bytes: 1 << 20, ..Options::default() }
}

/// Returns the sequence of the first item of an entry. The test's entry 0 is entry 1 of the journal.
fn at(entry: u64) -> Sequence {
    Sequence::new(entry + 1, 0)
}

async fn flush(index: &LsmIndex) {
    Family::ALL.into_iter().for_each(|family| index.seal(family));
    index.flush(at(0)).await.unwrap();
}

/// Writes two tables in each tree. A row of the second table hides a row of the first.
async fn fill(dir: &Path) {
    let index = LsmIndex::open(dir, &options()).unwrap();
    for round in 0..2_u64 {
        for family in Family::ALL {
            for number in 0..12_u8 {
                let key = [b"key-".as_slice(), &[round.to_le_bytes()[0], number]].concat();
                index.put(family, &key, &[number; 40], at(round * 100 + u64::from(number)));
            }
            index.put(family, b"hidden", &[round.to_le_bytes(); 2].concat(), at(round * 100 + 50));
        }
        for family in [Family::Rows, Family::Points] {
            index.remove(family, &[b'k', b'e', b'y', b'-', 0, 3], at(round * 100 + 60));
        }
        flush(&index).await;
    }
}

fn read_files(dir: &Path, files: &mut Files) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_files(&path, files);
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

fn scan_all(index: &LsmIndex, family: Family) -> Found {
    let mut found = Vec::new();
    index.scan(family, &[], &[0xff], Sequence::LATEST, &mut |key, value| {
        found.push((key.to_vec(), value.clone()));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn scan_all_back(index: &LsmIndex, family: Family) -> Found {
    let mut found = Vec::new();
    index.scan_back(family, &[], &[0xff], Sequence::LATEST, &mut |key, value| {
        found.push((key.to_vec(), value.clone()));
        ControlFlow::Continue(())
    })?;
    found.reverse();
    Ok(found)
}

/// Reads every row by a scan in each direction and by its key. Returns an error if a read reports damage.
fn read_all(index: &LsmIndex, expected: &[Vec<(Vec<u8>, Bytes)>; 3]) -> Result<(), IndexError> {
    for family in Family::ALL {
        let rows = &expected[family as usize];
        assert_eq!(&scan_all(index, family)?, rows, "a scan of {} has other rows", family.name());
        assert_eq!(&scan_all_back(index, family)?, rows, "a scan back of {} has other rows", family.name());
        for (key, value) in rows {
            assert_eq!(index.get(family, key, Sequence::LATEST)?.as_ref(), Some(value), "{}", family.name());
        }
    }
    Ok(())
}

/// Distance in bytes from one tested byte of a table to the next. The test starts at a different byte in each file. The
/// distance limits the duration of the test to seconds. The test covers every byte of the manifests.
const TABLE_STRIDE: usize = 5;

#[tokio::test]
async fn index_reports_every_bit_flip_when_it_is_opened_or_verified() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let expected = {
        let index = LsmIndex::open(dir.path(), &options()).unwrap();
        assert_eq!(index.verify().await.unwrap().damages, Vec::<String>::new());
        Family::ALL.map(|family| scan_all(&index, family).unwrap())
    };
    assert_eq!(expected.each_ref().map(Vec::len), [24, 25, 24]);
    let mut files = Files::new();
    read_files(dir.path(), &mut files);
    let (mut reported, mut harmless) = (0, 0);
    for (number, (path, bytes)) in files.iter().enumerate() {
        let is_table = path.parent().is_some_and(|parent| parent.ends_with("tables"));
        let stride = if is_table { TABLE_STRIDE } else { 1 };
        for place in (number % stride..bytes.len()).step_by(stride) {
            // The test writes the byte in place, because some file systems sync when a process replaces a whole file.
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let flipped = bytes[place] ^ 1 << (place / stride % 8);
            file.write_all_at(&[flipped], place as u64).unwrap();
            let what = format!("{} at {place}", path.display());
            match LsmIndex::open(dir.path(), &options()) {
                Ok(index) => {
                    match read_all(&index, &expected) {
                        Ok(()) => harmless += 1,
                        Err(IndexError::Damaged { .. }) => reported += 1,
                        Err(IndexError::Io(error)) => panic!("{what}: {error}"),
                    }
                    let verified = index.verify().await.unwrap();
                    assert!(!verified.damages.is_empty(), "verify does not find the damage of {what}");
                }
                Err(IndexError::Damaged { .. }) => reported += 1,
                Err(IndexError::Io(error)) => panic!("{what}: {error}"),
            }
            file.write_all_at(&bytes[place..=place], place as u64).unwrap();
        }
        let mut left = Files::new();
        read_files(dir.path(), &mut left);
        assert_eq!(left, files, "reading a damaged tree changes no file");
    }
    assert!(reported > 500, "{reported} flips were reported, {harmless} were harmless");
}

fn due_key(poller: u8, position: u16) -> Vec<u8> {
    [[poller; 8].as_slice(), &position.to_be_bytes()].concat()
}

/// Returns the poller and the position of every stored due row.
fn due_positions(index: &LsmIndex) -> Vec<(u8, u16)> {
    let rows = scan_all(index, Family::Due).unwrap();
    rows.iter().map(|(key, _)| (key[0], u16::from_be_bytes([key[8], key[9]]))).collect()
}

#[tokio::test]
async fn lsm_merge_drops_only_the_due_rows_that_no_caller_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    // The test retires all rows in the first table of poller 1, so the index drops this table. The index merges the
    // other tables of poller 1. The rows of poller 2 do not change.
    for (round, positions) in [0..50, 50..100, 60..110, 70..120, 80..130].into_iter().enumerate() {
        for poller in [1, 2] {
            let at = at(round as u64 * 10 + u64::from(poller));
            positions.clone().for_each(|position| index.put(Family::Due, &due_key(poller, position), &[], at));
            flush(&index).await;
        }
    }
    index.retire([1; 8], &due_key(1, 90));
    while index.merge_step(Sequence::LATEST).unwrap() {}
    let left = due_positions(&index);
    assert!(left.iter().all(|(poller, position)| *poller == 2 || *position >= 50), "the first table is dropped");
    let expected = |poller: u8, from: u16| (from..130).map(move |position| (poller, position));
    assert!(
        expected(1, 90).chain(expected(2, 0)).all(|row| left.contains(&row)),
        "a row that can still be read is missing"
    );
    drop(index);
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    assert_eq!(due_positions(&index), left, "the remaining rows exist after a restart");
    assert_eq!(index.verify().await.unwrap().damages, Vec::<String>::new());
}

/// Returns the paths of the tables of due rows.
fn due_tables(dir: &Path) -> Vec<PathBuf> {
    let tables = files::tables(&dir.join(Family::Due.name()));
    fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn lsm_merges_continue_after_the_index_drops_unreadable_due_rows() {
    let dir = tempfile::tempdir().unwrap();
    let written: BTreeSet<(u8, u16)> = {
        let index = LsmIndex::open(dir.path(), &options()).unwrap();
        // The first table spans the keys of all other tables, which overlap with each other.
        for (round, positions) in [0..4_000, 500..700, 600..800, 700..900, 800..1_000].into_iter().enumerate() {
            let positions = positions.step_by(4).map(|position| position + u16::try_from(round % 4).unwrap());
            positions.for_each(|position| index.put(Family::Due, &due_key(1, position), &[], at(round as u64)));
            flush(&index).await;
        }
        due_positions(&index).into_iter().collect()
    };
    let largest = due_tables(dir.path()).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(&largest, bytes).unwrap();

    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    assert!(matches!(index.merge_step(Sequence::LATEST), Err(IndexError::Damaged { family: "due", .. })));
    let unreadable = index.unreadable_due().unwrap();
    let [Unreadable { from, to }] = &unreadable[..] else { panic!("{unreadable:?}") };
    let is_readable = |row: &&(u8, u16)| !(from..to).contains(&&due_key(row.0, row.1));
    let expected: BTreeSet<(u8, u16)> = written.iter().filter(is_readable).copied().collect();
    let readable = |index: &LsmIndex| {
        let (mut rows, mut skipped) = (BTreeSet::new(), Vec::new());
        let scanned = index.scan_readable_due(&due_key(1, 0), &due_key(2, 0), &mut skipped, &mut |key, _| {
            assert!(rows.insert((key[0], u16::from_be_bytes([key[8], key[9]]))), "a row is visited once");
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        (rows, skipped)
    };
    let (rows, skipped) = readable(&index);
    assert_eq!(skipped, unreadable);
    assert!(rows.is_superset(&expected) && written.is_superset(&rows) && rows.len() < written.len());

    index.drop_unreadable_due(&|_| false).unwrap();
    assert_eq!(index.unreadable_due().unwrap(), unreadable, "the table stays until its rows are rebuilt");
    index.drop_unreadable_due(&|range| range == &unreadable[0]).unwrap();
    assert_eq!(readable(&index), (rows.clone(), Vec::new()));
    while index.merge_step(Sequence::LATEST).unwrap() {}
    drop(index);
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    assert_eq!(readable(&index), (rows.clone(), Vec::new()));
    let verified = index.verify().await.unwrap();
    assert_eq!((verified.rows[Family::Due as usize], verified.damages), (rows.len() as u64, Vec::<String>::new()));
}

#[tokio::test]
async fn lsm_merge_drops_the_row_versions_that_no_replay_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let key = b"a state";
    let value_at = |index: &LsmIndex, before: u64| index.get(Family::Points, key, at(before)).unwrap();
    {
        let index = LsmIndex::open(dir.path(), &options()).unwrap();
        for entry in 0..12_u64 {
            index.put(Family::Points, key, &entry.to_le_bytes(), at(entry));
            flush(&index).await;
        }
        // A replay would begin with entry 6. The replay must not observe the rows that the first application of entry 6
        // and of later entries wrote.
        while index.merge_step(at(6)).unwrap() {}
        for before in 6..12 {
            assert_eq!(value_at(&index, before).as_deref(), Some(&(before - 1).to_le_bytes()[..]), "before {before}");
        }
        assert!(index.tree(Family::Points).tree.approximate_len() < 12, "versions before the fifth are dropped");
        index.remove(Family::Points, key, at(12));
        flush(&index).await;
        assert_eq!(value_at(&index, 13), None);
    }
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    assert_eq!(value_at(&index, 12).as_deref(), Some(&11_u64.to_le_bytes()[..]));
    for _ in 0..4 {
        index.put(Family::Points, b"another", &[], at(20));
        flush(&index).await;
    }
    while index.merge_step(Sequence::LATEST).unwrap() {}
    assert_eq!(value_at(&index, 100), None);
    assert_eq!(index.verify().await.unwrap().rows[Family::Points as usize], 1);
    assert!(
        index.tree(Family::Points).tree.approximate_len() <= 5,
        "a merge drops a removal with the versions that it hides"
    );
}

#[tokio::test]
async fn lsm_merge_drops_the_removed_rows_that_no_replay_can_read() {
    const ROW: [u8; 400] = [7; 400];
    let dir = tempfile::tempdir().unwrap();
    let key = |number: u16| number.to_be_bytes();
    let read = |index: &LsmIndex, number, before| index.get(Family::Rows, &key(number), before).unwrap();
    let stored = |index: &LsmIndex| index.tree(Family::Rows).tree.approximate_len();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    for round in 0..20_u64 {
        for number in 0..50 {
            let number = u16::try_from(round).unwrap() * 50 + number;
            index.put(Family::Rows, &key(number), &ROW, at(round));
        }
        flush(&index).await;
    }
    // The test removes the first half of the rows, except every tenth row.
    for number in (0..500).filter(|number| number % 10 > 0) {
        index.remove(Family::Rows, &key(number), at(20));
    }
    flush(&index).await;
    let mut entry = 21;
    let mut merge = async |keep_from| {
        for _ in 0..20 {
            index.put(Family::Rows, &key(1_000 + u16::try_from(entry).unwrap()), &ROW, at(entry));
            // A merge includes all tables that overlap with the merged key range. This key is below all other keys, so
            // the merged key range overlaps with every table.
            index.remove(Family::Rows, &[0], at(entry));
            entry += 1;
            flush(&index).await;
        }
        while index.merge_step(keep_from).unwrap() {}
    };
    merge(at(20)).await;
    for number in 0..1_000 {
        assert_eq!(read(&index, number, at(20)).as_deref(), Some(&ROW[..]), "a replay of entry 20 reads {number}");
        let stays = number >= 500 || number % 10 == 0;
        assert_eq!(read(&index, number, at(21)).is_some(), stays, "{number}");
    }
    assert_eq!(scan_all(&index, Family::Rows).unwrap().len(), 550 + 20);
    merge(Sequence::LATEST).await;
    assert_eq!(scan_all(&index, Family::Rows).unwrap().len(), 550 + 40);
    assert!(stored(&index) < 550 + 40 + 60, "{} rows and removals are stored", stored(&index));
    assert_eq!(index.verify().await.unwrap().rows[Family::Rows as usize], 550 + 40);
    drop(index);
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    assert!((0..1_000).all(|number| read(&index, number, at(500)).is_some() == (number >= 500 || number % 10 == 0)));
}

/// The library holds this lock while it writes and syncs a manifest.
#[test]
fn index_reads_and_writes_rows_while_the_library_holds_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    let locks = index.trees.each_ref().map(|tree| tree.tree.get_version_history_lock());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for family in Family::ALL {
                index.put(family, b"key", &[7; 40], at(0));
                assert_eq!(index.get(family, b"key", Sequence::LATEST).unwrap(), Some(Bytes::from(vec![7; 40])));
                assert_eq!(scan_all(&index, family).unwrap().len(), 1);
                assert!(index.unsealed_bytes(family) > 0);
            }
            assert_eq!(index.pressure(), Pressure::default());
            done.send(()).unwrap();
        });
        let waited = is_done.recv_timeout(std::time::Duration::from_secs(20));
        drop(locks);
        waited.expect("a call waits for the lock");
    });
}

#[test]
fn reader_finds_every_row_while_the_index_flushes_and_merges() {
    const ROUNDS: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    let written = AtomicU64::new(0);
    let key = |number: u64| number.to_be_bytes();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                while index.pressure().sealed > 2 {
                    std::thread::yield_now();
                }
                for number in round * 20..(round + 1) * 20 {
                    index.put(Family::Rows, &key(number), &[1; 40], at(number));
                    written.store(number + 1, Ordering::Release);
                }
                index.seal(Family::Rows);
            }
        });
        let merging = scope.spawn(|| {
            let mut merges = 0;
            while written.load(Ordering::Acquire) < ROUNDS * 20 {
                futures_util::FutureExt::now_or_never(index.flush(at(0))).expect("a flush blocks its thread").unwrap();
                merges += u32::from(index.merge_step(at(0)).unwrap());
            }
            merges
        });
        let mut count = 0;
        while count < ROUNDS * 20 {
            count = written.load(Ordering::Acquire);
            for number in (0..count).rev().step_by(7) {
                let found = index.get(Family::Rows, &key(number), Sequence::LATEST).unwrap();
                assert!(found.is_some(), "row {number} of {count} is missing");
            }
            assert!(scan_all(&index, Family::Rows).unwrap().len() as u64 >= count);
        }
        assert!(merging.join().unwrap() > 0, "the index merges tables during the test");
    });
}

#[test]
fn view_taken_while_a_memtable_moves_contains_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    let tree = index.tree(Family::Rows);
    let sealed = || tree.sealed().iter().rev().cloned().collect::<Vec<_>>();
    index.put(Family::Rows, b"key", &[1; 40], at(0));
    let while_sealed = View::of(&tree.tree, || {
        let before = sealed();
        index.seal(Family::Rows);
        before
    });
    let while_flushed = View::of(&tree.tree, || {
        tree.flush().unwrap();
        sealed()
    });
    assert!(sealed().is_empty());
    for view in [while_sealed, while_flushed] {
        assert!(view.get(b"key", Sequence::LATEST.as_u64()).unwrap().is_some());
        assert_eq!(view.scan(b"a", b"z", Sequence::LATEST.as_u64()).count(), 1);
    }
}

/// Early builds removed rows with the removals of the library.
#[test]
fn index_does_not_find_a_row_that_an_early_build_removed() {
    let dir = tempfile::tempdir().unwrap();
    let index = LsmIndex::open(dir.path(), &options()).unwrap();
    index.put(Family::Rows, b"key", &[1; 40], at(0));
    index.tree(Family::Rows).tree.remove(b"key".as_slice(), at(1).as_u64());
    assert_eq!(index.get(Family::Rows, b"key", Sequence::LATEST).unwrap(), None);
    assert!(scan_all(&index, Family::Rows).unwrap().is_empty());
    assert!(index.get(Family::Rows, b"key", at(1)).unwrap().is_some());
}

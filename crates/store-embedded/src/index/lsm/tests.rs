//! Every flipped bit is harmless or told; rows are never fewer, or others, without a word.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;

use super::*;

type Files = BTreeMap<PathBuf, Vec<u8>>;
type Found = Result<Vec<(Vec<u8>, Bytes)>, IndexError>;

fn options() -> Options {
    Options { cache_bytes: 1 << 20, ..Options::default() }
}

fn at(entry: u64) -> Sequence {
    Sequence::new(entry, 0)
}

async fn flush(index: &LsmIndex) {
    Family::ALL.into_iter().for_each(|family| index.seal(family));
    index.flush(at(0)).await.unwrap();
}

/// Two tables in each tree, with a row that the second hides.
async fn fill(dir: &Path) {
    let index = LsmIndex::open(dir, &options()).unwrap();
    for round in 0..2_u64 {
        for family in Family::ALL {
            for number in 0..12_u8 {
                let key = [b"key-".as_slice(), &[round.to_le_bytes()[0], number]].concat();
                index.put(family, &key, &[number; 40], at(round * 100 + u64::from(number)));
            }
            index.put(family, b"hidden", &round.to_le_bytes(), at(round * 100 + 50));
        }
        index.remove(Family::Points, &[b'k', b'e', b'y', b'-', 0, 3], at(round * 100 + 60));
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

/// Every row by a scan and by its key; an error if either tells of damage.
fn read_all(index: &LsmIndex, expected: &[Vec<(Vec<u8>, Bytes)>; 3]) -> Result<(), IndexError> {
    for family in Family::ALL {
        let rows = &expected[family as usize];
        assert_eq!(&scan_all(index, family)?, rows, "a scan of {} has other rows", family.name());
        for (key, value) in rows {
            assert_eq!(index.get(family, key, Sequence::LATEST)?.as_ref(), Some(value), "{}", family.name());
        }
    }
    Ok(())
}

/// One place in so many of a table is tried, in each file another, so that the test takes seconds. Every place of the
/// manifests is.
const TABLE_STRIDE: usize = 5;

#[tokio::test]
async fn a_flipped_bit_is_harmless_to_reads_or_told_and_always_found_by_verify() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let expected = {
        let index = LsmIndex::open(dir.path(), &options()).unwrap();
        assert_eq!(index.verify().await.unwrap().damages, Vec::<String>::new());
        Family::ALL.map(|family| scan_all(&index, family).unwrap())
    };
    assert_eq!(expected.each_ref().map(Vec::len), [25, 25, 24]);
    let mut files = Files::new();
    read_files(dir.path(), &mut files);
    let (mut told, mut harmless) = (0, 0);
    for (number, (path, bytes)) in files.iter().enumerate() {
        let is_table = path.parent().is_some_and(|parent| parent.ends_with("tables"));
        let stride = if is_table { TABLE_STRIDE } else { 1 };
        for place in (number % stride..bytes.len()).step_by(stride) {
            // In place: replacing a file whole makes some file systems sync.
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let flipped = bytes[place] ^ 1 << (place / stride % 8);
            file.write_all_at(&[flipped], place as u64).unwrap();
            let what = format!("{} at {place}", path.display());
            match LsmIndex::open(dir.path(), &options()) {
                Ok(index) => {
                    match read_all(&index, &expected) {
                        Ok(()) => harmless += 1,
                        Err(IndexError::Damaged { .. }) => told += 1,
                        Err(IndexError::Io(error)) => panic!("{what}: {error}"),
                    }
                    let verified = index.verify().await.unwrap();
                    assert!(!verified.damages.is_empty(), "{what} is not found by verify");
                }
                Err(IndexError::Damaged { .. }) => told += 1,
                Err(IndexError::Io(error)) => panic!("{what}: {error}"),
            }
            file.write_all_at(&bytes[place..=place], place as u64).unwrap();
        }
        let mut left = Files::new();
        read_files(dir.path(), &mut left);
        assert_eq!(left, files, "nothing is changed by looking at a damaged tree");
    }
    assert!(told > 500, "{told} flips were told, {harmless} were harmless");
}

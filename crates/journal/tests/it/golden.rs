//! Tests that read a stored journal file of format version 1. The file never changes, but the code that reads it may
//! change.

use std::path::Path;

use journal::{Journal, OpenError};
use runtime::{Runtime, TaskSet};

use crate::support::{read_all, small};

const SEGMENT: &str = "segment-00000000000000000001.journal";

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/v1").join(SEGMENT);
    std::fs::copy(golden, dir.path().join(SEGMENT)).unwrap();
    dir
}

#[tokio::test]
async fn current_build_reads_journal_of_format_1() {
    let (dir, runtime) = (copy(), Runtime::real());
    let tasks = TaskSet::new(&runtime);
    let opened = Journal::<()>::open(&runtime, &tasks, dir.path(), small()).await.unwrap();
    assert_eq!((opened.first, opened.next), (1, 4));
    assert_eq!(opened.journal.id(), 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
    assert_eq!(read_all(&opened.journal, 1).await, [&b"first"[..], b"", b"third"]);
    opened.journal.close().await;
    tasks.join().await;
}

#[tokio::test]
async fn current_build_rejects_a_journal_of_a_later_format_version() {
    let (dir, runtime) = (copy(), Runtime::real());
    let path = dir.path().join(SEGMENT);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[12] = 2;
    let crc = crc32c::crc32c(&bytes[12..64]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let tasks = TaskSet::new(&runtime);
    let rejected = Journal::<()>::open(&runtime, &tasks, dir.path(), small()).await.err().unwrap();
    assert!(matches!(rejected, OpenError::Version { found: 2, .. }), "{rejected}");
}

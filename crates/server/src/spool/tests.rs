use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use runtime::Runtime;

use super::{PushError, Spools};
use crate::Options;

fn spools(runtime: &Runtime, memory_max: usize, files_max: u64) -> Arc<Spools> {
    let options = Options { batch_memory_max: memory_max, batch_files_max: files_max, ..Options::default() };
    Arc::new(Spools::new(runtime, &options))
}

/// Returns `len` bytes that depend on `number`.
fn piece(number: usize, len: usize) -> Bytes {
    (0..len).map(|at| u8::try_from((number * 7 + at) % 251).unwrap()).collect()
}

#[tokio::test]
async fn spool_moves_unread_results_to_a_file_and_returns_them_in_order() {
    let runtime = Runtime::real();
    let spools = spools(&runtime, 1_000, 1 << 20);
    let (writer, reader) = spools.open();
    let mut expected = Vec::new();
    let mut read = Vec::new();
    for round in 0..4 {
        for number in 0..200 {
            let piece = piece(round * 200 + number, 100 + number);
            expected.extend_from_slice(&piece);
            writer.push(piece, false).await.unwrap();
            let queue = reader.shared.queue();
            let in_memory: usize = queue.first.iter().map(Bytes::len).sum();
            assert!(in_memory <= 1_000 && queue.last.is_empty(), "{in_memory} bytes in memory");
        }
        // The reader reads some of the results or all of them before the writer continues.
        let wanted = if round % 2 == 0 { expected.len() } else { expected.len() - 10_000 };
        while read.len() < wanted {
            read.extend_from_slice(&reader.next().await.unwrap().unwrap());
        }
    }
    assert!(!reader.is_drained());
    writer.complete();
    assert_eq!(reader.released().await, Some(expected.len() as u64));
    drop(writer);
    while let Some(results) = reader.next().await {
        read.extend_from_slice(&results.unwrap());
    }
    assert!(read == expected && reader.is_drained());
    assert!(spools.files.load(Ordering::Relaxed) > 0);
    drop(reader);
    assert_eq!(spools.files.load(Ordering::Relaxed), 0, "the space of the file is free again");
}

#[tokio::test]
async fn writer_waits_for_the_reader_while_the_spool_files_are_full() {
    let runtime = Runtime::real();
    let spools = spools(&runtime, 100, 250);
    let (writer, reader) = spools.open();
    for number in 0..3 {
        writer.push(piece(number, 100), false).await.unwrap();
    }
    let mut push = std::pin::pin!(writer.push(piece(3, 100), false));
    let wait = std::time::Duration::from_millis(50);
    assert!(runtime.timeout(wait, push.as_mut()).await.is_none(), "the files are full");
    let mut read = Vec::new();
    while read.len() < 300 {
        read.extend_from_slice(&reader.next().await.unwrap().unwrap());
    }
    push.await.unwrap();
    read.extend_from_slice(&reader.next().await.unwrap().unwrap());
    let expected: Vec<u8> = (0..4).flat_map(|number| piece(number, 100)).collect();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn failed_write_loses_no_results() {
    let runtime = Runtime::real();
    let options = Options { batch_memory_max: 100, batch_folder: "/nonexistent".into(), ..Options::default() };
    let (writer, reader) = Arc::new(Spools::new(&runtime, &options)).open();
    writer.push(piece(0, 100), false).await.unwrap();
    assert!(matches!(writer.push(piece(1, 100), false).await, Err(PushError::Unwritable(_))));
    writer.push(piece(2, 100), false).await.unwrap();
    writer.complete();
    drop(writer);
    for number in 0..3 {
        assert_eq!(reader.next().await.unwrap().unwrap(), piece(number, 100));
    }
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn spool_writes_no_file_while_the_disk_is_full() {
    let spools = spools(&Runtime::real(), 100, 1 << 20);
    let (writer, reader) = spools.open();
    writer.push(piece(0, 100), true).await.unwrap();
    assert!(matches!(writer.push(piece(1, 100), true).await, Err(PushError::Unwritable(_))));
    assert!(reader.shared.queue().file.is_none(), "the spool has no file");
    writer.complete();
    for number in 0..2 {
        assert_eq!(reader.next().await.unwrap().unwrap(), piece(number, 100));
    }
}

#[tokio::test]
async fn reader_receives_an_error_if_the_writer_stops_early() {
    let (writer, reader) = spools(&Runtime::real(), 100, 100).open();
    writer.push(piece(0, 10), false).await.unwrap();
    drop(writer);
    assert_eq!(reader.released().await, None);
    assert_eq!(reader.next().await.unwrap().unwrap(), piece(0, 10));
    assert!(reader.next().await.unwrap().is_err());

    let (writer, reader) = spools(&Runtime::real(), 100, 100).open();
    drop(reader);
    assert!(matches!(writer.push(piece(0, 10), false).await, Err(PushError::ReaderGone)));
}

//! Task that prepares the next segment for the writer, recycles released segments, and writes proofs while the writer
//! is idle. The task is separate from the writer, so the writer waits neither for the allocation nor for the renaming
//! of a file, nor for a proof. The task also verifies the lock of the folder once per second and before it changes a
//! file.
//!
//! Invariants: a file has a segment's name only while its header is the durable header of that segment. The task
//! removes the name of the oldest segment first, and makes this removal durable before it removes the next name. A
//! crash therefore leaves no gap between the segments, and no incomplete segment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use runtime::{Disk, DiskFile, OpenMode};

use crate::error::is_full;
use crate::format::{BLOCK, HEADER_BYTES, SegmentHeader, is_record_start, to_usize};
use crate::lock::FolderLock;
use crate::proof::{self, ProofFile};
use crate::segment::Segment;
use crate::shared::Shared;

/// Time after which the keeper tries again to prepare a segment on a full disk, unless another event wakes it earlier.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// Period after which an idle keeper verifies the lock of the folder again.
const VERIFY_PERIOD: Duration = Duration::from_secs(1);

/// Length of the end of a reused file in which the keeper searches for a record. A full segment ends with a record.
const FILLED_SEARCH_BYTES: u64 = 1 << 20;

const SEGMENT_PREFIX: &str = "segment-";
/// Name prefix of a file that was a segment. The file's length and its blocks are durable.
const SPARE_PREFIX: &str = "spare-";
/// Name prefix of a file that the task is creating. After a restart the journal removes such a file, because its syncs
/// may have failed.
const FRESH_PREFIX: &str = "fresh-";
const SUFFIX: &str = ".journal";

pub(crate) async fn run(shared: &Shared, lock: &FolderLock, mut proof: Option<ProofFile>) {
    loop {
        let (closing, is_segment_missing, proven_below) = {
            let state = shared.state();
            (state.closing, state.ready.is_empty(), state.proven_below)
        };
        if let Some(proof) = &mut proof
            && let Err(error) = proof.write(proven_below).await
        {
            let path = proof::path(&shared.dir);
            shared.runtime.halt(&format!("the journal cannot write or sync {}: {error}", path.display())).await;
        }
        if closing {
            return;
        }
        // This check also covers an idle keeper, which changes no file.
        lock.verify().await;
        if let Err(error) = recycle_released(shared, lock).await {
            shared.runtime.halt(&format!("the journal cannot delete or reuse a released segment: {error}")).await;
        }
        if !is_segment_missing {
            let _timed_out = shared.runtime.timeout(VERIFY_PERIOD, shared.keeper_wake.notified()).await;
            continue;
        }
        match prepare_next(shared, lock).await {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                let _timed_out = shared.runtime.timeout(FULL_RETRY, shared.keeper_wake.notified()).await;
            }
            Err(error) => shared.runtime.halt(&format!("the journal cannot prepare a new segment: {error}")).await,
        }
    }
}

pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{SEGMENT_PREFIX}{number:020}{SUFFIX}"))
}

pub(crate) fn segment_number(name: &str) -> Option<u64> {
    numbered(name, SEGMENT_PREFIX)
}

pub(crate) fn spare_number(name: &str) -> Option<u64> {
    numbered(name, SPARE_PREFIX)
}

pub(crate) fn fresh_number(name: &str) -> Option<u64> {
    numbered(name, FRESH_PREFIX)
}

pub(crate) fn fresh_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{FRESH_PREFIX}{number:020}{SUFFIX}"))
}

fn numbered(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(SUFFIX)?;
    if digits.len() != 20 { None } else { digits.parse().ok() }
}

async fn recycle_released(shared: &Shared, lock: &FolderLock) -> io::Result<()> {
    loop {
        let (segment, spare) = {
            let mut state = shared.state();
            let Some(segment) = state.remove_oldest() else { return Ok(()) };
            (segment, spare_path(&shared.dir, state.name_file()))
        };
        let recycle = segment.length == shared.options.segment_bytes
            && shared.state().spares.len() < shared.options.spare_segments_max;
        lock.verify().await;
        if recycle {
            shared.disk.rename(&segment.path, &spare).await?;
        } else {
            shared.disk.remove(&segment.path).await?;
        }
        shared.disk.sync_dir(&shared.dir).await?;
        if recycle {
            shared.state().spares.push(spare);
        }
    }
}

pub(crate) fn spare_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{SPARE_PREFIX}{number:020}{SUFFIX}"))
}

async fn prepare_next(shared: &Shared, lock: &FolderLock) -> io::Result<()> {
    let (number, synced_below, spare, fresh) = {
        let mut state = shared.state();
        let fresh = fresh_path(&shared.dir, state.name_file());
        (state.number_last() + 1, state.next, state.spares.pop(), fresh)
    };
    let header = SegmentHeader {
        journal_id: shared.journal_id,
        number,
        salt: shared.runtime.random(),
        synced_below,
        length: shared.options.segment_bytes,
        filled: 0,
    };
    let prepared = prepare(&*shared.disk, lock, &shared.dir, &header, spare, &fresh).await;
    let mut state = shared.state();
    state.is_disk_full = prepared.as_ref().is_err_and(is_full);
    let outcome = prepared.map(|segment| state.ready.push_back(Arc::new(segment)));
    drop(state);
    shared.segment_ready.notify_one();
    outcome
}

/// Prepares a segment from the file `spare`, or from a new file if `spare` is `None`. The new file has the name `fresh`
/// until the segment is complete.
pub(crate) async fn prepare(
    disk: &dyn Disk,
    lock: &FolderLock,
    dir: &Path,
    header: &SegmentHeader,
    spare: Option<PathBuf>,
    fresh: &Path,
) -> io::Result<Segment> {
    let from = spare.as_deref().unwrap_or(fresh);
    let prepared = prepare_from(disk, lock, dir, header, from, spare.is_none()).await;
    if prepared.as_ref().is_err_and(is_full) {
        lock.verify().await;
        // The task removes the allocated file, because the file would occupy the little space that is left. If the file
        // already has the segment's name, the removal fails. The next attempt then replaces this file.
        let _removed = disk.remove(from).await;
    }
    prepared
}

async fn prepare_from(
    disk: &dyn Disk,
    lock: &FolderLock,
    dir: &Path,
    header: &SegmentHeader,
    from: &Path,
    new: bool,
) -> io::Result<Segment> {
    let file = disk.open(from, if new { OpenMode::CreateNew } else { OpenMode::ReadWrite }).await?;
    let mut header = *header;
    if new {
        file.allocate(header.length).await?;
    } else {
        header.filled = 0;
        if let Some((at, start)) = last_record_start(&*file, header.length).await? {
            header.filled = at;
            // After a failed sync, the cache of the operating system may contain a record that the disk lacks. The
            // header must name only a block that is durable, so the keeper writes the start of the record again.
            file.write_at(at, &start).await?;
        }
    }
    let mut block = vec![0; to_usize(BLOCK)];
    block[..HEADER_BYTES].copy_from_slice(&header.encode());
    file.write_at(0, &block).await?;
    file.sync_data().await?;
    let path = segment_path(dir, header.number);
    // The allocation may have taken seconds. Another process that now owns the folder may have a file of this name.
    lock.verify().await;
    disk.rename(from, &path).await?;
    disk.sync_dir(dir).await?;
    Ok(Segment {
        number: header.number,
        path,
        file,
        length: header.length,
        salt: header.salt,
        synced_below: header.synced_below,
        filled: header.filled,
    })
}

/// Returns the last block of the file that starts like a record, and its offset. Returns `None` if the end of the file
/// contains no such block.
async fn last_record_start(file: &dyn DiskFile, length: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let from = length.saturating_sub(FILLED_SEARCH_BYTES).max(BLOCK);
    let mut end = vec![0; to_usize(length - from)];
    file.read_at(from, &mut end).await?;
    let mut blocks = end.chunks(to_usize(BLOCK)).enumerate();
    let last = blocks.rfind(|(_, block)| is_record_start(block));
    Ok(last.map(|(index, block)| (from + index as u64 * BLOCK, block.to_vec())))
}

//! Keeps a segment ready for the writer, and takes back those that nobody needs: on a task of its own, so that the
//! writer waits for neither zeroing nor renaming.
//!
//! Always true here: a file has a segment's name only while its header is the durable one of that segment; segments
//! lose their names oldest first, each durably before the next. So a crash leaves no gap and no half-made segment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use runtime::{Disk, OpenMode};

use crate::format::{BLOCK, HEADER_BYTES, SegmentHeader, to_usize};
use crate::segment::Segment;
use crate::shared::Shared;

/// How often a full disk is tried again when nobody says that there is room.
const FULL_RETRY: Duration = Duration::from_secs(1);

const SEGMENT_PREFIX: &str = "segment-";
/// Was a segment, so that its length and its blocks are durable.
const SPARE_PREFIX: &str = "spare-";
/// Is being made; of no use if nobody remembers that all its syncs went well.
const FRESH_PREFIX: &str = "fresh-";
const SUFFIX: &str = ".journal";

pub(crate) async fn run(shared: &Shared) {
    loop {
        let (closing, lacking) = {
            let book = shared.book();
            (book.closing, book.ready.is_empty())
        };
        if closing {
            return;
        }
        if let Err(error) = take_back(shared).await {
            shared.runtime.halt(&format!("the journal cannot recycle a segment: {error}")).await;
        }
        if !lacking {
            shared.keep.notified().await;
            continue;
        }
        match prepare_next(shared).await {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                let _woken = shared.runtime.timeout(FULL_RETRY, shared.keep.notified()).await;
            }
            Err(error) => shared.runtime.halt(&format!("the journal cannot prepare a segment: {error}")).await,
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

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

async fn take_back(shared: &Shared) -> io::Result<()> {
    loop {
        let (segment, spare) = {
            let mut book = shared.book();
            let Some(segment) = book.let_go() else { return Ok(()) };
            (segment, spare_path(&shared.dir, book.name_file()))
        };
        let recycle = segment.length == shared.options.segment_bytes
            && shared.book().spares.len() < shared.options.spare_segments_max;
        if recycle {
            shared.disk.rename(&segment.path, &spare).await?;
        } else {
            shared.disk.remove(&segment.path).await?;
        }
        shared.disk.sync_dir(&shared.dir).await?;
        if recycle {
            shared.book().spares.push(spare);
        }
    }
}

pub(crate) fn spare_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{SPARE_PREFIX}{number:020}{SUFFIX}"))
}

async fn prepare_next(shared: &Shared) -> io::Result<()> {
    let (number, synced_below, spare, fresh) = {
        let mut book = shared.book();
        let fresh = fresh_path(&shared.dir, book.name_file());
        (book.number_last() + 1, book.next, book.spares.pop(), fresh)
    };
    let header = SegmentHeader {
        journal_id: shared.journal_id,
        number,
        salt: shared.runtime.random(),
        synced_below,
        length: shared.options.segment_bytes,
    };
    let prepared = prepare(&*shared.disk, &shared.dir, &header, spare, &fresh).await;
    let mut book = shared.book();
    book.no_room = prepared.as_ref().is_err_and(is_full);
    let outcome = prepared.map(|segment| book.ready.push_back(Arc::new(segment)));
    drop(book);
    shared.turned.notify_one();
    outcome
}

/// Makes a segment of `spare`, or of a new file, which is called `fresh` until it is one.
pub(crate) async fn prepare(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    spare: Option<PathBuf>,
    fresh: &Path,
) -> io::Result<Segment> {
    let from = spare.as_deref().unwrap_or(fresh);
    let prepared = prepare_from(disk, dir, header, from, spare.is_none()).await;
    if prepared.as_ref().is_err_and(is_full) {
        // What was allocated would keep others from the little room that is left. It may have its new name already:
        // the next attempt then takes that name over.
        let _removed = disk.remove(from).await;
    }
    prepared
}

async fn prepare_from(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    from: &Path,
    new: bool,
) -> io::Result<Segment> {
    let file = disk.open(from, if new { OpenMode::CreateNew } else { OpenMode::ReadWrite }).await?;
    if new {
        file.allocate(header.length).await?;
    }
    let mut block = vec![0; to_usize(BLOCK)];
    block[..HEADER_BYTES].copy_from_slice(&header.encode());
    file.write_at(0, &block).await?;
    file.sync_data().await?;
    let path = segment_path(dir, header.number);
    disk.rename(from, &path).await?;
    disk.sync_dir(dir).await?;
    Ok(Segment {
        number: header.number,
        path,
        file,
        length: header.length,
        salt: header.salt,
        synced_below: header.synced_below,
    })
}

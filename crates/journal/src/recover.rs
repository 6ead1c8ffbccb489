//! Recovery of a journal from its folder. It distinguishes whole entries, an unfinished last record, and damage.
//!
//! A valid header states the index up to which entries were durable when the journal wrote the header. So does a proof
//! outside of the segments. Let E be the highest of these indexes. Recovery reads records from the oldest on, while the records are whole and
//! their indexes are consecutive. If these records reach E, recovery drops all later records, because the journal never
//! reported them as durable. If they do not reach E, a durable entry is lost, and recovery fails with an error that
//! names the place of the damage and the indexes of the lost entries. Recovery changes no file before it knows whether
//! a durable entry is lost.
//!
//! Invariant: the journal returns an entry only after this process has synced it. After a failed sync, Linux may return
//! bytes from its cache that are not on disk and that another sync would not write. Recovery therefore writes and syncs
//! an entry again if no header proves that the entry is durable.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::{Disk, OpenMode};

use crate::error::io_error;
use crate::format::{
    BLOCK, HEADER_BYTES, Proof, RecordBuffer, RecordHeader, SegmentHeader, SegmentHeaderError, to_usize,
};
use crate::keeper::{fresh_number, segment_number, segment_path, spare_number};
use crate::segment::Segment;
use crate::shared::LiveSegment;
use crate::{Damage, OpenError};

/// Files in a journal's folder.
pub(crate) struct Listing {
    /// Segment numbers, ascending.
    pub(crate) segments: Vec<u64>,
    pub(crate) spares: Vec<PathBuf>,
    /// Files whose creation the keeper has not completed.
    pub(crate) fresh: Vec<PathBuf>,
    /// Upper bound of the numbers in the names of spare and fresh files.
    pub(crate) files_named: u64,
}

pub(crate) struct Recovered {
    pub(crate) journal_id: u128,
    pub(crate) live: VecDeque<LiveSegment>,
    pub(crate) ready: VecDeque<Arc<Segment>>,
    pub(crate) next: u64,
    /// True if a header in the journal proves that every entry is durable.
    pub(crate) proven: bool,
}

pub(crate) async fn list(disk: &dyn Disk, dir: &Path) -> Result<Listing, OpenError> {
    let names = disk.list(dir).await.map_err(io_error("list", dir))?;
    let mut listing = Listing { segments: Vec::new(), spares: Vec::new(), fresh: Vec::new(), files_named: 0 };
    for name in &names {
        if let Some(number) = segment_number(name) {
            listing.segments.push(number);
        } else if let Some(number) = spare_number(name) {
            listing.files_named = listing.files_named.max(number);
            listing.spares.push(dir.join(name));
        } else if let Some(number) = fresh_number(name) {
            listing.files_named = listing.files_named.max(number);
            listing.fresh.push(dir.join(name));
        }
    }
    listing.segments.sort_unstable();
    Ok(listing)
}

/// Recovers the segments with the given numbers. `numbers` must be ascending and not empty. `proofs` are the proofs that
/// the journal wrote outside of its segments. `record_bytes_max` is the maximum length of a record.
pub(crate) async fn recover(
    disk: &dyn Disk,
    dir: &Path,
    numbers: &[u64],
    proofs: &[Proof],
    record_bytes_max: u64,
) -> Result<Recovered, OpenError> {
    let mut walk = Walk::new(numbers[0], record_bytes_max);
    let mut expected = numbers[0];
    for &number in numbers {
        if number != expected {
            walk.lost(segment_path(dir, expected), 0, "the file is missing", true, None);
        }
        walk.segment(disk, segment_path(dir, number), number).await?;
        expected = number + 1;
    }
    for proof in proofs {
        if walk.journal_id == Some(proof.journal_id) {
            walk.add_evidence(proof.synced_below);
        }
    }
    walk.check_loss(segment_path(dir, expected))?;
    walk.repair().await?;
    disk.sync_dir(dir).await.map_err(io_error("sync", dir))?;

    let mut live = walk.live;
    let begun = live.iter().rposition(|live| live.end_offset > BLOCK).unwrap_or(0);
    let ready = live.split_off(begun + 1).into_iter().map(|live| live.segment).collect();
    let journal_id = walk.journal_id.expect("a successful recovery has read at least one segment");
    Ok(Recovered { journal_id, live, ready, next: walk.next, proven: walk.evidence >= walk.next })
}

/// First place in the journal where the expected record is missing.
struct Defect {
    segment: PathBuf,
    offset: u64,
    what: &'static str,
    /// True if recovery knows that the missing record was durable, even without a header that proves it.
    certainly_lost: bool,
    /// Index of the first entry after the missing records; `None` if recovery has found no later record.
    resumes_at: Option<u64>,
}

struct Walk {
    record_bytes_max: u64,
    journal_id: Option<u128>,
    live: VecDeque<LiveSegment>,
    defect: Option<Defect>,
    /// Index below which all entries were durable, according to a valid header.
    evidence: u64,
    /// Index of the entry that recovery expects next. While `anchored` is false, the value is only a lower bound of the
    /// index.
    next: u64,
    /// True once recovery knows the index of the first retained entry. If the oldest segment is the journal's first
    /// segment, this index is 1. Otherwise, the first record of the oldest segment contains the index.
    anchored: bool,
    /// Whole records for which recovery has not yet read a header that proves them durable.
    unproven: Vec<(Arc<Segment>, RecordHeader)>,
}

impl Walk {
    fn new(number_first: u64, record_bytes_max: u64) -> Self {
        Walk {
            record_bytes_max,
            journal_id: None,
            live: VecDeque::new(),
            defect: None,
            evidence: 1,
            next: 1,
            anchored: number_first == 1,
            unproven: Vec::new(),
        }
    }

    async fn segment(&mut self, disk: &dyn Disk, path: PathBuf, number: u64) -> Result<(), OpenError> {
        let (segment, journal_id) = match open_segment(disk, &path, number).await? {
            Ok(opened) => opened,
            Err(what) => {
                self.lost(path, 0, what, true, None);
                return Ok(());
            }
        };
        if *self.journal_id.get_or_insert(journal_id) != journal_id {
            self.lost(path, 0, "the segment belongs to another journal", true, None);
            return Ok(());
        }
        self.add_evidence(segment.synced_below);
        if !self.anchored && self.defect.is_none() {
            self.next = segment.synced_below;
        }
        let segment = Arc::new(segment);
        self.live.push_back(LiveSegment { segment: segment.clone(), first_index: self.next, end_offset: BLOCK });
        let mut offset = BLOCK;
        while let Some(header) = segment.next_header(offset).await.map_err(io_error("read", &path))? {
            offset = self.record(&segment, offset, &header).await.map_err(io_error("read", &path))?;
        }
        if !self.anchored {
            // The keeper removed the older segments only after this segment had a durable record. Recovery found no
            // such record, so the record is lost.
            self.lost(path.clone(), BLOCK, "the segment's first record is corrupt", true, None);
        }
        let end = self.live.back().map_or(BLOCK, |live| live.end_offset);
        let lacks_bytes = segment.lacks_earlier_bytes(end, self.record_bytes_max).await;
        if lacks_bytes.map_err(io_error("read", &path))? {
            // The lost bytes are beyond an unfinished record, so no crash explains the loss.
            self.lost(path, end, "bytes that were durable are missing after the last record", true, None);
        }
        Ok(())
    }

    /// Accepts the record if its first entry is the entry that recovery expects next. `expected` is the offset at which
    /// the previous record ended. Returns the offset at which the search for the next record continues.
    async fn record(&mut self, segment: &Arc<Segment>, expected: u64, header: &RecordHeader) -> io::Result<u64> {
        self.add_evidence(header.synced_below);
        // Recovery does not trust the length of a record that follows a corrupt record.
        let continue_at = header.offset + BLOCK;
        if let Some(defect) = &mut self.defect {
            if defect.resumes_at.is_none() && header.first_index > self.next {
                defect.resumes_at = Some(header.first_index);
            }
            return Ok(continue_at);
        }
        let path = &segment.path;
        if !self.anchored && header.offset != BLOCK {
            let what = "the segment's first record is corrupt";
            self.lost(path.clone(), BLOCK, what, true, Some(header.first_index));
            return Ok(continue_at);
        }
        if self.anchored && header.first_index > self.next {
            let (path, offset) = self.gap_before(header, path, expected);
            let what = "a record is corrupt";
            self.lost(path, offset, what, false, Some(header.first_index));
            return Ok(continue_at);
        }
        let whole = segment.body(header).await?.is_some();
        if header.first_index < self.next {
            if whole {
                let what = "a record has the same entry indexes as an earlier record";
                self.lost(path.clone(), header.offset, what, true, None);
            }
            // An incomplete record is the rest of an unfinished write. An earlier recovery of the journal dropped this
            // record.
            return Ok(continue_at);
        }
        let live = self.live.back_mut().expect("the caller has added the record's segment to the live segments");
        if !whole {
            live.end_offset = header.offset;
            let what = "a record's entries are corrupt";
            self.lost(path.clone(), header.offset, what, !self.anchored, Some(header.end_index()));
            return Ok(continue_at);
        }
        if header.offset != expected {
            tracing::warn!(segment = %path.display(), offset = expected, "ignored a damaged block without entries");
        }
        if !self.anchored {
            live.first_index = header.first_index;
            self.anchored = true;
        }
        live.end_offset = header.end_offset();
        self.next = header.end_index();
        if self.next > self.evidence {
            self.unproven.push((segment.clone(), *header));
        }
        Ok(header.end_offset())
    }

    /// Returns the segment and the offset of the missing records before `header`. Recovery expected the next record at
    /// the offset `expected` of the segment at `path`.
    fn gap_before(&self, header: &RecordHeader, path: &Path, expected: u64) -> (PathBuf, u64) {
        // If `header` is at the start of its segment, the missing records belong to the end of the previous segment.
        let before = self.live.iter().rev().nth(1).filter(|_| header.offset == BLOCK);
        before.map_or((path.to_owned(), expected), |live| (live.segment.path.clone(), live.end_offset))
    }

    fn add_evidence(&mut self, synced_below: u64) {
        self.evidence = self.evidence.max(synced_below);
        self.unproven.retain(|(_, header)| header.end_index() > synced_below);
    }

    fn lost(&mut self, segment: PathBuf, offset: u64, what: &'static str, certainly: bool, resumes_at: Option<u64>) {
        match &mut self.defect {
            None => self.defect = Some(Defect { segment, offset, what, certainly_lost: certainly, resumes_at }),
            Some(defect) => defect.certainly_lost |= certainly,
        }
    }

    /// Returns an error if a durable entry is lost. `after` is the path of the segment that would follow the last
    /// segment.
    fn check_loss(&self, after: PathBuf) -> Result<(), Damage> {
        let short = self.evidence > self.next;
        let evidence = short.then_some(self.evidence);
        match &self.defect {
            Some(defect) if defect.certainly_lost || short => Err(Damage {
                segment: defect.segment.clone(),
                offset: defect.offset,
                first_index: self.next,
                end_index: defect.resumes_at.or(evidence).filter(|end| *end > self.next),
                what: defect.what,
            }),
            None if short => {
                let last = self.live.iter().rev().find(|live| live.end_offset > BLOCK).or(self.live.front());
                Err(Damage {
                    segment: last.map_or(after, |live| live.segment.path.clone()),
                    offset: last.map_or(0, |live| live.end_offset),
                    first_index: self.next,
                    end_index: evidence,
                    what: "records are missing",
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Makes the found entries durable, and writes a marker over an unfinished record. The unfinished record therefore
    /// cannot affect later records.
    async fn repair(&mut self) -> Result<(), OpenError> {
        for (segment, header) in &self.unproven {
            write_again(segment, header).await.map_err(io_error("write", &segment.path))?;
        }
        let Some(defect) = &self.defect else { return Ok(()) };
        tracing::warn!(
            segment = %defect.segment.display(), offset = defect.offset, next = self.next,
            "dropped an incomplete last record; a crash leaves such a record if the journal had not reported it as durable, \
             but the loss of durable bytes has the same effect"
        );
        // Recovery writes a marker over the dropped record. Otherwise, if the writer put the next record into another
        // segment, a later recovery would treat the dropped record as a lost record.
        let Some(live) = self.live.iter_mut().find(|live| live.segment.path == defect.segment) else { return Ok(()) };
        if live.end_offset == BLOCK {
            return Ok(());
        }
        let mut buffer = RecordBuffer::default();
        buffer.begin();
        let marker = buffer.finish(live.segment.salt, live.end_offset, self.next, self.next);
        write_and_sync(&live.segment, live.end_offset, marker).await.map_err(io_error("write", &live.segment.path))?;
        live.end_offset += marker.len() as u64;
        self.evidence = self.next;
        Ok(())
    }
}

/// Opens a segment. If the file is damaged, the inner result contains a description of the damage.
async fn open_segment(
    disk: &dyn Disk,
    path: &Path,
    number: u64,
) -> Result<Result<(Segment, u128), &'static str>, OpenError> {
    let file = disk.open(path, OpenMode::ReadWrite).await.map_err(io_error("open", path))?;
    let present = file.len().await.map_err(io_error("measure", path))?;
    let mut bytes = [0; HEADER_BYTES];
    if present < BLOCK {
        return Ok(Err("the file is too short to be a segment"));
    }
    file.read_at(0, &mut bytes).await.map_err(io_error("read", path))?;
    let header = match SegmentHeader::decode(&bytes) {
        Ok(header) => header,
        Err(SegmentHeaderError::Damaged) => return Ok(Err("the segment's header is corrupt")),
        Err(SegmentHeaderError::Version(found)) => return Err(OpenError::Version { segment: path.to_owned(), found }),
    };
    if header.number != number {
        return Ok(Err("the segment number in the file's header differs from the number in the file's name"));
    }
    if present < header.length {
        return Ok(Err("the file is shorter than the length in its header"));
    }
    let SegmentHeader { journal_id, salt, synced_below, length, filled, .. } = header;
    Ok(Ok((Segment { number, path: path.to_owned(), file, length, salt, synced_below, filled }, journal_id)))
}

async fn write_again(segment: &Segment, header: &RecordHeader) -> io::Result<()> {
    let mut record = vec![0; to_usize(header.end_offset() - header.offset)];
    segment.file.read_at(header.offset, &mut record).await?;
    write_and_sync(segment, header.offset, &record).await
}

async fn write_and_sync(segment: &Segment, offset: u64, bytes: &[u8]) -> io::Result<()> {
    segment.file.write_at(offset, bytes).await?;
    segment.file.sync_data().await
}

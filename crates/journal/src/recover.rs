//! What a folder holds, told apart: entries that are whole, a last record that was never finished, and damage.
//!
//! The rule. Let E be the highest index that any valid header in any segment says was durable when it was written.
//! Records are followed from the oldest on for as long as they are whole and their indexes follow each other. If they
//! reach E, whatever comes after was never told to anyone and is dropped. If they do not, something that was durable
//! is gone: that is damage, and refused with the place and the indexes. Nothing on disk is changed before this is known.
//!
//! Always true here: an entry is given out only after it was synced by this process, too. After a failed sync, Linux
//! may show bytes from its cache that are on no disk and that another sync would not write, so what no header vouches
//! for is first written again.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::{Disk, OpenMode};

use crate::format::{BLOCK, HEADER_BYTES, RecordBuffer, RecordHeader, SegmentHeader, SegmentHeaderError, to_usize};
use crate::keeper::{fresh_number, segment_number, segment_path, spare_number};
use crate::segment::Segment;
use crate::shared::Held;
use crate::{Damage, OpenError};

/// What is in a journal's folder.
pub(crate) struct Listing {
    /// Ascending.
    pub(crate) segments: Vec<u64>,
    pub(crate) spares: Vec<PathBuf>,
    /// Files that nobody finished making.
    pub(crate) fresh: Vec<PathBuf>,
    /// At least the highest number in the name of a spare or fresh file.
    pub(crate) files_named: u64,
}

pub(crate) struct Recovered {
    pub(crate) journal_id: u128,
    pub(crate) held: VecDeque<Held>,
    pub(crate) ready: VecDeque<Arc<Segment>>,
    pub(crate) next: u64,
    /// A header in the journal vouches for every entry.
    pub(crate) marked: bool,
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

/// `numbers` must be ascending, and not empty.
pub(crate) async fn recover(disk: &dyn Disk, dir: &Path, numbers: &[u64]) -> Result<Recovered, OpenError> {
    let mut walk = Walk::new(numbers[0]);
    let mut expected = numbers[0];
    for &number in numbers {
        if number != expected {
            walk.lost(segment_path(dir, expected), 0, "the file is missing", true, None);
        }
        walk.segment(disk, segment_path(dir, number), number).await?;
        expected = number + 1;
    }
    walk.judge(segment_path(dir, expected))?;
    walk.settle().await?;
    disk.sync_dir(dir).await.map_err(io_error("sync", dir))?;

    let mut held = walk.held;
    let begun = held.iter().rposition(|held| held.end_offset > BLOCK).unwrap_or(0);
    let ready = held.split_off(begun + 1).into_iter().map(|held| held.segment).collect();
    let journal_id = walk.journal_id.expect("a segment was read, or it was damage");
    Ok(Recovered { journal_id, held, ready, next: walk.next, marked: walk.evidence >= walk.next })
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}

/// The first place where what was expected is not.
struct Bad {
    segment: PathBuf,
    offset: u64,
    what: &'static str,
    /// It was durable, whatever the records say.
    surely_lost: bool,
    /// The first index after what is missing here.
    resumes_at: Option<u64>,
}

struct Walk {
    journal_id: Option<u128>,
    held: VecDeque<Held>,
    bad: Option<Bad>,
    /// Entries below this were durable, as some valid header says.
    evidence: u64,
    /// The index expected next. While not `anchored`, the least that it can be.
    next: u64,
    /// Where the indexes begin is known: with the first segment of all, or the first record of the oldest one held.
    anchored: bool,
    /// Whole records that no header read so far vouches for.
    unproven: Vec<(Arc<Segment>, RecordHeader)>,
}

impl Walk {
    fn new(number_first: u64) -> Self {
        Walk {
            journal_id: None,
            held: VecDeque::new(),
            bad: None,
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
            self.lost(path, 0, "it belongs to another journal", true, None);
            return Ok(());
        }
        self.vouched(segment.synced_below);
        if !self.anchored && self.bad.is_none() {
            self.next = segment.synced_below;
        }
        let segment = Arc::new(segment);
        self.held.push_back(Held { segment: segment.clone(), first_index: self.next, end_offset: BLOCK });
        let mut offset = BLOCK;
        while let Some(header) = segment.next_header(offset).await.map_err(io_error("read", &path))? {
            offset = self.record(&segment, offset, &header).await.map_err(io_error("read", &path))?;
        }
        if !self.anchored {
            // An older segment is let go only when this one holds a durable record.
            self.lost(path, BLOCK, "its first record is not what was written", true, None);
        }
        Ok(())
    }

    /// Takes the record if it goes on where the last one ended; it was expected at `expected`. Says where to look on.
    async fn record(&mut self, segment: &Arc<Segment>, expected: u64, header: &RecordHeader) -> io::Result<u64> {
        self.vouched(header.synced_below);
        // Past a bad record its length is not to be trusted either.
        let look_on = header.offset + BLOCK;
        if let Some(bad) = &mut self.bad {
            if bad.resumes_at.is_none() && header.first_index > self.next {
                bad.resumes_at = Some(header.first_index);
            }
            return Ok(look_on);
        }
        let path = &segment.path;
        if !self.anchored && header.offset != BLOCK {
            let what = "its first record is not what was written";
            self.lost(path.clone(), BLOCK, what, true, Some(header.first_index));
            return Ok(look_on);
        }
        if self.anchored && header.first_index > self.next {
            let (path, offset) = self.gap_before(header, path, expected);
            let what = "a record is not what was written";
            self.lost(path, offset, what, false, Some(header.first_index));
            return Ok(look_on);
        }
        let whole = segment.body(header).await?.is_some();
        if header.first_index < self.next {
            if whole {
                self.lost(path.clone(), header.offset, "a record repeats indexes of an earlier one", true, None);
            }
            // Otherwise it is what remains of an unfinished write that an earlier start dropped.
            return Ok(look_on);
        }
        let held = self.held.back_mut().expect("its segment was just added");
        if !whole {
            held.end_offset = header.offset;
            let what = "a record's entries are not what was written";
            self.lost(path.clone(), header.offset, what, !self.anchored, Some(header.end_index()));
            return Ok(look_on);
        }
        if header.offset != expected {
            tracing::warn!(segment = %path.display(), offset = expected, "a damaged block held no entries; going on");
        }
        if !self.anchored {
            held.first_index = header.first_index;
            self.anchored = true;
        }
        held.end_offset = header.end_offset();
        self.next = header.end_index();
        if self.next > self.evidence {
            self.unproven.push((segment.clone(), *header));
        }
        Ok(header.end_offset())
    }

    /// Where what is missing before `header` was; it was expected at `expected` of the segment at `path`.
    fn gap_before(&self, header: &RecordHeader, path: &Path, expected: u64) -> (PathBuf, u64) {
        // With nothing missing in front of it there, the end of the segment before is.
        let before = self.held.iter().rev().nth(1).filter(|_| header.offset == BLOCK);
        before.map_or((path.to_owned(), expected), |held| (held.segment.path.clone(), held.end_offset))
    }

    fn vouched(&mut self, synced_below: u64) {
        self.evidence = self.evidence.max(synced_below);
        self.unproven.retain(|(_, header)| header.end_index() > synced_below);
    }

    fn lost(&mut self, segment: PathBuf, offset: u64, what: &'static str, surely: bool, resumes_at: Option<u64>) {
        match &mut self.bad {
            None => self.bad = Some(Bad { segment, offset, what, surely_lost: surely, resumes_at }),
            Some(bad) => bad.surely_lost |= surely,
        }
    }

    /// `after` is what the next segment would be called.
    fn judge(&self, after: PathBuf) -> Result<(), Damage> {
        let short = self.evidence > self.next;
        let evidence = short.then_some(self.evidence);
        match &self.bad {
            Some(bad) if bad.surely_lost || short => Err(Damage {
                segment: bad.segment.clone(),
                offset: bad.offset,
                first_index: self.next,
                end_index: bad.resumes_at.or(evidence).filter(|end| *end > self.next),
                what: bad.what,
            }),
            None if short => {
                let last = self.held.iter().rev().find(|held| held.end_offset > BLOCK).or(self.held.front());
                Err(Damage {
                    segment: last.map_or(after, |held| held.segment.path.clone()),
                    offset: last.map_or(0, |held| held.end_offset),
                    first_index: self.next,
                    end_index: evidence,
                    what: "records are missing",
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Makes durable what was found, and takes an unfinished record out of the way of later ones.
    async fn settle(&mut self) -> Result<(), OpenError> {
        for (segment, header) in &self.unproven {
            write_again(segment, header).await.map_err(io_error("write", &segment.path))?;
        }
        let Some(bad) = &self.bad else { return Ok(()) };
        tracing::warn!(
            segment = %bad.segment.display(), offset = bad.offset, next = self.next,
            "dropped an unfinished record, which nobody was told of"
        );
        // If the next record went to another segment, this one's header would stand for a lost record.
        let Some(held) = self.held.iter_mut().find(|held| held.segment.path == bad.segment) else { return Ok(()) };
        if held.end_offset == BLOCK {
            return Ok(());
        }
        let mut buffer = RecordBuffer::default();
        buffer.begin();
        let marker = buffer.finish(held.segment.salt, held.end_offset, self.next, self.next);
        write_and_sync(&held.segment, held.end_offset, marker).await.map_err(io_error("write", &held.segment.path))?;
        held.end_offset += marker.len() as u64;
        self.evidence = self.next;
        Ok(())
    }
}

/// The inner error says what is wrong with the file.
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
        Err(SegmentHeaderError::Damaged) => return Ok(Err("its header is not what was written")),
        Err(SegmentHeaderError::Version(found)) => return Err(OpenError::Version { segment: path.to_owned(), found }),
    };
    if header.number != number {
        return Ok(Err("it is another segment than its name says"));
    }
    if present < header.length {
        return Ok(Err("the file is shorter than when it was made"));
    }
    let SegmentHeader { journal_id, salt, synced_below, length, .. } = header;
    Ok(Ok((Segment { number, path: path.to_owned(), file, length, salt, synced_below }, journal_id)))
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

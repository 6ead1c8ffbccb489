//! Simulated journal of a node, as bytes. A crash of the node changes the unsynced bytes. When the node starts, it
//! reads the records of the journal.

use bytes::Bytes;
use simulator::Random;

/// Size of a frame's header in bytes. The header contains the length of the frame's record, a checksum, and the number
/// of bytes that were durable when the node wrote the frame.
const HEADER: usize = 4 + 4 + 8;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    bytes: Vec<u8>,
    /// Number of synced bytes, which survive a crash.
    synced: usize,
    /// Largest number of durable bytes that the header of a synced frame states. When the node starts, it detects
    /// damage to this number of bytes at the start of the journal.
    known: usize,
    /// Token of each append whose records are not yet durable, with the position at which the bytes of these records
    /// end.
    tokens: Vec<(u64, usize)>,
    /// End of the bytes that the sync in progress makes durable; `None` if no sync is in progress.
    pub(crate) syncing: Option<usize>,
    /// Start of the bytes that a failed sync did not write. These and all later bytes are lost, even if later syncs
    /// succeed.
    hole: Option<usize>,
}

/// Error when a node starts: durable bytes of its journal are lost or damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

/// State of the unsynced bytes after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    All,
    /// The disk loses all unsynced records, or only some at the end. It keeps no part of a lost record.
    Lost,
    /// The disk keeps only a part of an unsynced record.
    Torn,
}

impl Disk {
    pub(crate) fn append(&mut self, token: u64, records: impl IntoIterator<Item = Vec<u8>>) {
        self.write(records);
        self.tokens.push((token, self.bytes.len()));
    }

    /// Appends an empty frame. Its header states the number of durable bytes.
    pub(crate) fn append_marker(&mut self) {
        self.write([Vec::new()]);
    }

    fn write(&mut self, records: impl IntoIterator<Item = Vec<u8>>) {
        for record in records {
            let known = (self.synced as u64).to_le_bytes();
            let sum = crc32c::crc32c_append(crc32c::crc32c(&known), &record);
            self.bytes.extend_from_slice(&u32::try_from(record.len()).expect("records are small").to_le_bytes());
            self.bytes.extend_from_slice(&sum.to_le_bytes());
            self.bytes.extend_from_slice(&known);
            self.bytes.extend_from_slice(&record);
        }
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced == self.bytes.len()
    }

    /// Returns true if all bytes are durable, but no synced frame states this. The node then appends an empty frame,
    /// whose header states the number of durable bytes.
    pub(crate) fn wants_marker(&self) -> bool {
        self.is_synced() && self.known + HEADER < self.synced
    }

    pub(crate) fn sync(&mut self) {
        self.syncing = Some(self.bytes.len());
    }

    /// Finishes a sync. Returns the token of the last records that became durable, and the range of bytes that became
    /// durable.
    pub(crate) fn synced(&mut self) -> (Option<u64>, std::ops::Range<usize>) {
        let Some(upto) = self.syncing.take() else { return (None, 0..0) };
        let end = self.hole.unwrap_or(upto);
        let fresh = self.synced.min(end)..upto.min(end);
        let count = self.tokens.partition_point(|(_, end)| *end <= upto);
        let token = self.tokens.drain(..count).next_back().map(|(token, _)| token);
        self.synced = upto;
        for (start, _) in frames(&self.bytes[..fresh.end], fresh.start) {
            self.known = self.known.max(known_of(&self.bytes[start..]));
        }
        (token, fresh)
    }

    /// Fails a sync as operating systems do ("Can Applications Recover from fsync Failures?", Rebello et al., ATC '20):
    /// the system marks pages as clean even if it could not write them, so the next sync skips these pages and
    /// succeeds.
    pub(crate) fn fail_sync(&mut self, random: &mut Random) {
        let Some(upto) = self.syncing.take() else { return };
        let start = if random.coin() { self.synced } else { self.synced + random.index(upto - self.synced) };
        self.bytes[start..upto].fill(0);
        self.hole = Some(self.hole.map_or(start, |hole| hole.min(start)));
    }

    /// Returns the records in the range `range` of the journal's bytes.
    pub(crate) fn records(&self, range: std::ops::Range<usize>) -> Vec<Bytes> {
        let record = |(start, end): (usize, usize)| Bytes::copy_from_slice(&self.bytes[start + HEADER..end]);
        frames(&self.bytes[..range.end], range.start).map(record).filter(|record| !record.is_empty()).collect()
    }

    /// Simulates a loss of power. The disk keeps a random number of unsynced bytes, and may append random bytes.
    pub(crate) fn crash(&mut self, random: &mut Random) -> Left {
        (self.syncing, _) = (None, self.tokens.clear());
        let (start, end) = (self.synced, self.bytes.len());
        if start == end {
            return Left::All;
        }
        let cuts: Vec<usize> = frames(&self.bytes, start).map(|(_, until)| until).filter(|cut| *cut < end).collect();
        let cut = match random.below(4) {
            0 => start,
            1 => end,
            2 if !cuts.is_empty() => cuts[random.index(cuts.len())],
            _ => start + random.index(end - start + 1),
        };
        self.bytes.truncate(cut);
        if random.coin() {
            // After the crash, the file ends with bytes of a sector that the node never wrote.
            let garbage = random.bits().to_le_bytes();
            self.bytes.extend_from_slice(&garbage);
        }
        match cut {
            _ if self.hole.is_some() => Left::Torn,
            _ if cut == end => Left::All,
            _ if cut == start || cuts.contains(&cut) => Left::Lost,
            _ => Left::Torn,
        }
    }

    /// Flips a bit of the bytes that are durable according to a synced frame. The node therefore detects the damage
    /// when it starts. Returns false if no synced frame states that bytes are durable.
    pub(crate) fn flip(&mut self, random: &mut Random) -> bool {
        if self.known == 0 {
            return false;
        }
        let at = random.index(self.known);
        self.bytes[at] ^= 1 << random.below(8);
        true
    }

    /// Opens the journal after a crash: returns the records, and removes an incomplete frame at the end.
    pub(crate) fn open(&mut self) -> Result<Vec<Bytes>, Damaged> {
        let mut records = Vec::new();
        let (mut end, mut known) = (0, 0);
        for (start, until) in frames(&self.bytes, 0) {
            known = known.max(known_of(&self.bytes[start..]));
            if until > start + HEADER {
                records.push(Bytes::copy_from_slice(&self.bytes[start + HEADER..until]));
            }
            end = until;
        }
        // A frame after the first damaged byte may state a larger number of durable bytes than the frames before this
        // byte.
        let after = (end..(self.bytes.len() + 1).saturating_sub(HEADER)).filter(|at| is_whole(&self.bytes[*at..]));
        let promised = after.map(|at| known_of(&self.bytes[at..])).fold(known, usize::max);
        if end < promised {
            return Err(Damaged);
        }
        // The number `known` is from the frames that the journal keeps, and not from the frames that the truncation
        // removes.
        self.bytes.truncate(end);
        (self.synced, self.known, self.hole) = (end, known, None);
        Ok(records)
    }
}

/// Returns the start and the end of each frame from `from` on, up to the first incomplete or damaged frame.
fn frames(bytes: &[u8], from: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let rest = &bytes[at..];
        is_whole(rest).then(|| {
            let start = at;
            at += HEADER + len_of(rest);
            (start, at)
        })
    })
}

fn len_of(frame: &[u8]) -> usize {
    u32::from_le_bytes(frame[..4].try_into().expect("the slice has 4 bytes")) as usize
}

fn known_of(frame: &[u8]) -> usize {
    let known = u64::from_le_bytes(frame[8..HEADER].try_into().expect("the slice has 8 bytes"));
    usize::try_from(known).unwrap_or(usize::MAX)
}

fn is_whole(rest: &[u8]) -> bool {
    if rest.len() < HEADER {
        return false;
    }
    let end = HEADER + len_of(rest);
    let sum = u32::from_le_bytes(rest[4..8].try_into().expect("the slice has 4 bytes"));
    end <= rest.len() && crc32c::crc32c(&rest[8..end]) == sum
}

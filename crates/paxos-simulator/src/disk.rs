//! A node's journal as bytes: what a crash leaves of it, and what a start finds.

use bytes::Bytes;
use simulator::Random;

/// Length, checksum, and how much was known to be durable when it was written.
const HEADER: usize = 4 + 4 + 8;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    bytes: Vec<u8>,
    /// Whatever happens, this stays.
    synced: usize,
    /// Of what is synced, so much is said to be so by what is synced, too: damage up to there is known as such.
    known: usize,
    /// Under which token the last bytes were appended, up to where.
    tokens: Vec<(u64, usize)>,
    /// A sync under way, up to where.
    pub(crate) syncing: Option<usize>,
    /// Where a failed sync left a hole: what lies behind is lost, whatever later syncs say.
    hole: Option<usize>,
}

/// The journal has lost what it had promised to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

/// What became of what was not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    All,
    /// Some records are whole, or none, and the others are not there at all.
    Lost,
    /// A part of a record is there.
    Torn,
}

impl Disk {
    pub(crate) fn append(&mut self, token: u64, records: impl IntoIterator<Item = Vec<u8>>) {
        self.write(records);
        self.tokens.push((token, self.bytes.len()));
    }

    /// Nothing but how much is known to be durable.
    pub(crate) fn mark(&mut self) {
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

    /// What is synced but not said to be so by anything that is: an idle journal writes that down, too.
    pub(crate) fn wants_marker(&self) -> bool {
        self.is_synced() && self.known + HEADER < self.synced
    }

    pub(crate) fn sync(&mut self) {
        self.syncing = Some(self.bytes.len());
    }

    /// The last token that is durable now, and the bytes that are so newly.
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

    /// As systems do it ("Can Applications Recover from fsync Failures?", Rebello et al., ATC '20): pages that could not be
    /// written are taken to be clean, so the next sync passes over them, and succeeds.
    pub(crate) fn fail_sync(&mut self, random: &mut Random) {
        let Some(upto) = self.syncing.take() else { return };
        let start = if random.coin() { self.synced } else { self.synced + random.index(upto - self.synced) };
        self.bytes[start..upto].fill(0);
        self.hole = Some(self.hole.map_or(start, |hole| hole.min(start)));
    }

    /// Records that lie in these bytes.
    pub(crate) fn records(&self, range: std::ops::Range<usize>) -> Vec<Bytes> {
        let record = |(start, end): (usize, usize)| Bytes::copy_from_slice(&self.bytes[start + HEADER..end]);
        frames(&self.bytes[..range.end], range.start).map(record).filter(|record| !record.is_empty()).collect()
    }

    /// Power is lost: of what was not synced, anything may be there, up to some byte, and something else behind it.
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
            // A sector that was never written, behind those that were.
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

    /// Damage in what a start can tell from a torn tail.
    pub(crate) fn flip(&mut self, random: &mut Random) -> bool {
        if self.known == 0 {
            return false;
        }
        let at = random.index(self.known);
        self.bytes[at] ^= 1 << random.below(8);
        true
    }

    /// What is there, after a crash: a torn tail is cut.
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
        // What lies behind the first damage may say that more was durable.
        let after = (end..(self.bytes.len() + 1).saturating_sub(HEADER)).filter(|at| is_whole(&self.bytes[*at..]));
        let promised = after.map(|at| known_of(&self.bytes[at..])).fold(known, usize::max);
        if end < promised {
            return Err(Damaged);
        }
        // What is cut says nothing any more.
        self.bytes.truncate(end);
        (self.synced, self.known, self.hole) = (end, known, None);
        Ok(records)
    }
}

/// From where to where whole frames lie, from `from` on.
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
    u32::from_le_bytes(frame[..4].try_into().expect("it has 4 bytes")) as usize
}

fn known_of(frame: &[u8]) -> usize {
    let known = u64::from_le_bytes(frame[8..HEADER].try_into().expect("it has 8 bytes"));
    usize::try_from(known).unwrap_or(usize::MAX)
}

fn is_whole(rest: &[u8]) -> bool {
    if rest.len() < HEADER {
        return false;
    }
    let end = HEADER + len_of(rest);
    let sum = u32::from_le_bytes(rest[4..8].try_into().expect("it has 4 bytes"));
    end <= rest.len() && crc32c::crc32c(&rest[8..end]) == sum
}

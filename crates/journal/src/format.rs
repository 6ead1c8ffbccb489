//! Format of the bytes on disk: a segment's header, and records. This module does no I/O.
//!
//! All numbers are little-endian. The first [`BLOCK`] of a segment begins with a [`SegmentHeader`]. The other blocks
//! contain records. Each record begins at a multiple of [`BLOCK`]. It consists of a [`RecordHeader`], the entries (each
//! a `u32` length and its bytes), and zeros up to the next multiple of [`BLOCK`].
//!
//! Invariant: no two records share a block. A write therefore never touches a sector of an earlier record that the
//! journal reported as durable. A disk that loses power during a write may corrupt every sector of that write, but no
//! other sector.
//!
//! A record contains its own offset and its segment's salt. The journal draws another salt each time that it reuses a
//! segment's file. The checksum of the record's header covers the salt and the offset, and the checksum of the entries
//! starts from the salt. The parser therefore rejects records of an earlier use of this file, payloads that imitate a
//! record, and blocks that the disk wrote to a wrong place.
//!
//! docs/decisions/0010-write-each-group-commit-as-one-record.md gives the reasons for the design.

use bytes::Bytes;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 64;
/// Size in bytes of the length field before each entry.
pub(crate) const ENTRY_OVERHEAD: usize = 4;

const SEGMENT_MAGIC: [u8; 8] = *b"RVLJRNL\0";
const RECORD_MAGIC: [u8; 4] = *b"RVRC";
const PROOF_MAGIC: [u8; 8] = *b"RVPROOF\0";

/// Header of a segment. The journal writes and syncs the header before it gives the file a segment's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) journal_id: u128,
    /// Number of the segment. Each segment's number is one greater than the number of the segment before it.
    pub(crate) number: u64,
    pub(crate) salt: u64,
    /// Index below which all entries were durable before the journal prepared the segment. Earlier segments contain
    /// these entries.
    pub(crate) synced_below: u64,
    /// Length of the whole segment file in bytes.
    pub(crate) length: u64,
    /// Offset of a block that began with a record's magic number when the journal reused the file; 0 if the journal
    /// knows no such block. Earlier builds wrote 0.
    pub(crate) filled: u64,
}

/// Proof that entries were durable, in a file of its own ([`crate::proof`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Proof {
    pub(crate) journal_id: u128,
    /// Index below which all entries were durable before the journal wrote the proof.
    pub(crate) synced_below: u64,
}

impl Proof {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&PROOF_MAGIC);
        bytes[12..14].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.journal_id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.synced_below.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a proof. Returns `None` if `bytes` are not a proof that this version can read.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let is_valid = bytes[..8] == PROOF_MAGIC
            && read_u32(bytes, 8) == crc32c::crc32c(&bytes[12..])
            && u16::from_le_bytes([bytes[12], bytes[13]]) == VERSION;
        is_valid.then(|| Proof {
            journal_id: u128::from(read_u64(bytes, 24)) << 64 | u128::from(read_u64(bytes, 16)),
            synced_below: read_u64(bytes, 32),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentHeaderError {
    Damaged,
    Version(u16),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[12..14].copy_from_slice(&VERSION.to_le_bytes());
        let filled = u16::try_from(self.filled / BLOCK).unwrap_or(0);
        bytes[14..16].copy_from_slice(&filled.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.journal_id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.salt.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.synced_below.to_le_bytes());
        bytes[56..].copy_from_slice(&self.length.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, SegmentHeaderError> {
        if bytes[..8] != SEGMENT_MAGIC || read_u32(bytes, 8) != crc32c::crc32c(&bytes[12..]) {
            return Err(SegmentHeaderError::Damaged);
        }
        let version = u16::from_le_bytes([bytes[12], bytes[13]]);
        if version != VERSION {
            return Err(SegmentHeaderError::Version(version));
        }
        Ok(SegmentHeader {
            journal_id: u128::from(read_u64(bytes, 24)) << 64 | u128::from(read_u64(bytes, 16)),
            number: read_u64(bytes, 32),
            salt: read_u64(bytes, 40),
            synced_below: read_u64(bytes, 48),
            length: read_u64(bytes, 56),
            filled: u64::from(u16::from_le_bytes([bytes[14], bytes[15]])) * BLOCK,
        })
    }
}

/// Header of a record. A record contains the entries of one commit. A record without entries is a marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    /// Offset of the record in its segment, in bytes.
    pub(crate) offset: u64,
    /// Index of the record's first entry; in a marker, the index of the next entry.
    pub(crate) first_index: u64,
    /// Index below which all entries were durable before the journal wrote the record.
    pub(crate) synced_below: u64,
    pub(crate) count: u32,
    body_bytes: u32,
    body_crc: u32,
}

impl RecordHeader {
    /// Returns the index after the record's last entry.
    pub(crate) fn end_index(&self) -> u64 {
        self.first_index + u64::from(self.count)
    }

    /// Returns the offset after the record, where the next record may begin.
    pub(crate) fn end_offset(&self) -> u64 {
        self.offset + record_bytes(self.body_bytes as usize)
    }

    pub(crate) fn body_offset(&self) -> u64 {
        self.offset + HEADER_BYTES as u64
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }

    fn encode(&self, salt: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[8..16].copy_from_slice(&salt.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_index.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.synced_below.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.count.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of a record. Returns `None` if `bytes` are not the header of a record that begins at `offset`
    /// in a segment with the salt `salt` and the length `segment_length`.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], salt: u64, offset: u64, segment_length: u64) -> Option<Self> {
        // The decoder compares the salt first. Nearly all bytes that are not a record header fail this test, and the
        // decoder computes no checksum for them.
        if read_u64(bytes, 8) != salt || bytes[..4] != RECORD_MAGIC {
            return None;
        }
        let header = RecordHeader {
            offset: read_u64(bytes, 16),
            first_index: read_u64(bytes, 24),
            synced_below: read_u64(bytes, 32),
            count: read_u32(bytes, 40),
            body_bytes: read_u32(bytes, 44),
            body_crc: read_u32(bytes, 48),
        };
        let valid = read_u32(bytes, 4) == crc32c::crc32c(&bytes[8..])
            && header.offset == offset
            && header.end_offset() <= segment_length
            && header.synced_below <= header.first_index;
        valid.then_some(header)
    }

    /// Returns true if `body` is the body of this record, unchanged since the journal wrote it.
    pub(crate) fn matches(&self, salt: u64, body: &[u8]) -> bool {
        body.len() == self.body_bytes()
            && crc32c::crc32c_append(body_seed(salt), body) == self.body_crc
            && is_whole(body, self.count)
    }
}

/// Returns true if `block` starts like a record of any segment.
pub(crate) fn is_record_start(block: &[u8]) -> bool {
    block.starts_with(&RECORD_MAGIC)
}

/// Returns the number of bytes that a record with a body of `body_bytes` occupies in a segment.
pub(crate) fn record_bytes(body_bytes: usize) -> u64 {
    (HEADER_BYTES as u64 + body_bytes as u64).next_multiple_of(BLOCK)
}

/// Builder that encodes one record after another in the same buffer.
#[derive(Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    count: u32,
}

impl RecordBuffer {
    pub(crate) fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
        self.count = 0;
    }

    pub(crate) fn push(&mut self, entry: &[u8]) {
        let length = u32::try_from(entry.len()).expect("`Journal::append` accepts only entries below 4 GiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(entry);
        self.count += 1;
    }

    /// Returns the whole record, padded to full blocks.
    pub(crate) fn finish(&mut self, salt: u64, offset: u64, first_index: u64, synced_below: u64) -> &[u8] {
        assert!(
            offset.is_multiple_of(BLOCK) && offset >= BLOCK,
            "a record begins at a block boundary after the segment's header"
        );
        let body = &self.bytes[HEADER_BYTES..];
        let header = RecordHeader {
            offset,
            first_index,
            synced_below,
            count: self.count,
            body_bytes: u32::try_from(body.len()).expect("a record's body is smaller than 4 GiB"),
            body_crc: crc32c::crc32c_append(body_seed(salt), body),
        };
        self.bytes[..HEADER_BYTES].copy_from_slice(&header.encode(salt));
        self.bytes.resize(self.bytes.len().next_multiple_of(to_usize(BLOCK)), 0);
        &self.bytes
    }
}

/// Iterator over the entries of a record's body. It does not copy them.
pub(crate) struct Entries {
    body: Bytes,
    index: u64,
}

impl Entries {
    /// `body` must have passed [`RecordHeader::matches`].
    pub(crate) fn new(body: Bytes, first_index: u64) -> Self {
        Entries { body, index: first_index }
    }
}

impl Iterator for Entries {
    type Item = (u64, Bytes);

    fn next(&mut self) -> Option<(u64, Bytes)> {
        if self.body.is_empty() {
            return None;
        }
        let length = self.body.split_to(ENTRY_OVERHEAD);
        let entry = self.body.split_to(read_u32(&length, 0) as usize);
        let index = self.index;
        self.index += 1;
        Some((index, entry))
    }
}

/// Returns true if `body` has exactly `count` entries.
fn is_whole(mut body: &[u8], count: u32) -> bool {
    for _ in 0..count {
        let Some((length, rest)) = body.split_first_chunk::<ENTRY_OVERHEAD>() else { return false };
        let Some(rest) = rest.get(u32::from_le_bytes(*length) as usize..) else { return false };
        body = rest;
    }
    body.is_empty()
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("usize has 64 bits")
}

fn body_seed(salt: u64) -> u32 {
    crc32c::crc32c(&salt.to_le_bytes())
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has four bytes"))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has eight bytes"))
}

#[cfg(test)]
mod tests;

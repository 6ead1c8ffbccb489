//! Segment file. This module reads records from the file, and finds the next record after corrupt bytes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use runtime::DiskFile;

use crate::format::{BLOCK, HEADER_BYTES, RecordHeader, is_record_start, to_usize};

/// Number of bytes that the search for a record reads at once; a multiple of [`BLOCK`].
const SCAN_BYTES: u64 = 1 << 20;

/// Segment with a valid header. This type reads single records, and does not check the order of their indexes.
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) length: u64,
    pub(crate) salt: u64,
    /// Index below which all entries are in earlier segments.
    pub(crate) synced_below: u64,
    /// Offset of a block that began with a record's magic number when the journal reused the file, or 0.
    pub(crate) filled: u64,
}

impl Segment {
    /// Returns the header of the record at `offset`, or `None` if no record begins there.
    pub(crate) async fn header_at(&self, offset: u64) -> io::Result<Option<RecordHeader>> {
        if offset + BLOCK > self.length {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.file.read_at(offset, &mut bytes).await?;
        Ok(RecordHeader::decode(&bytes, self.salt, offset, self.length))
    }

    /// Returns the first record header at or after `offset`, a multiple of [`BLOCK`].
    pub(crate) async fn next_header(&self, offset: u64) -> io::Result<Option<RecordHeader>> {
        if let Some(header) = self.header_at(offset).await? {
            return Ok(Some(header));
        }
        let mut chunk = Vec::new();
        let mut chunk_offset = offset;
        while chunk_offset + BLOCK <= self.length {
            let chunk_bytes = SCAN_BYTES.min(self.length - chunk_offset);
            chunk.resize(to_usize(chunk_bytes), 0);
            self.file.read_at(chunk_offset, &mut chunk).await?;
            for at in (0..chunk.len()).step_by(to_usize(BLOCK)) {
                let Some(bytes) = chunk[at..].first_chunk() else { break };
                let header = RecordHeader::decode(bytes, self.salt, chunk_offset + at as u64, self.length);
                if header.is_some() {
                    return Ok(header);
                }
            }
            chunk_offset += chunk_bytes;
        }
        Ok(None)
    }

    /// Returns true if the file has lost bytes of its earlier use. `end` is the end of the segment's last record, and
    /// `record_bytes_max` is the maximum length of an unfinished record after it, which may have replaced such bytes.
    pub(crate) async fn lacks_earlier_bytes(&self, end: u64, record_bytes_max: u64) -> io::Result<bool> {
        if self.filled < end + record_bytes_max || self.filled + BLOCK > self.length {
            return Ok(false);
        }
        let mut start = [0; HEADER_BYTES];
        self.file.read_at(self.filled, &mut start).await?;
        Ok(!is_record_start(&start))
    }

    /// Returns the body of a record, or `None` if the body is corrupt.
    pub(crate) async fn body(&self, header: &RecordHeader) -> io::Result<Option<Bytes>> {
        let mut body = vec![0; header.body_bytes()];
        self.file.read_at(header.body_offset(), &mut body).await?;
        Ok(header.matches(self.salt, &body).then(|| Bytes::from(body)))
    }
}

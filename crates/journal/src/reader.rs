//! Reader that returns the entries of a journal in order. The consumer reads entries when it starts. A reader also
//! works while the writer appends further entries, so a backup can read a journal that is in use.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::format::{BLOCK, Entries};
use crate::shared::{LiveSegment, Shared};
use crate::{Damage, ReadError};

/// Reader that starts at an index. Until the caller drops the reader, the journal retains all entries that the reader
/// has not read. A reader that the caller never drops therefore fills the disk.
///
/// A call of [`Reader::next`] blocks its thread during a disk operation. Use the reader in a task that may block.
pub struct Reader {
    shared: Arc<Shared>,
    pin: u64,
    /// Index of the next entry to return.
    index: u64,
    entries: Entries,
    /// Segment number and offset at which the search for the next record starts; `None` before the reader has read a
    /// record.
    position: Option<(u64, u64)>,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, from: u64) -> Self {
        let pin = shared.state().pin(from);
        Reader { shared, pin, index: from, entries: Entries::new(Bytes::new(), from), position: None }
    }

    /// Returns the next entry with its index, or `None` after the last durable entry. A later call may return further
    /// entries.
    ///
    /// # Errors
    /// Returns [`ReadError::Released`] if the journal had released the entry before the caller created this reader.
    /// Returns [`ReadError::Damaged`] if the stored entry is corrupt.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        loop {
            if let Some((index, entry)) = self.entries.next() {
                if index < self.index {
                    continue;
                }
                self.index = index + 1;
                return Ok(Some((index, entry)));
            }
            if self.index >= self.shared.state().next {
                return Ok(None);
            }
            self.read_record().await?;
        }
    }

    /// Reads the record that contains the entry with the next index. The caller has checked that this entry is durable.
    async fn read_record(&mut self) -> Result<(), ReadError> {
        loop {
            let (live, offset) = self.find_segment()?;
            let segment = &live.segment;
            let failed = |source: io::Error| ReadError::Io { path: segment.path.clone(), source };
            let damaged = |offset, end_index| Damage {
                segment: segment.path.clone(),
                offset,
                first_index: self.index,
                end_index,
                what: "a record is corrupt",
            };
            if offset >= live.end_offset {
                self.position = Some((segment.number + 1, BLOCK));
                continue;
            }
            let Some(header) = segment.next_header(offset).await.map_err(failed)? else {
                // The rest of the segment contains no valid record header. If the corrupt bytes were only markers, no
                // entry is missing. The first record of the next segment shows whether entries are missing.
                self.position = Some((segment.number + 1, BLOCK));
                continue;
            };
            if header.first_index > self.index {
                return Err(damaged(offset, Some(header.first_index)).into());
            }
            let position = Some((segment.number, header.end_offset()));
            if header.end_index() <= self.index {
                self.position = position;
                continue;
            }
            let Some(body) = segment.body(&header).await.map_err(failed)? else {
                return Err(damaged(header.offset, Some(header.end_index())).into());
            };
            self.entries = Entries::new(body, header.first_index);
            self.position = position;
            return Ok(());
        }
    }

    fn find_segment(&self) -> Result<(LiveSegment, u64), ReadError> {
        let mut state = self.shared.state();
        state.move_pin(self.pin, self.index);
        let (live, offset) = match self.position {
            None => (state.segment_of(self.index), BLOCK),
            Some((number, offset)) => (state.segment(number), offset),
        };
        if let Some(live) = live {
            return Ok((live, offset));
        }
        let first = state.first();
        if self.index < first {
            return Err(ReadError::Released { index: self.index, first });
        }
        let last = state.live.back().expect("the journal always has an active segment");
        Err(ReadError::Damaged(Damage {
            segment: last.segment.path.clone(),
            offset: last.end_offset,
            first_index: self.index,
            end_index: Some(state.next),
            what: "records are missing",
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state().unpin(self.pin);
        self.shared.keeper_wake.notify_one();
    }
}

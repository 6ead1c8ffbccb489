//! Reads entries back, in order: at a start, and beside the writer for a backup.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::format::{BLOCK, Entries};
use crate::shared::{Held, Shared};
use crate::{Damage, ReadError};

/// Reads from an index on. What it has not passed is held until it is dropped, so a forgotten reader fills the disk.
///
/// Its calls block their thread in the disk: use it on a task that may.
pub struct Reader {
    shared: Arc<Shared>,
    pin: u64,
    /// The index to give out next.
    index: u64,
    entries: Entries,
    /// The segment and the offset to look for the next record at; `None` before the first.
    place: Option<(u64, u64)>,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, from: u64) -> Self {
        let pin = shared.book().pin(from);
        Reader { shared, pin, index: from, entries: Entries::new(Bytes::new(), from), place: None }
    }

    /// The next entry with its index, or `None` after the last durable one; later there may be more.
    ///
    /// # Errors
    /// [`ReadError::Released`] if the entry was released before this reader was made; [`ReadError::Damaged`] if it is
    /// not what was written.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        loop {
            if let Some((index, entry)) = self.entries.next() {
                if index < self.index {
                    continue;
                }
                self.index = index + 1;
                return Ok(Some((index, entry)));
            }
            if self.index >= self.shared.book().next {
                return Ok(None);
            }
            self.read_record().await?;
        }
    }

    /// Finds the record that holds the next index, which is durable.
    async fn read_record(&mut self) -> Result<(), ReadError> {
        loop {
            let (held, offset) = self.look_at()?;
            let segment = &held.segment;
            let failed = |source: io::Error| ReadError::Io { path: segment.path.clone(), source };
            let damaged = |offset, end_index| Damage {
                segment: segment.path.clone(),
                offset,
                first_index: self.index,
                end_index,
                what: "a record is not what was written",
            };
            if offset >= held.end_offset {
                self.place = Some((segment.number + 1, BLOCK));
                continue;
            }
            let Some(header) = segment.next_header(offset).await.map_err(failed)? else {
                // The rest may have been markers: what the next segment begins with will tell.
                self.place = Some((segment.number + 1, BLOCK));
                continue;
            };
            if header.first_index > self.index {
                return Err(damaged(offset, Some(header.first_index)).into());
            }
            let place = Some((segment.number, header.end_offset()));
            if header.end_index() <= self.index {
                self.place = place;
                continue;
            }
            let Some(body) = segment.body(&header).await.map_err(failed)? else {
                return Err(damaged(header.offset, Some(header.end_index())).into());
            };
            self.entries = Entries::new(body, header.first_index);
            self.place = place;
            return Ok(());
        }
    }

    fn look_at(&self) -> Result<(Held, u64), ReadError> {
        let mut book = self.shared.book();
        book.move_pin(self.pin, self.index);
        let (held, offset) = match self.place {
            None => (book.segment_of(self.index), BLOCK),
            Some((number, offset)) => (book.segment(number), offset),
        };
        if let Some(held) = held {
            return Ok((held, offset));
        }
        let first = book.first();
        if self.index < first {
            return Err(ReadError::Released { index: self.index, first });
        }
        let last = book.held.back().expect("there is always a segment to write to");
        Err(ReadError::Damaged(Damage {
            segment: last.segment.path.clone(),
            offset: last.end_offset,
            first_index: self.index,
            end_index: Some(book.next),
            what: "records are missing",
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.book().unpin(self.pin);
        self.shared.keep.notify_one();
    }
}

//! Contents of a file, in pages. Copies of the contents share the pages.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE_LEN: usize = 4096;
const PAGE: u64 = PAGE_LEN as u64;
type Page = [u8; PAGE_LEN];

/// Length of a file, and the pages of the file. A missing page contains only zeros.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Contents {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE));
            let remaining = within_page(len);
            if remaining > 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE))
            {
                // If the file grows again after this truncation, a read of the removed bytes must return zeros.
                Arc::make_mut(page)[remaining..].fill(0);
            }
        }
        self.len = len;
    }

    /// Writes bytes, and extends the file if the bytes end after the end of the file.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (at, part) in split(offset, bytes.len()) {
            let start = within_page(at);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new([0; PAGE_LEN]));
            Arc::make_mut(page)[start..start + part.len()].copy_from_slice(&bytes[part]);
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Fills `into` with bytes of the file. If the file is too short, returns false and leaves `into` unchanged.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return false;
        }
        for (at, part) in split(offset, into.len()) {
            let start = within_page(at);
            let len = part.len();
            match self.pages.get(&(at / PAGE)) {
                Some(page) => into[part].copy_from_slice(&page[start..start + len]),
                None => into[part].fill(0),
            }
        }
        true
    }
}

/// Splits a range of a file at the page boundaries. Returns for each part its offset in the file and its range in the
/// caller's buffer.
fn split(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let part = (PAGE_LEN - within_page(at)).min(len - done);
        done += part;
        Some((at, done - part..done))
    })
}

fn within_page(offset: u64) -> usize {
    usize::try_from(offset % PAGE).expect("an offset within a page fits into `usize`")
}

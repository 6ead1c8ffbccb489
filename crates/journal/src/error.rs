//! What can go wrong, for code that branches and for a person.

use std::io;
use std::path::PathBuf;

use crate::format::VERSION;

/// Bytes that were durable once, and are not what they were.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} is damaged at byte {offset}: {what}; {} lost. {ADVICE}", .segment.display(), entries(*.first_index, *.end_index))]
pub struct Damage {
    pub segment: PathBuf,
    /// Where the first bad byte may be; zero if the file as a whole is bad or missing.
    pub offset: u64,
    /// The first entry that cannot be read.
    pub first_index: u64,
    /// The first entry after it that could be read, or would come next; `None` if that cannot be known.
    pub end_index: Option<u64>,
    pub what: &'static str,
}

const ADVICE: &str = "Nothing was changed: copy the data folder aside, then restore it from a backup";

fn entries(first: u64, end: Option<u64>) -> String {
    match end {
        Some(end) => format!("entries {first} to {} are", end.saturating_sub(1)),
        None => format!("entries from {first} on may be"),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process has the journal open ({}); stop it, or choose another data folder", .lock.display())]
    Locked { lock: PathBuf },
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("{} has journal format {found} and this program reads {VERSION}; use the program that wrote it", .segment.display())]
    Version { segment: PathBuf, found: u16 },
    #[error("journal options: {0}")]
    Options(&'static str),
    #[error("the disk has no room for a journal segment of {segment_bytes} bytes; free some, and start again")]
    Full { segment_bytes: u64 },
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// Retry later: it passes when space is free again, or when entries are released.
    #[error("the disk has no room for another journal segment")]
    Full,
    #[error("an entry of {bytes} bytes is larger than the journal's limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("the journal is closed")]
    Closed,
}

impl AppendError {
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, AppendError::Full)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("entry {index} has been released; the oldest held is {first}")]
    Released { index: u64, first: u64 },
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("cannot read {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

//! Errors of the journal, for code that branches and for people.

use std::io;
use std::path::PathBuf;

use crate::format::VERSION;

/// Damage: stored bytes that were durable and have changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} is damaged at byte {offset}: {what}; {} lost. {ADVICE}", .segment.display(), entries(*.first_index, *.end_index))]
pub struct Damage {
    pub segment: PathBuf,
    /// Lower bound for the position of the first bad byte; zero if the file as a whole is bad or missing.
    pub offset: u64,
    /// Index of the first entry that cannot be read.
    pub first_index: u64,
    /// Index of the first later entry that can be read or would come next; `None` if it is unknown.
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
    #[error("{} has journal format {found}, but this program reads format {VERSION}; use the program version that wrote it", .segment.display())]
    Version { segment: PathBuf, found: u16 },
    #[error("invalid journal options: {0}")]
    Options(&'static str),
    #[error("the disk has no space for a journal segment of {segment_bytes} bytes; free disk space and start again")]
    Full { segment_bytes: u64 },
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// Retry later: the error passes when disk space is free again or when entries are released.
    #[error("the disk has no space for another journal segment")]
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
    #[error("entry {index} has been released; the oldest retained entry is {first}")]
    Released { index: u64, first: u64 },
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("cannot read {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

//! Errors of the journal: variants for the caller's code, and texts for an operator.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::VERSION;

/// Damage of stored bytes: the bytes were durable and have changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} is damaged at byte {offset}: {what}; {}; {ADVICE}",
    .segment.display(),
    entries(*.first_index, *.end_index)
)]
pub struct Damage {
    pub segment: PathBuf,
    /// Lower bound for the position of the first damaged byte; zero if the whole file is damaged or missing.
    pub offset: u64,
    /// Index of the first unreadable entry.
    pub first_index: u64,
    /// Index of the first readable entry after the damage. If no later entry is readable, the index of the next entry
    /// to append. `None` if the journal does not know this index.
    pub end_index: Option<u64>,
    pub what: &'static str,
}

const ADVICE: &str =
    "the journal changed no file; copy the data folder to another place, then restore the folder from a backup";

fn entries(first: u64, end: Option<u64>) -> String {
    match end {
        Some(end) => format!("entries {first} to {} are lost", end.saturating_sub(1)),
        None => format!("entry {first} and all later entries may be lost"),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "another process has the journal open (lock file {}); stop that process, or choose another data folder",
        .lock.display()
    )]
    Locked { lock: PathBuf },
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error(
        "{} has journal format {found}, but this program reads only format {VERSION}; \
         use the program version that wrote the file",
        .segment.display()
    )]
    Version { segment: PathBuf, found: u16 },
    #[error("invalid journal options: {0}")]
    Options(&'static str),
    #[error(
        "the disk has no space for a journal segment of {segment_bytes} bytes; \
         free disk space, then restart the process"
    )]
    Full { segment_bytes: u64 },
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk is full. The caller may retry later: appends succeed again once disk space is free or the consumer
    /// releases entries.
    #[error("the disk has no space for another journal segment; free disk space and retry")]
    Full,
    #[error("the entry has {bytes} bytes, more than the journal's limit of {bytes_max} bytes")]
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
    #[error("the journal has released entry {index}; the oldest retained entry is {first}")]
    Released { index: u64, first: u64 },
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("cannot read {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Returns a function that converts the error of a file operation.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

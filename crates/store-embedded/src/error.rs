//! Why a store does not open, or is not copied.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal is damaged, locked by another process, or cannot be read.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    #[error("{what} in {}; nothing was changed: copy the data folder aside, then restore it from a backup", .dir.display())]
    Damaged { dir: PathBuf, what: String },
    #[error("{} holds a store whose index is of another kind; open it with that kind", .dir.display())]
    OtherIndex { dir: PathBuf },
    #[error("store options: {0}")]
    Options(&'static str),
    #[error("cannot open the store in {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{} is not empty; choose a folder that is not there yet", .dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("{} holds no backup: {what}", .dir.display())]
    NoBackup { dir: PathBuf, what: String },
    #[error("the store is closed")]
    Closed,
    #[error("what is to be copied is damaged: {0}")]
    Damaged(String),
    #[error("cannot copy to {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}
